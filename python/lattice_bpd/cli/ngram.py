"""`lattice-bpd ngram ...`: the commands that make, change and describe n-gram LMs."""

from __future__ import annotations

import argparse

from lattice_bpd.cli import (
    ngram_convert,
    ngram_count,
    ngram_distil,
    ngram_evaluate,
    ngram_info,
    ngram_merge,
    ngram_prune,
    ngram_train,
)

_ACTIONS = (
    ngram_train,
    ngram_count,
    ngram_distil,
    ngram_prune,
    ngram_merge,
    ngram_convert,
    ngram_info,
    ngram_evaluate,
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `ngram` and what is below it."""
    group = commands.add_parser("ngram", help="train n-gram LMs", description="N-gram LMs.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    for module in _ACTIONS:
        module.add_parser(actions)
