"""`lattice-bpd ngram ...`: commands on n-gram LMs."""

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
from lattice_bpd.extensions import add_commands

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
    """Adds the command `ngram` and its actions."""
    group = commands.add_parser("ngram", help="train n-gram LMs", description="N-gram LMs.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    for module in _ACTIONS:
        module.add_parser(actions)
    add_commands(actions, "ngram")
