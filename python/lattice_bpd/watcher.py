"""Who is told how long work goes on; `lattice_bpd.cli.progress` shows it to people."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Is told how a run goes on."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """A stage of `total` parts begins, such as "text" or "training"; None: nobody knows."""

    def advance(self, total: int | None = None, note: str = "") -> None:
        """A part is done."""

    def end(self) -> None:
        """The stage is over."""


class SilentWatcher:
    """Tells nobody."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """See Watcher."""

    def advance(self, total: int | None = None, note: str = "") -> None:
        """See Watcher."""

    def end(self) -> None:
        """See Watcher."""
