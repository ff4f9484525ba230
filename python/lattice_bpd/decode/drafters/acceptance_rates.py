"""How often draft tokens are kept, learned while decoding."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_bpd import _core

_FORGET = 0.99  # what counts keep from one step to the next
_BEFORE = 1.0  # tokens of a Rate that were right, and as many that were wrong, before any was seen


class Calibration(_core.Calibration):
    """Learns how often nodes of a tree are kept, by the probability that the tree gives them.

    Heads and LM are too sure of themselves, or not sure enough, and each model in its own way. Old
    trees fade.

        calibration.probabilities(log_probs)   (N,) falling, from (N,) float32 falling natural logs:
                                               the probability that each node is kept
        calibration.expected(log_probs)        (N,) rising: tokens that the first 1, 2, .. nodes are
                                               expected to keep
        calibration.add(log_probs, kept)       one verified tree; (N,) bool, what was kept
    """


@dataclass
class Rate:
    """How often tokens of one kind of chain were right, those behind a wrong one not counted."""

    right: float = 0.0
    tried: float = 0.0

    @property
    def value(self) -> float:
        """(right + 1) / (tried + 2)."""
        return (self.right + _BEFORE) / (self.tried + 2.0 * _BEFORE)

    def add(self, right: int, tried: int) -> None:
        """So many tokens tried, and the right ones among them; old ones fade by 1 % each time."""
        self.right, self.tried = _FORGET * self.right + right, _FORGET * self.tried + tried
