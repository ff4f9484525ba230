"""What the commands that train models have in common: options of a run, and running it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

    from lattice_bpd.cli.progress import ConsoleWatcher

Result = TypeVar("Result")


def add_run_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds logging, checkpoints, resuming, device and threads; returns their group."""
    group = parser.add_argument_group("run")
    add = group.add_argument
    add("--log-every", type=int, default=10, metavar="N", help="steps (default 10)")
    add("--checkpoint-every", type=int, default=200, metavar="N",
        help="steps (default 200); 0: only when a signal stops the run")  # fmt: skip
    resume = group.add_mutually_exclusive_group()
    resume.add_argument("--resume", action="store_true", default=None,
                        help="expect a run to resume (default: if there is one)")  # fmt: skip
    resume.add_argument("--restart", action="store_true", help="remove an earlier run in DIR")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")
    add("--threads", type=int, default=0, metavar="N", help="of the CPU (default: torch's choice)")
    return group


def run_training(
    args: argparse.Namespace,
    titles: Mapping[str, str],
    train: Callable[[ConsoleWatcher], Result],
    show: Callable[[Console, Result], None],
) -> None:
    """Trains with progress on the console, and prints the result.

    Args:
        args: parsed options, `threads` and `output` among them.
        titles: of the stages.
        train: runs the job.
        show: prints its result.

    Raises:
        ValueError: bad input or options.
        OSError: a file that cannot be read or written.
        ImportError: an extra is missing.
    """
    from lattice_bpd.cli.progress import ConsoleWatcher, make_console, quiet_transformers

    quiet_transformers()
    import torch

    if args.threads < 0:
        raise ValueError(f"--threads is {args.threads}; expected 0 or more")
    if args.threads:
        torch.set_num_threads(args.threads)
    console = make_console()
    with closing(ConsoleWatcher(console, dict(titles))) as watcher:
        try:
            result = train(watcher)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
                print(f"{args.output}: run the same command again to resume", file=sys.stderr)
            raise
    show(console, result)
