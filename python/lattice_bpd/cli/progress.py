"""Progress display: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.heartbeat import describe_memory
from lattice_bpd.extensions import require

if TYPE_CHECKING:
    from rich.console import Console

LINE_INTERVAL = 10.0  # seconds between lines without a terminal


def make_console(*, no_color: bool = False) -> Console:
    """A `rich` console that honors NO_COLOR; 110 columns wide without a terminal.

    Args:
        no_color: never use colors.

    Raises:
        ImportError: `rich` is not installed (extra `train`).
    """
    console: Console = require("rich.console", "train").Console(
        highlight=False, soft_wrap=True, no_color=no_color or None
    )
    if not console.is_terminal:
        console.width = 110
    return console


def quiet_transformers() -> None:
    """Disables transformers' progress bars and warnings."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging = require("transformers", "torch").utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()


class ConsoleWatcher:
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
        self._bar = make_bar(
            self.console,
            ["SpinnerColumn", "{task.description}", "BarColumn", "MofNCompleteColumn",
             "{task.fields[rate]}", "TimeRemainingColumn", "{task.fields[memory]}",
             "{task.fields[note]}"],
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=total, rate="", memory="", note="")

    def advance(self, total: int | None = None, note: str = "") -> None:
        """Counts one finished step."""
        self._done += 1
        self._total = total or self._total
        now = time.perf_counter()
        rate = f"{self._done / max(now - self._start, 1e-9):.1f}/s"
        if self._bar is not None:
            shown = {"rate": rate, "memory": describe_memory(), "note": note}
            self._bar.update(self._task, advance=1, total=self._total, **shown)
        elif now - self._last >= LINE_INTERVAL:
            self._last = now
            left = (self._total - self._done) * (now - self._start) / self._done
            progress = (
                f" of {self._total:,}, {rate}, {left:.0f} s left" if self._total else f", {rate}"
            )
            self.console.print(f"  {self._done:,}{progress}, {describe_memory()}  {note}".rstrip())

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


def make_bar(console: Console, columns: Sequence[str]) -> Any:
    """A transient progress bar.

    Args:
        console: the console.
        columns: class names of `rich.progress`, or formats of text columns.
    """
    progress = require("rich.progress", "train")

    def make_column(name: str) -> Any:
        if "{" in name:
            return progress.TextColumn(name)
        return (
            progress.BarColumn(bar_width=24) if name == "BarColumn" else getattr(progress, name)()
        )

    return progress.Progress(*map(make_column, columns), console=console, transient=True)
