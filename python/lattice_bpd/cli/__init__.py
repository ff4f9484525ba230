"""The command line: `lattice-bpd COMMAND`, see `build_parser` for the list.

One file for each command. Other distributions add commands by entry points (`extensions.py`).

Nothing heavy is imported until a command runs, so that --help is fast.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lattice_bpd.cli import build, generate, ngram
from lattice_bpd.extensions import add_commands

_USER_ERROR = 2
_INTERRUPTED = 130


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    from lattice_bpd import __version__

    parser = argparse.ArgumentParser(
        prog="lattice-bpd",
        description="Blockwise parallel decoding with drafts rescored through a top-k lattice and "
        "an n-gram LM: the target model's greedy output in fewer calls of it.",
        epilog="Begin with: lattice-bpd generate MODEL --prompt TEXT",
    )
    parser.add_argument("--version", action="version", version=f"lattice-bpd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (build, generate, ngram):
        command.add_parser(commands)
    add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; sys.argv's when None.

    Returns:
        Exit status: 0; 2 for user errors (one line on stderr); 130 after an interrupt or SIGTERM,
        which leave no temporary files, and existing outputs unchanged.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what the console's encoding lacks is escaped
            stream.reconfigure(errors="backslashreplace")
    # Before torch loads: spinning OpenMP threads of two processes starve each other.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with _interrupted_by_sigterm():
            args = _parse(sys.argv[1:] if argv is None else argv)
            args.run(args)
    except (ValueError, OSError, ImportError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _lacks_memory(error):
            raise
        print(f"lattice-bpd: error: {_describe(error)}", file=sys.stderr)
        return _USER_ERROR
    except KeyboardInterrupt:
        print("lattice-bpd: interrupted", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _lacks_memory(error: RuntimeError) -> bool:
    """Whether torch found no memory."""
    if "torch" not in sys.modules:
        return False
    from lattice_bpd.verify.memory import is_lack_of_memory

    return is_lack_of_memory(error)


def _describe(error: Exception) -> str:
    """The message of an error, without the number of a system's error."""
    if isinstance(error, (MemoryError, RuntimeError)):
        return str(error).split("\n")[0] or "out of memory; expected more of it, or smaller inputs"
    if not isinstance(error, OSError) or error.errno is None or error.filename is None:
        return str(error)
    system = os.strerror(error.errno)
    if not str(error.strerror).endswith(system):
        is_whole = str(error.filename) in str(error.strerror)
        return str(error.strerror if is_whole else error)
    reasons = {
        errno.ENOENT: "no such file or folder; check the path",
        errno.EISDIR: "is a folder; expected a file",
        errno.EACCES: "permission denied; change its permissions, or give another path",
    }
    return f"{error.filename}: {reasons.get(error.errno, system)}"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command; unknown ones are an error with that command's usage."""
    parser = build_parser()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        for word in argv:
            for action in parser._actions:  # argparse has no public way to its subparsers
                if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                    parser = action.choices[word]
        options = [name for action in parser._actions for name in action.option_strings]
        close = difflib.get_close_matches(unknown[0].partition("=")[0], options, n=1, cutoff=0.75)
        hint = f"; did you mean {close[0]}" if close else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return args


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM is KeyboardInterrupt, after which commands save what they have."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
