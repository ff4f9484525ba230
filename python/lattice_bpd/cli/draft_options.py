"""Command-line options for the fields of DraftConfig."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from lattice_bpd.draft.config import STRATEGIES, DraftConfig, check_used


def add_draft_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Adds an option for each named field, with its description and default.

    An option that is left out is None, except for the strategy; see `read_draft_options`.

    Args:
        parser: the command's; `list_strategies` belongs in its epilog.
        names: fields of DraftConfig.
    """
    for name in names:
        default = getattr(DraftConfig, name)
        # The class documents what None means; here such an option is left out.
        text = DraftConfig.describe(name).rstrip(".").replace("None: ", "default ")
        options: dict[str, Any] = {}
        if name == "strategy":
            text, options["choices"] = "how to draft, see below", tuple(STRATEGIES)
            options["default"] = default
            options["metavar"] = "NAME"
        elif name == "sources":
            options.update(type=lambda value: tuple(value.split(",")), metavar="A,B,..")
        elif name == "max_nodes":
            options.update(type=_nodes, metavar="N")
        else:
            options["type"] = float if isinstance(default, float) else int
            options["metavar"] = "X" if isinstance(default, float) else "N"
        if default is not None:
            number = f"{default:g}" if isinstance(default, float) else default
            text = f"{text} (default {number})"
        options["help"] = text.replace("%", "%%")
        parser.add_argument(f"--{name.replace('_', '-')}", **options)


def _nodes(value: str) -> int | str:
    return value if value == "auto" else int(value)


def read_draft_options(where: str, args: argparse.Namespace, names: Sequence[str]) -> DraftConfig:
    """The config that the options of `add_draft_options` describe.

    Args:
        where: the command's name, for error messages.
        args: parsed arguments.
        names: as given to `add_draft_options`.

    Raises:
        ValueError: an option out of range, or not used by the strategy.
    """
    given = {name: getattr(args, name) for name in names if name != "strategy"}
    given = {name: value for name, value in given.items() if value is not None}
    config = DraftConfig.make(where, args.strategy, given)
    check_used(where, config.strategy, given)
    return config


def list_strategies() -> str:
    """A line for each strategy: its name and what it drafts."""
    width = max(map(len, STRATEGIES))
    return "\n".join(f"  {name:<{width}}  {info.summary}" for name, info in STRATEGIES.items())
