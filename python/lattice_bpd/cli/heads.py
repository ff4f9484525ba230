"""`lattice-bpd heads ...`: commands on prediction heads."""

from __future__ import annotations

import argparse

from lattice_bpd.cli import heads_train

_ACTIONS = (heads_train,)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command `heads` and its actions."""
    group = commands.add_parser("heads", help="train prediction heads", description="Heads.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    for module in _ACTIONS:
        module.add_parser(actions)
