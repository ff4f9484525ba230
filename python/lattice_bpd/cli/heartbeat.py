"""Signs of life from steps that are one call of the core: time and memory, now and then."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import TracebackType

_EVERY = 10.0  # seconds


class Heartbeat:
    """Says on stderr every ten seconds that a step goes on: "prune: 20 s, 1.2 GB of memory".

    Args:
        name: of the step.
        every: seconds between lines.
    """

    def __init__(self, name: str, every: float = _EVERY) -> None:
        self._name, self._every = name, every
        self._start = self._beaten = time.monotonic()
        self._over = threading.Event()
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
        self._over.set()
        self._thread.join()

    def delay(self) -> None:
        """Something else has just been said: the next line comes that much later."""
        self._beaten = time.monotonic()

    def _run(self) -> None:
        while not self._over.wait(max(self._beaten + self._every - time.monotonic(), 0.01)):
            now = time.monotonic()
            if now < self._beaten + self._every:
                continue
            self._beaten = now
            line = f"{self._name}: {now - self._start:,.0f} s, {describe_memory()}"
            print(line, file=sys.stderr, flush=True)


def describe_memory() -> str:
    """What this process has in memory now, such as "1.2 GB of memory"."""
    return f"{memory_in_use() / 1e9:.1f} GB of memory"


def memory_in_use() -> int:
    """Bytes of memory that this process has in use; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(sizes[0]) * 1024 if sizes else 0
