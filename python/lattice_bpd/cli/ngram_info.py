"""`lattice-bpd ngram info`: a description of LM files."""

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
        help="orders, bytes, quantization errors, checksums",
        description="Describe LM files and verify their checksums.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lms", type=Path, nargs="+", metavar="LM", help="LM file")
    parser.add_argument("--json", action="store_true", help="one JSON line per LM")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print.

    Raises:
        ValueError: a file that is not an LM, or is damaged.
        OSError: a file that cannot be read.
    """
    from lattice_bpd.lm.convert import describe_lm

    for path in args.lms:
        info = describe_lm(path)
        if args.json:
            numbers = {"bytes_per_ngram": info.bytes_per_ngram, "num_ngrams": info.num_ngrams}
            print(json.dumps({"path": str(path), **numbers, **dataclasses.asdict(info)}))
        else:
            print(f"{path}: {path.stat().st_size:,} bytes")
            print("\n".join(info.lines()))
