"""Progress for people: bars with rates on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from lattice_bpd.cli.heartbeat import describe_memory
from lattice_bpd.extras import require

if TYPE_CHECKING:
    from rich.console import Console

_LINE_EVERY = 10.0  # seconds between lines where there is no terminal


def make_console(*, no_color: bool = False) -> Console:
    """A `rich` console; NO_COLOR is honored, and files get lines wide enough for the table.

    Args:
        no_color: no colors on a terminal either.

    Raises:
        ImportError: `rich` is missing (extra `train`).
    """
    console: Console = require("rich.console", "train").Console(
        highlight=False, soft_wrap=True, no_color=no_color or None
    )
    if not console.is_terminal:
        console.width = 110
    return console


def quiet_transformers() -> None:
    """Keep transformers' own progress bars and advice off the screen."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging = require("transformers", "torch").utils.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()


class ConsoleWatcher:
    """Shows stages one after the other; see `lattice_bpd.watcher.Watcher`.

    Args:
        console: where to.
        titles: what to call each stage.
    """

    def __init__(self, console: Console, titles: dict[str, str]) -> None:
        self.console, self.titles = console, titles
        self._bar: Any = None
        self._task: Any = None
        self._title, self._done, self._total = "", 0, 0
        self._start = self._last = 0.0

    def begin(self, stage: str, total: int | None = None) -> None:
        """A stage begins."""
        self._title = self.titles.get(stage, stage)
        self._done, self._total = 0, total or 0
        self._start = self._last = time.perf_counter()
        if not self.console.is_terminal:
            self.console.print(f"{self._title} ...")
            return
        self._bar = _make_bar(self.console)
        self._bar.start()
        self._task = self._bar.add_task(self._title, total=total, rate="", memory="", note="")

    def advance(self, total: int | None = None, note: str = "") -> None:
        """A step is done."""
        self._done += 1
        self._total = total or self._total
        now = time.perf_counter()
        rate = f"{self._done / max(now - self._start, 1e-9):.1f}/s"
        if self._bar is not None:
            shown = {"rate": rate, "memory": describe_memory(), "note": note}
            self._bar.update(self._task, advance=1, total=self._total, **shown)
        elif now - self._last >= _LINE_EVERY:
            self._last = now
            left = (self._total - self._done) * (now - self._start) / self._done
            known = (
                f" of {self._total:,}, {rate}, {left:.0f} s left" if self._total else f", {rate}"
            )
            self.console.print(f"  {self._done:,}{known}, {describe_memory()}  {note}".rstrip())

    def end(self) -> None:
        """The stage is over."""
        seconds = time.perf_counter() - self._start
        self.close()
        rate = f" ({self._done / seconds:.1f}/s)" if self._done and seconds else ""
        self.console.print(f"{self._title}: {seconds:.1f} s{rate}")

    def close(self) -> None:
        """Give the terminal back, also in the middle of a stage."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _make_bar(console: Console) -> Any:
    progress = require("rich.progress", "train")
    return progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[memory]}"),
        progress.TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    )
