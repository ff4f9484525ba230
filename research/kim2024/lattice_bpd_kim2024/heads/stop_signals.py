"""Deferred Ctrl-C and SIGTERM for work that stops between steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Records the first Ctrl-C or SIGTERM; a second one takes effect at once.

    Args:
        patient: ignore a second one. torchrun forwards signals that its processes have already
            received from the terminal, and kills processes that do not stop.

    Inside the `with` block, check `caught` between steps; after it, `deliver` raises the signal
    again. Only the main thread records signals.

    Attributes:
        caught: the signal's number, or None.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.caught: int | None = None
        self._patient = patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def deliver(self) -> None:
        """Raises the recorded signal again; call it outside the `with` block.

        Raises:
            KeyboardInterrupt: after Ctrl-C, or a signal to another process.
        """
        if self.caught is not None:
            signal.raise_signal(self.caught)
        raise KeyboardInterrupt

    def _record(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.caught = number
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
