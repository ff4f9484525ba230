"""`lattice-bpd ngram evaluate`: compares LMs on a text."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lattice_bpd.cli.ngram_options import (
    add_lm_options,
    add_text_option,
    add_threads_option,
    read_lm_of,
    read_sequences,
    timed_step,
)

_EXAMPLE = """example:
  lattice-bpd ngram evaluate katz.lm pruned.lm --text heldout.ids
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action `evaluate`."""
    parser = actions.add_parser(
        "evaluate",
        help="perplexity, unknown tokens, hits by order",
        description="Score a text by one LM or several side by side. Unknown tokens (without a "
        "probability of their own) are counted and left out of the perplexity.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM")
    add_text_option(parser, "--text", "text to score", required=True)
    parser.add_argument("--no-bos", action="store_true", help="no <s> before a sequence")
    parser.add_argument("--no-eos", action="store_true", help="do not score </s>")
    parser.add_argument("--json", action="store_true", help="one JSON line per LM")
    add_lm_options(parser)
    add_threads_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Score and print.

    Raises:
        ValueError: token ids outside an LM's vocabulary.
        OSError: a file that cannot be read.
    """
    from lattice_bpd.lm.training import compare_lines

    sequences = read_sequences(args.text, args.tokenizer)
    scores = {}
    for path in args.lms:
        lm = read_lm_of(args, path)
        with timed_step(f"score by {path}"):
            scores[str(path)] = lm.evaluate(
                sequences, bos=not args.no_bos, eos=not args.no_eos, threads=args.threads
            )
    if not args.json:
        print("\n".join(compare_lines(scores)))
        return
    for name, score in scores.items():
        print(
            json.dumps(
                {
                    "lm": name,
                    "perplexity": score.perplexity,
                    "tokens": score.tokens,
                    "unknown": score.unknown,
                    "hits": score.hits,
                }
            )
        )
