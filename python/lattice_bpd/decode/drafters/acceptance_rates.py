"""Acceptance rates of draft tokens, estimated while decoding."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_bpd import _core

_DECAY = 0.99  # of counts, per step
_PRIOR_COUNT = 1.0  # of right and of wrong tokens


class Calibration(_core.Calibration):
    """Estimates how often nodes of a tree are accepted, by their probability in the tree.

    The probabilities of heads and LM are miscalibrated, differently for each model. Earlier trees
    count with exponentially decaying weights.

        calibration.probabilities(log_probs)   (N,) descending acceptance probabilities, from (N,)
                                               float32 descending natural logs
        calibration.expected(log_probs)        (N,) ascending: expected number of accepted tokens
                                               of the first 1, 2, .. nodes
        calibration.add(log_probs, kept)       a verified tree; (N,) bool, the accepted nodes
    """


@dataclass
class Rate:
    """How often tokens of one kind of chain were right; tokens after a wrong one do not count."""

    right: float = 0.0
    tried: float = 0.0

    @property
    def value(self) -> float:
        """(right + 1) / (tried + 2)."""
        return (self.right + _PRIOR_COUNT) / (self.tried + 2.0 * _PRIOR_COUNT)

    def add(self, right: int, tried: int) -> None:
        """Add numbers of right and of tried tokens; earlier ones lose 1 % of their weight."""
        self.right, self.tried = _DECAY * self.right + right, _DECAY * self.tried + tried
