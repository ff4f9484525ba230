"""`lattice-bpd ngram merge`: interpolates several LMs into one."""

from __future__ import annotations

import argparse
from pathlib import Path

from lattice_bpd.cli.ngram_options import (
    add_lm_options,
    add_text_option,
    add_threads_option,
    parse_numbers,
    read_lm_of,
    read_sequences,
    timed_step,
)

_EXAMPLE = """examples:
  lattice-bpd ngram merge general.lm domain.lm --heldout domain-dev.ids -o mixed.lm
  lattice-bpd ngram merge general.lm domain.lm --weights 0.3,0.7 -o mixed.lm
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action `merge`."""
    parser = actions.add_parser(
        "merge",
        help="interpolate LMs into one",
        description="Interpolate LMs of one vocabulary linearly and write the mixture as one "
        "backoff LM; weights are given, or tuned by EM on a held-out text.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LM")
    parser.add_argument("--weights", type=parse_numbers, metavar="W1,W2,..")
    add_text_option(parser, "--heldout", "text to tune the weights on", required=False)
    add_lm_options(parser)
    add_threads_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Interpolate and write.

    Raises:
        ValueError: vocabularies that differ, or not exactly one of --weights and --heldout.
        OSError: a file that cannot be read or written.
    """
    from lattice_bpd.cli.files import check_output
    from lattice_bpd.lm.convert import write_lm
    from lattice_bpd.lm.ngram import NGramLM

    if (args.weights is None) == (args.heldout is None):
        raise ValueError("ngram merge: expected either --weights or --heldout")
    check_output(args.output)
    lms = [read_lm_of(args, path) for path in args.lms]
    weights = args.weights
    if weights is None:
        with timed_step("tune weights"):
            heldout = read_sequences(args.heldout, args.tokenizer)
            weights = NGramLM.tune_weights(lms, heldout, threads=args.threads)
    with timed_step("interpolate"):
        mixed = NGramLM.interpolate(lms, weights=weights, threads=args.threads)
    write_lm(mixed, args.output, vocab=args.vocab)
    shares = ", ".join(
        f"{w / sum(weights):.4f} {p.name}" for w, p in zip(weights, args.lms, strict=True)
    )
    print(f"{args.output}: {sum(mixed.num_ngrams):,} n-grams; weights {shares}")
