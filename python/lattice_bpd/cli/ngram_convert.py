"""`lattice-bpd ngram convert` and `from-kenlm`: LM files from one format to another."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

from lattice_bpd.cli.ngram_options import (
    add_encoding_option,
    add_lm_options,
    add_quantise_option,
    quantise_if_requested,
    read_lm_of,
    timed_step,
)

_EXAMPLE = """examples:
  lattice-bpd ngram convert corpus.lm corpus.arpa.gz
  lattice-bpd ngram convert words.arpa corpus.lm --vocab encoder.json --quantise 8
  lattice-bpd ngram convert corpus.lm corpus.fst --to const-fst
"""
_KENLM_EXAMPLE = """example:
  lmplz -o 4 --text corpus.txt --arpa corpus.arpa
  lattice-bpd ngram from-kenlm corpus.arpa corpus.lm --write-vocab corpus.vocab
"""
_FORMATS = ("lm", "arpa", "arpa.gz", "fst", "const-fst")


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the actions `convert` and `from-kenlm`."""
    parser = actions.add_parser(
        "convert",
        help="from and to ARPA, OpenFst, native LM files",
        description="Read an LM in any format and write it in another.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("input", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.add_argument("--to", choices=_FORMATS, help="default: by the ending of OUT")
    add_quantise_option(parser)
    add_lm_options(parser)
    parser.set_defaults(run=run)

    kenlm = actions.add_parser(
        "from-kenlm",
        help="take an ARPA file made by lmplz",
        description="Read ARPA text made by KenLM's lmplz; its words become token ids.",
        epilog=_KENLM_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kenlm.add_argument("input", type=Path, metavar="ARPA", help="plain or gzipped")
    kenlm.add_argument("output", type=Path, metavar="LM")
    kenlm.add_argument(
        "--vocab",
        type=Path,
        metavar="FILE",
        help="words by token id: tokenizer.json (or its folder), vocab.json, a SentencePiece "
        ".model, or one word per line (default: in file order)",
    )
    add_encoding_option(kenlm)
    kenlm.add_argument(
        "--write-vocab", type=Path, metavar="FILE", help="write the words by token id, one per line"
    )
    kenlm.set_defaults(run=run_kenlm)


def run(args: argparse.Namespace) -> None:
    """Convert.

    Raises:
        ValueError: options that do not fit the format.
        OSError: a file that cannot be read or written.
    """
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.lm.convert import write_lm

    check_output(args.output)
    lm = read_lm_of(args, args.input)
    lm = quantise_if_requested(args, lm)
    with timed_step(f"write {args.output}"):
        write_lm(lm, args.output, to=args.to, vocab=args.vocab)
    print(f"{args.output}: {lm!r}, {args.output.stat().st_size:,} bytes")


def run_kenlm(args: argparse.Namespace) -> None:
    """Convert lmplz's ARPA.

    Raises:
        ValueError: a word that --vocab lacks.
        OSError: a file that cannot be read or written.
    """
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.lm.convert import read_kenlm

    check_output(args.output)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with timed_step(f"read {args.input}"):
            lm, words = read_kenlm(args.input, args.vocab, encoding=args.encoding)
    for warning in caught:
        print(f"lattice-bpd: note: {warning.message}", file=sys.stderr)
    lm.save(args.output)
    if args.write_vocab is not None:
        args.write_vocab.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    print(f"{args.output}: {lm!r}, {args.output.stat().st_size:,} bytes")
