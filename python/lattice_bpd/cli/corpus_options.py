"""Shared options of commands that read and count a corpus."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lattice_bpd.train import Corpus

_SMOOTHINGS = ("katz", "kneser_ney", "modified_kneser_ney", "witten_bell", "absolute")


def add_corpus_options(parser: argparse.ArgumentParser, *, bin_files: bool = True) -> None:
    """Adds options for the input and its tokenizer; `bin_files`: that of .bin files too."""
    group = parser.add_argument_group("corpus")
    group.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json, vocab.json with merges, SentencePiece .model, or a vocabulary .txt "
        "for text that is split at white space; not needed for token ids",
    )
    group.add_argument(
        "--merges", metavar="FILE", help="merges of a vocab.json (default: in the same folder)"
    )
    group.add_argument(
        "--vocab-size", type=int, metavar="V", help="number of token ids (default: the tokenizer's)"
    )
    group.add_argument(
        "--boundaries",
        "--sequence",
        choices=("line", "paragraph", "document", "file"),
        default="paragraph",
        help="unit of text between <s> and </s>: a line, a paragraph (default), or a document, "
        "which is a whole file or the text of one .jsonl object",
    )
    group.add_argument("--field", default="text", help=".jsonl field with the text (default text)")
    for name in ("bos", "eos", "unk"):
        group.add_argument(f"--{name}-id", type=int, metavar="ID", help=f"token id of <{name}>")
    if bin_files:
        group.add_argument(
            "--id-type",
            choices=("uint16", "uint32"),
            help="of .bin files (default: by --vocab-size)",
        )


def add_model_option(parser: argparse.ArgumentParser) -> None:
    """Adds --model, for `use_model_vocabulary`."""
    parser.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="folder of the model that the LM is for, instead of --tokenizer and --vocab-size: its "
        "tokenizer.json, and the vocab_size of its config.json, which may be more than the "
        "tokenizer's",
    )


def use_model_vocabulary(args: argparse.Namespace) -> None:
    """Sets --tokenizer and --vocab-size from the folder of --model, if it is given.

    Raises:
        OSError: no such folder, or it has no config.json.
        ValueError: config.json without a size, or options that contradict the model.
    """
    if args.model is None:
        return
    size = _model_vocab_size(args.model)
    if args.vocab_size not in (None, size):
        raise ValueError(
            f"--vocab-size is {args.vocab_size}, while {args.model} has a vocabulary of {size}; "
            "leave out --vocab-size, or --model"
        )
    args.vocab_size = size
    own = args.model / "tokenizer.json"
    if not own.is_file():
        return  # token ids need none; for text the corpus asks for --tokenizer
    given = None if args.tokenizer is None else Path(args.tokenizer).resolve()
    if given not in (None, own.resolve(), args.model.resolve()):
        raise ValueError(
            f"--tokenizer is {args.tokenizer}, while {args.model} has a tokenizer.json; leave out "
            "--tokenizer, or give --vocab-size instead of --model"
        )
    args.tokenizer = str(own)


def _model_vocab_size(model: Path) -> int:
    """The vocab_size of a model's config.json, in its text_config where it has one there."""
    from lattice_bpd.cli.files import require_folder

    require_folder(model, "a model", "--model ")
    path = model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}); copy the file again") from error
    parts = (config.get("text_config"), config) if isinstance(config, dict) else ()
    for part in parts:
        size = part.get("vocab_size") if isinstance(part, dict) else None
        if isinstance(size, int) and not isinstance(size, bool) and size > 0:
            return size
    raise ValueError(f"{path} has no vocab_size; give --tokenizer and --vocab-size, not --model")


def add_inputs(parser: argparse.ArgumentParser, also: str = "") -> None:
    """Adds the input files; `also` extends their description."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="text (plain, .gz, .zst, .jsonl), token ids (.npy, .bin), folders of them, or - for "
        f"standard input{also}",
    )


def add_counting_options(parser: argparse.ArgumentParser) -> None:
    """Adds options for counting."""
    group = parser.add_argument_group("counting")
    group.add_argument(
        "--memory", default="2G", metavar="SIZE", help="for counting and estimating (default 2G)"
    )
    group.add_argument("--threads", type=int, default=0, metavar="N", help="default: every core")
    group.add_argument(
        "--temp-dir", metavar="DIR", help="for what exceeds the memory (default: the system's)"
    )


def add_estimate_options(parser: argparse.ArgumentParser, order: str) -> None:
    """Adds -o and options for estimating an LM; `order` is the help of --order."""
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="LM",
        help="LM file; ARPA or OpenFst where it ends in .arpa, .arpa.gz or .fst",
    )
    parser.add_argument("--order", type=int, help=order)
    parser.add_argument(
        "--min-counts",
        metavar="C1,C2,..",
        help="smallest counts to keep, one for each order (default: keep all)",
    )
    parser.add_argument("--smoothing", choices=_SMOOTHINGS, default="katz", help="default: katz")
    parser.add_argument(
        "--unseen",
        choices=("cost", "uniform"),
        default="cost",
        help="token ids that never occur: cost 1000 (default), or a share of the probability",
    )
    parser.add_argument(
        "--katz-k", type=int, default=5, metavar="K", help="Katz: largest discounted count (5)"
    )


def estimate_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of NGramLM.train from add_estimate_options, except order."""
    return {
        "min_counts": parse_min_counts(args.min_counts),
        "smoothing": args.smoothing,
        "unseen": args.unseen,
        "katz_k": args.katz_k,
        "threads": args.threads,
    }


def corpus_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of Corpus for text and its vocabulary."""
    return {
        "tokenizer": args.tokenizer,
        "merges": args.merges,
        "vocab_size": args.vocab_size,
        "boundaries": "document" if args.boundaries == "file" else args.boundaries,
        "field": args.field,
        "bos_id": args.bos_id,
        "eos_id": args.eos_id,
        "unk_id": args.unk_id,
    }


def make_corpus(args: argparse.Namespace, inputs: list[Path]) -> Corpus:
    """Opens the corpus of the options.

    Raises:
        ImportError: a tokenizer's library is not installed.
        OSError: a file is missing.
        ValueError: inconsistent options.
    """
    from lattice_bpd.train import Corpus

    return Corpus(
        inputs,
        **corpus_arguments(args),
        id_type=args.id_type,
        threads=args.threads,
    )


def parse_min_counts(text: str | None) -> list[int] | None:
    """Parses "1,1,2,4"; None for None.

    Raises:
        ValueError: not such a list.
    """
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--min-counts is {text!r}; expected comma-separated whole numbers, such as 1,1,2,4"
        ) from None
