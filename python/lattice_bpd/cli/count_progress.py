"""Progress of counting on stderr: a `rich` bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from lattice_bpd.cli.heartbeat import Heartbeat, describe_memory
from lattice_bpd.cli.progress import LINE_INTERVAL, make_bar
from lattice_bpd.extensions import require
from lattice_bpd.train import CountingProgress

_BAR_INTERVAL = 0.1  # seconds


class CountingWatcher:
    """Displays tokens, rate, time left and memory; call it with each CountingProgress.

    While the core merges or estimates, a heartbeat prints time and memory instead.
    """

    def __init__(self) -> None:
        self._heartbeat = Heartbeat("merge and estimate")
        self._start = self._last = time.monotonic()
        self._bar = _make_bar() if sys.stderr.isatty() else None
        self._task: Any = None

    def __enter__(self) -> CountingWatcher:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        self._heartbeat.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._heartbeat.__exit__(kind, error, traceback)
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: CountingProgress) -> None:
        """Displays the progress, at most once per interval."""
        now = time.monotonic()
        self._heartbeat.delay()
        if now - self._last < (_BAR_INTERVAL if self._bar is not None else LINE_INTERVAL):
            return
        self._last = now
        line = describe(progress, now - self._start)
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.update(
                self._task,
                description=line,
                completed=progress.bytes_done,
                total=progress.bytes_total,
            )


def describe(progress: CountingProgress, seconds: float) -> str:
    """One line, such as "12,000,000 tokens, 1,500,000/s, 40 s left, 1.2 GB of memory"."""
    parts = [
        f"{progress.num_tokens:,} tokens",
        f"{progress.num_tokens / max(seconds, 1e-9):,.0f}/s",
    ]
    total, done = progress.bytes_total, progress.bytes_done
    if total and done:
        parts.append(f"{seconds * max(total - done, 0) / done:,.0f} s left")
    parts.append(describe_memory())
    if progress.num_runs:
        parts.append(f"{progress.num_runs} runs of {progress.spilled_bytes / 1e9:.2f} GB on disk")
    return ", ".join(parts)


def _make_bar() -> Any:
    """A rich progress bar on stderr, or None without rich."""
    try:
        console = require("rich.console", "train").Console(stderr=True)
    except ImportError:
        return None
    return make_bar(console, ["SpinnerColumn", "BarColumn", "{task.description}"])
