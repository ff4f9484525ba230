"""Progress callbacks of long operations; `lattice_bpd.cli.progress` displays them."""

from __future__ import annotations


class Watcher:
    """Receives the progress of an operation; this one ignores it."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """Starts a stage, such as "text" or "training", of `total` steps (None: unknown)."""

    def advance(self, total: int | None = None, note: str = "", share: float | None = None) -> None:
        """Counts one finished step; `share` of the time is over (0: that of the steps)."""

    def end(self) -> None:
        """Ends the stage."""
