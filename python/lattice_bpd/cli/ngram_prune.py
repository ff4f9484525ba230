"""`lattice-bpd ngram prune`: a smaller LM from an LM."""

from __future__ import annotations

import argparse
from pathlib import Path

from lattice_bpd.cli.ngram_options import (
    add_lm_options,
    add_quantise_option,
    add_threads_option,
    parse_numbers,
    parse_size,
    quantise_if_requested,
    read_lm_of,
    timed_step,
)

_EXAMPLE = """examples:
  lattice-bpd ngram prune corpus.lm --prune-to 100M -o small.lm
  lattice-bpd ngram prune corpus.lm --theta 1e-8 --quantise 8 -o small.lm
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action `prune`."""
    parser = actions.add_parser(
        "prune",
        help="drop the n-grams that matter least",
        description="Prune an LM; backoff weights are computed again, sums stay 1.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lm", type=Path, metavar="LM", help="LM file, ARPA or OpenFst")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LM")
    parser.add_argument(
        "--theta",
        type=float,
        help="drop n-grams that raise perplexity by less "
        "than this share (Stolcke's relative entropy)",
    )
    parser.add_argument(
        "--prune-to",
        type=parse_size,
        metavar="N",
        help="the same, until at most N n-grams are left (100M, 500k); symbols without a "
        "probability of their own (<s>, unseen tokens) stay too and do not count",
    )
    parser.add_argument(
        "--min-counts",
        type=parse_numbers,
        metavar="C1,C2,..",
        help="drop n-grams whose estimated count is lower, for each order",
    )
    parser.add_argument(
        "--keep-ids",
        type=Path,
        metavar="FILE",
        help="drop n-grams with token ids that this file does not list",
    )
    add_quantise_option(parser)
    add_lm_options(parser)
    add_threads_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Prune and write.

    Raises:
        ValueError: nothing to do, or numbers out of range.
        OSError: a file that cannot be read or written.
    """
    from lattice_bpd.cli.files import check_output, read_token_ids
    from lattice_bpd.lm.convert import write_lm

    check_output(args.output)
    kept = None if args.keep_ids is None else read_token_ids(args.keep_ids)
    counts = None if args.min_counts is None else [int(count) for count in args.min_counts]
    lm = read_lm_of(args, args.lm)
    with timed_step("prune"):
        small = lm.prune(
            theta=args.theta,
            prune_to=args.prune_to,
            min_counts=counts,
            keep_ids=kept,
            threads=args.threads,
        )
    small = quantise_if_requested(args, small)
    with timed_step(f"write {args.output}"):
        write_lm(small, args.output, vocab=args.vocab)
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
