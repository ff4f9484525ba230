"""`lattice-bpd ngram ..`: training, and commands on LM files."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lattice_bpd import NGramLM
from lattice_bpd.cli import ngram_corpus
from lattice_bpd.cli.files import check_output, read_sequences
from lattice_bpd.cli.ngram_corpus import print_notes
from lattice_bpd.cli.options import add_command, add_options, parse_size, pick
from lattice_bpd.cli.progress import timed_step
from lattice_bpd.extensions import add_commands
from lattice_bpd.lm import convert

if TYPE_CHECKING:
    from lattice_bpd.cli.options import Commands, Parser

_PRUNE_EXAMPLE = """examples:
  lattice-bpd ngram prune corpus.lm --prune-to 100M -o small.lm
  lattice-bpd ngram prune corpus.lm --theta 1e-8 --quantize 8 -o small.lm
"""
_MERGE_EXAMPLE = """examples:
  lattice-bpd ngram merge general.lm domain.lm --heldout domain-dev.ids -o mixed.lm
  lattice-bpd ngram merge general.lm domain.lm --weights 0.3,0.7 -o mixed.lm
"""
_CONVERT_EXAMPLE = """examples:
  lattice-bpd ngram convert corpus.lm corpus.arpa.gz
  lattice-bpd ngram convert words.arpa corpus.lm --vocab encoder.json --quantize 8
  lattice-bpd ngram convert words.arpa corpus.lm --words
  lattice-bpd ngram convert corpus.lm corpus.fst --to const-fst
"""
_INFO_EXAMPLE = """example:
  lattice-bpd ngram info corpus.lm
"""
_EVALUATE_EXAMPLE = """example:
  lattice-bpd ngram evaluate katz.lm pruned.lm --text heldout.ids
"""
_LM_HELP = "LM file; ARPA text of token ids too, other files by ngram convert"
_READING = ("vocab", "words", "vocab_size", "bos_id", "eos_id", "unk_id")


def add_parser(commands: Commands) -> None:
    """Adds the command `ngram` and its actions."""
    group = commands.add_parser("ngram", help="train n-gram LMs", description="N-gram LMs.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    ngram_corpus.add_parsers(actions)
    _add_changes(actions)
    _add_formats(actions)
    _add_reports(actions)
    add_commands(actions, "ngram")


def _add_changes(actions: Commands) -> None:
    parser = add_command(
        actions, "prune", run_prune, epilog=_PRUNE_EXAMPLE,
        summary="drop the n-grams that matter least",
        description="Prune an LM; backoff weights are computed again, sums stay 1.",
    )  # fmt: skip
    parser.add_argument("lm", type=Path, metavar="LM", help=_LM_HELP)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LM")
    add_options(
        parser, NGramLM.prune, ("theta", "prune_to", "min_counts", "keep_ids", "threads"),
        prune_to={"type": parse_size},
        keep_ids={"type": Path, "metavar": "FILE", "help": "drop n-grams with token ids that this "
                  "file does not list"},
    )  # fmt: skip
    _add_quantize_option(parser)

    parser = add_command(
        actions, "merge", run_merge, epilog=_MERGE_EXAMPLE,
        summary="interpolate LMs into one",
        description="Interpolate LMs of one vocabulary linearly and write the mixture as one "
        "backoff LM; weights are given, or tuned by EM on a held-out text.",
    )  # fmt: skip
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM", help=_LM_HELP)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LM")
    add_options(parser, NGramLM.interpolate, ("weights", "threads"))
    _add_text_option(parser, "--heldout", "text to tune the weights on", required=False)


def _add_formats(actions: Commands) -> None:
    parser = add_command(
        actions, "convert", run_convert, epilog=_CONVERT_EXAMPLE,
        summary="from and to ARPA, OpenFst, native LM files",
        description="Read an LM in any format and write it in another.",
    )  # fmt: skip
    parser.add_argument("input", type=Path, metavar="IN")
    parser.add_argument("output", type=Path, metavar="OUT")
    parser.add_argument("--to", choices=convert.FORMATS, help="default: by the ending of OUT")
    _add_quantize_option(parser)
    add_options(parser, convert.read_lm, _READING)


def _add_reports(actions: Commands) -> None:
    parser = add_command(
        actions, "info", run_info, epilog=_INFO_EXAMPLE,
        summary="orders, bytes, quantization errors, checksums",
        description="Describe LM files and verify their checksums.",
    )  # fmt: skip
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM", help="LM file")
    parser.add_argument("--json", action="store_true", help="one JSON line per LM")

    parser = add_command(
        actions, "evaluate", run_evaluate, epilog=_EVALUATE_EXAMPLE,
        summary="perplexity, unknown tokens, hits by order",
        description="Score a text by one LM or several side by side. Unknown tokens (without a "
        "probability of their own) are counted and left out of the perplexity.",
    )  # fmt: skip
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM", help=_LM_HELP)
    _add_text_option(parser, "--text", "text to score", required=True)
    add_options(
        parser, NGramLM.evaluate, ("bos", "eos", "threads"),
        bos={"help": "no <s> before a sequence"}, eos={"help": "do not score </s>"},
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON line per LM")


def _add_quantize_option(parser: Parser) -> None:
    parser.add_argument(
        "--quantize", type=int, choices=(8, 12, 16), metavar="BITS",
        help="round numbers to 8, 12 or 16 bits",
    )  # fmt: skip


def _add_text_option(parser: Parser, name: str, text: str, *, required: bool) -> None:
    parser.add_argument(
        name, type=Path, metavar="TEXT", required=required,
        help=f"{text}: token ids, one sequence per line (.gz and .zst too), or .npy; or plain text "
        "with --tokenizer",
    )  # fmt: skip
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FILE",
        help="tokenizer of plain text, one sequence per line, as for `ngram train`",
    )  # fmt: skip


def _read_lm(path: Path) -> NGramLM:
    with timed_step(f"read {path}"):
        try:
            return convert.read_lm(path)
        except ValueError as error:
            if "vocab" not in str(error):
                raise
            command = f"lattice-bpd ngram convert {path} NEW.lm --vocab FILE"
            raise type(error)(
                f"{error}; on the command line convert it first: {command} (or --words, which "
                "numbers its words)"
            ) from None


def _quantize(args: argparse.Namespace, lm: NGramLM) -> NGramLM:
    if not args.quantize:
        return lm
    with timed_step(f"quantize to {args.quantize} bits"):
        return lm.quantize(args.quantize)


def run_prune(args: argparse.Namespace) -> None:
    """Prunes and writes.

    Raises:
        ValueError: nothing to do, or numbers out of range.
        OSError: a file that cannot be read or written.
    """
    check_output(args.output)
    kept = None if args.keep_ids is None else np.concatenate(read_sequences(args.keep_ids, None))
    lm = _read_lm(args.lm)
    with timed_step("prune"):
        options = pick(args, ("theta", "prune_to", "min_counts", "threads"))
        small = lm.prune(keep_ids=kept, **options)
    small = _quantize(args, small)
    with timed_step(f"write {args.output}"):
        convert.write_lm(small, args.output)
    total = sum(small.num_ngrams)
    print(
        f"{args.output}: {total:,} of {sum(lm.num_ngrams):,} n-grams, "
        + " + ".join(f"{count:,}" for count in small.num_ngrams)
    )
    if args.prune_to is not None:
        counted = small.num_prunable
        print(
            f"--prune-to {args.prune_to:,}: {counted:,} n-grams, and {total - counted:,} symbols "
            "without a probability of their own"
        )


def run_merge(args: argparse.Namespace) -> None:
    """Interpolates and writes.

    Raises:
        ValueError: vocabularies that differ, or not exactly one of --weights and --heldout.
        OSError: a file that cannot be read or written.
    """
    if (args.weights is None) == (args.heldout is None):
        raise ValueError("ngram merge: expected either --weights or --heldout")
    check_output(args.output)
    lms = [_read_lm(path) for path in args.lms]
    weights = args.weights
    if weights is None:
        with timed_step("tune weights"):
            heldout = read_sequences(args.heldout, args.tokenizer)
            weights = NGramLM.tune_weights(lms, heldout, threads=args.threads)
    with timed_step("interpolate"):
        mixed = NGramLM.interpolate(lms, weights=weights, threads=args.threads)
    convert.write_lm(mixed, args.output)
    shares = ", ".join(
        f"{w / sum(weights):.4f} {p.name}" for w, p in zip(weights, args.lms, strict=True)
    )
    print(f"{args.output}: {sum(mixed.num_ngrams):,} n-grams; weights {shares}")


def run_convert(args: argparse.Namespace) -> None:
    """Converts.

    Raises:
        ValueError: options that do not fit the format.
        OSError: a file that cannot be read or written.
    """
    check_output(args.output)
    with print_notes(), timed_step(f"read {args.input}"):
        lm = convert.read_lm(args.input, **pick(args, _READING))
    lm = _quantize(args, lm)
    with timed_step(f"write {args.output}"):
        convert.write_lm(lm, args.output, to=args.to, vocab=args.vocab)
    print(f"{args.output}: {lm!r}, {args.output.stat().st_size:,} bytes")


def run_info(args: argparse.Namespace) -> None:
    """Describes LM files.

    Raises:
        ValueError: a file that is not an LM, or is damaged.
        OSError: a file that cannot be read.
    """
    for path in args.lms:
        info = convert.describe_lm(path)
        if args.json:
            numbers = {"bytes_per_ngram": info.bytes_per_ngram, "num_ngrams": info.num_ngrams}
            print(json.dumps({"path": str(path), **numbers, **dataclasses.asdict(info)}))
        else:
            print(f"{path}: {path.stat().st_size:,} bytes")
            print("\n".join(info.lines()))


def run_evaluate(args: argparse.Namespace) -> None:
    """Scores a text by LMs.

    Raises:
        ValueError: token ids outside an LM's vocabulary.
        OSError: a file that cannot be read.
    """
    from lattice_bpd.lm.training import compare_lines

    sequences = read_sequences(args.text, args.tokenizer)
    scores = {}
    for path in args.lms:
        lm = _read_lm(path)
        with timed_step(f"score by {path}"):
            scores[str(path)] = lm.evaluate(sequences, **pick(args, ("bos", "eos", "threads")))
    if not args.json:
        print("\n".join(compare_lines(scores)))
        return
    for name, score in scores.items():
        values = {"perplexity": score.perplexity, **dataclasses.asdict(score)}
        del values["log_prob"]
        print(json.dumps({"lm": name, **values}))
