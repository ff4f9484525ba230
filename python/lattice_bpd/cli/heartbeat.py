"""Periodic lines with time and memory during long calls of the core."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import TracebackType

_INTERVAL = 10.0  # seconds


class Heartbeat:
    """Prints a line on stderr every ten seconds: "prune: 20 s, 1.2 GB of memory".

    Args:
        name: name of the step.
        interval: seconds between lines.
    """

    def __init__(self, name: str, interval: float = _INTERVAL) -> None:
        self._name, self._interval = name, interval
        self._start = self._last = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def delay(self) -> None:
        """Restarts the interval, after another line was printed."""
        self._last = time.monotonic()

    def _run(self) -> None:
        while not self._stopped.wait(max(self._last + self._interval - time.monotonic(), 0.01)):
            now = time.monotonic()
            if now < self._last + self._interval:
                continue
            self._last = now
            line = f"{self._name}: {now - self._start:,.0f} s, {describe_memory()}"
            print(line, file=sys.stderr, flush=True)


def describe_memory() -> str:
    """The resident memory of this process, such as "1.2 GB of memory"."""
    return f"{memory_in_use() / 1e9:.1f} GB of memory"


def memory_in_use() -> int:
    """Resident memory of this process in bytes; 0 if unknown."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) * 1024 if sizes else 0
