"""Shared code of commands on LM files: options, sizes, texts, timed steps."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.cli.heartbeat import Heartbeat, describe_memory

if TYPE_CHECKING:
    from lattice_bpd import NGramLM

_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}


def add_lm_options(parser: argparse.ArgumentParser) -> None:
    """Adds options for reading LMs in other formats."""
    parser.add_argument(
        "--vocab",
        type=Path,
        metavar="FILE",
        help="words of ARPA files by token id: tokenizer.json (or its folder), vocab.json, a "
        "SentencePiece .model, or one word per line (default: decimal token ids)",
    )
    add_encoding_option(parser)
    parser.add_argument("--vocab-size", type=int, metavar="V", help="number of token ids")
    for name in ("bos", "eos", "unk"):
        parser.add_argument(
            f"--{name}-id",
            type=int,
            metavar="ID",
            help=f"token id that is the symbol {name}, if any",
        )


def add_threads_option(parser: argparse.ArgumentParser) -> None:
    """Adds --threads."""
    parser.add_argument("--threads", type=int, default=0, help="0 (default): every core")


def add_encoding_option(parser: argparse.ArgumentParser) -> None:
    """Adds --encoding, of ARPA input."""
    parser.add_argument(
        "--encoding",
        default="utf-8",
        metavar="NAME",
        help="encoding of ARPA input, such as latin-1 (default: utf-8)",
    )


def read_lm_of(args: argparse.Namespace, path: Path) -> NGramLM:
    """Reads an LM in any format with these options."""
    from lattice_bpd.lm.convert import read_lm

    with timed_step(f"read {path}"):
        return read_lm(
            path,
            vocab=args.vocab,
            encoding=args.encoding,
            vocab_size=args.vocab_size,
            bos_id=args.bos_id,
            eos_id=args.eos_id,
            unk_id=args.unk_id,
        )


def add_text_option(parser: argparse.ArgumentParser, name: str, text: str, required: bool) -> None:
    """Adds an option for a text of read_sequences, and --tokenizer."""
    parser.add_argument(
        name,
        type=Path,
        metavar="TEXT",
        required=required,
        help=f"{text}: token ids, one sequence per line (.gz and .zst too), or .npy; or plain text "
        "with --tokenizer",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="tokenizer.json for plain text, one sequence per line",
    )


def read_sequences(path: Path, tokenizer: Path | None) -> list[npt.NDArray[Any]]:
    """The sequences of a text, (T_i,) integers each.

    Raises:
        OSError: a file cannot be read.
        ValueError: a line that does not consist of token ids, or another format.
    """
    from lattice_bpd.text_input import read_text
    from lattice_bpd.train.text.text_files import map_npy

    if path.suffix == ".npy":
        ids = map_npy(str(path))
        return list(ids) if ids.ndim == 2 else [ids]
    lines = [line for line in read_text(path).split("\n") if line.strip()]
    if tokenizer is not None:
        from lattice_bpd.cli.files import load_tokenizer

        return [np.array(e.ids, np.int32) for e in load_tokenizer(tokenizer).encode_batch(lines)]
    sequences: list[npt.NDArray[Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            sequences.append(np.array(line.split(), dtype=np.int64))
        except ValueError:
            raise ValueError(
                f"{path}: non-empty line {number} is {line[:40]!r}; expected decimal token ids, or "
                "give --tokenizer for plain text"
            ) from None
    return sequences


def parse_size(text: str) -> int:
    """Parses 100M, 2.5k or 1000."""
    unit = _UNITS.get(text[-1:], 1)
    try:
        return round(float(text.rstrip("kMG")) * unit)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; expected a number such as 250000, 500k or 100M"
        ) from None


def parse_numbers(text: str) -> list[float]:
    """Parses comma-separated numbers."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}; expected comma-separated numbers, such as 1,1,2,4"
        ) from None


def add_quantise_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--quantise`, for `quantise_if_requested`."""
    parser.add_argument(
        "--quantise",
        type=int,
        choices=(8, 12, 16),
        metavar="BITS",
        help="round numbers to 8, 12 or 16 bits",
    )


def quantise_if_requested(args: argparse.Namespace, lm: NGramLM) -> NGramLM:
    """Applies `--quantise` to an LM."""
    if not args.quantise:
        return lm
    with timed_step(f"quantize to {args.quantise} bits"):
        return lm.quantise(args.quantise)


@contextmanager
def timed_step(name: str) -> Iterator[None]:
    """Prints the name of a step, its time and the memory in use on stderr."""
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    start = time.perf_counter()
    try:
        with Heartbeat(name):
            yield
    except BaseException:
        print(file=sys.stderr)
        raise
    print(f"{time.perf_counter() - start:.1f} s, {describe_memory()}", file=sys.stderr)
