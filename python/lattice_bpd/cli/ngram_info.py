"""`lattice-bpd ngram info`: what an LM file is made of."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

_EXAMPLE = """example:
  lattice-bpd ngram info corpus.lm
"""


def add_parser(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the action `info`."""
    parser = actions.add_parser(
        "info",
        help="orders, bytes, quantisation errors, checksums",
        description="Say what an LM file is made of; all checksums are compared.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM", help="LM file")
    parser.add_argument("--json", action="store_true", help="a JSON line for each LM")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print.

    Raises:
        ValueError: a file that is no LM, cut or altered.
        OSError: a file that cannot be read.
    """
    from lattice_bpd.lm.info import describe_lm

    for path in args.lms:
        info = describe_lm(path)
        if args.json:
            numbers = {"bytes_per_ngram": info.bytes_per_ngram, "num_ngrams": info.num_ngrams}
            print(json.dumps({"path": str(path), **numbers, **dataclasses.asdict(info)}))
        else:
            print(f"{path}: {path.stat().st_size:,} bytes")
            print("\n".join(info.lines()))
