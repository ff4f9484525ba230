"""What drafts gave, against what greedy steps would have given in their time."""

from __future__ import annotations

from dataclasses import dataclass

_TRUST = 4.0  # steps that a promise counts for, see Balance.ratio
_FAITH = 4.0  # .. and that it counts for beside those of this text, see Balance.believed
_CARRIED = 4.0  # steps that those before count once they are doubted
_NEAR = 1.4  # see Balance.is_close
_REMEMBER = 0.985  # what a step still counts one step later


@dataclass
class Balance:
    """Sums over steps with drafts, that forget; tokens are those of each sequence.

    Attributes:
        steps: with drafts,
        tokens: that they decoded,
        promised: that they were expected to decode, and
        least: that greedy steps would have decoded in their time.
        given: draft tokens that steps of this text kept, and
        claimed: that they were expected to keep.
    """

    steps: float = 0.0
    tokens: float = 0.0
    promised: float = 0.0
    least: float = 0.0
    given: float = 0.0
    claimed: float = 0.0

    def note(self, steps: int, tokens: float, promised: float, least: float) -> None:
        """Steps with drafts, one after the other; the other numbers are those of each, in the mean.

        Promises as they were made, not as they were believed.
        """
        fade = _REMEMBER**steps
        weight = (1.0 - fade) / (1.0 - _REMEMBER)
        self._fade(fade)
        self.steps += weight
        self.tokens += weight * tokens
        self.promised += weight * promised
        self.least += weight * least
        self.given = fade * self.given + weight * (tokens - 1.0)
        self.claimed = fade * self.claimed + weight * (promised - 1.0)

    def ratio(self) -> float:
        """Tokens over those of greedy steps, by what drafts gave and a bit by what they promised.

        What a few steps gave is chance in part; what they promised rests on more, but is slow to
        tell that the text has changed. So the promise counts as if a few more steps had kept it. 1
        where nothing is known.
        """
        if self.steps == 0.0:
            return 1.0
        promised = self.believed(self.promised / self.steps)
        return (self.tokens + _TRUST * promised) / ((1.0 + _TRUST / self.steps) * self.least)

    def believed(self, promised: float) -> float:
        """Tokens to expect of a step that promises so many, as promises were kept in this text."""
        kept = max(promised - 1.0, 1e-3)
        faith = (_FAITH * kept + self.given) / (_FAITH * kept + self.claimed)
        return 1.0 + faith * kept

    def is_close(self) -> bool:
        """Whether greedy decoding is nearly as quick, so that its time has to be known well."""
        return self.promised < _NEAR * self.least

    def is_known(self) -> bool:
        """Whether it rests on more than the texts before."""
        return self.steps > _CARRIED + 0.5

    def begin_text(self) -> None:
        """Another text, which keeps promises in its own way."""
        self.doubt()
        self.given = self.claimed = 0.0

    def doubt(self) -> None:
        """The steps before count little: those that come are of another kind."""
        if self.steps > _CARRIED:
            self._fade(_CARRIED / self.steps)

    def forget(self) -> None:
        """Nothing is known, but for how promises were kept in this text."""
        self._fade(0.0)

    def _fade(self, share: float) -> None:
        self.steps *= share
        self.tokens *= share
        self.promised *= share
        self.least *= share
