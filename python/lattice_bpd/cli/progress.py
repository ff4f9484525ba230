"""Progress display: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.extensions import require
from lattice_bpd.watcher import Watcher

if TYPE_CHECKING:
    from rich.console import Console

LINE_INTERVAL = 10.0  # seconds between lines


def make_console() -> Console:
    """A `rich` console that honors NO_COLOR; 110 columns wide without a terminal.

    Raises:
        ImportError: `rich` is not installed (extra `train`).
    """
    console: Console = require("rich.console", "train").Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 110
    return console


def quiet_transformers() -> None:
    """Disables transformers' progress bars and warnings."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging = require("transformers", "torch").utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()


class ConsoleWatcher(Watcher):
    """Displays stages one after another; see `lattice_bpd.watcher.Watcher`.

    Args:
        console: the console to print on.
        titles: titles of stages by name.
    """

    def __init__(self, console: Console, titles: dict[str, str]) -> None:
        self.console, self.titles = console, titles
        self._bar: Any = None
        self._task: Any = None
        self._title, self._done, self._total = "", 0, 0
        self._start = self._last = 0.0

    def begin(self, stage: str, total: int | None = None) -> None:
        """Starts a stage."""
        self._title = self.titles.get(stage, stage)
        self._done, self._total = 0, total or 0
        self._start = self._last = time.perf_counter()
        if not self.console.is_terminal:
            self.console.print(f"{self._title} ...")
            return
        rich = require("rich.progress", "train")
        self._bar = rich.Progress(
            rich.SpinnerColumn(), "{task.description}", rich.BarColumn(bar_width=24),
            rich.MofNCompleteColumn(), "{task.fields[state]}", console=self.console, transient=True,
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=total, state="")

    def advance(self, total: int | None = None, note: str = "", share: float | None = None) -> None:
        """Counts one finished step; see Watcher."""
        self._done += 1
        self._total = total or self._total
        now = time.perf_counter()
        if self._bar is None and now - self._last < LINE_INTERVAL:
            return
        self._last, seconds = now, now - self._start
        share = share or self._done / (self._total or self._done)
        left = f", {seconds * (1 / share - 1):.0f} s left" if self._total else ""
        rate = self._done / max(seconds, 1e-9)
        state = f"{rate:.1f}/s{left}, {describe_memory()}  {note}".rstrip()
        if self._bar is not None:
            known = self._total or None
            self._bar.update(self._task, completed=self._done, total=known, state=state)
        else:
            of_all = f" of {self._total:,}" if self._total else ""
            self.console.print(f"  {self._done:,}{of_all}, {state}")

    def end(self) -> None:
        """Ends the stage."""
        seconds = time.perf_counter() - self._start
        self.close()
        rate = f" ({self._done / seconds:.1f}/s)" if self._done and seconds else ""
        self.console.print(f"{self._title}: {seconds:.1f} s{rate}")

    def close(self) -> None:
        """Removes the bar, also in the middle of a stage."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def describe_memory() -> str:
    """The resident memory of this process, such as "1.2 GB of memory"."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        status = ""  # unknown: 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return f"{sum(map(int, sizes)) * 1024 / 1e9:.1f} GB of memory"


@contextmanager
def timed_step(name: str) -> Iterator[None]:
    """Prints a step's name on stderr, and every ten seconds and at its end time and memory."""
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    start, has_ended = time.perf_counter(), threading.Event()

    def show() -> None:
        seconds = time.perf_counter() - start
        print(f"{seconds:,.1f} s, {describe_memory()}", file=sys.stderr, flush=True)

    def show_often() -> None:
        while not has_ended.wait(LINE_INTERVAL):
            show()

    thread = threading.Thread(target=show_often, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        show()


class CorpusWatcher(ConsoleWatcher):
    """Displays on stderr how a corpus is read; then, while the core works on, time and memory."""

    def __init__(self) -> None:
        super().__init__(_open_stderr(), {"text": "text (MiB)"})
        self._steps = ExitStack()

    def end(self) -> None:
        """Ends the stage."""
        super().end()
        self._steps.enter_context(timed_step("merge and estimate"))

    def close(self) -> None:
        """Ends all output."""
        super().close()
        self._steps.close()


class _Lines:
    """Stands for a `rich` console where there is none, or no terminal."""

    is_terminal = False

    def print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def _open_stderr() -> Any:
    """The console of a terminal on stderr, if `rich` is installed; else lines."""
    if sys.stderr.isatty():
        with suppress(ImportError):
            return require("rich.console", "train").Console(stderr=True, highlight=False)
    return _Lines()
