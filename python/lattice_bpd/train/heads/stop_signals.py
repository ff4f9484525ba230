"""Ctrl-C and SIGTERM during long work that first wants to reach a place where it can stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignals:
    """Notes the first Ctrl-C or SIGTERM instead of stopping at once; a second one stops at once.

    Args:
        patient: a second one does nothing. torchrun passes signals on that its processes have had
            from the terminal already, and ends by itself what does not stop.

    Inside the `with` block look at `caught` between steps; after it, `deliver` does what the signal
    would have done. In threads other than the main one nothing is noted.

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
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def deliver(self) -> None:
        """Stop as the signal asked; outside the `with` block.

        Raises:
            KeyboardInterrupt: a Ctrl-C, or the signal of another process.
        """
        if self.caught is not None:
            signal.raise_signal(self.caught)
        raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.caught = number
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler)
