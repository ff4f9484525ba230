"""Counts of drafts and the time that they took, for a log line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

_LEAST_ACCEPTED = 0.1  # share of verified draft tokens
_MOST_OWN = 0.1  # drafting's share of the time of steps
_JUDGED_TOKENS, _JUDGED_STEPS = 1000, 256  # from which counts say something
_IDLE_SECONDS = 1.0  # longer steps waited for requests


@dataclass
class DraftCounters:
    """What a proposer did; all are sums.

    Attributes:
        steps: calls of the proposer.
        target_calls: requests that kept tokens, summed over the steps.
        tokens: tokens that they kept.
        drafts: proposed drafts, one for each request and step; empty ones do not count.
        draft_tokens: tokens of these drafts.
        verified_tokens: draft tokens that the engine verified.
        accepted_tokens: draft tokens that the target accepted.
        predictions: tokens after which the target's own predictions were read.
        failures: steps without drafts because of an error.
        seconds: wall-clock time in the proposer.
    """

    steps: int = 0
    target_calls: int = 0
    tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    verified_tokens: int = 0
    accepted_tokens: int = 0
    predictions: int = 0
    failures: int = 0
    seconds: float = 0.0

    def describe(self) -> str:
        """The log line."""
        milliseconds = 1e3 * self.seconds / max(self.steps, 1)
        accepted = self.accepted_tokens / max(self.verified_tokens, 1)
        failed = f", {self.failures} steps failed" if self.failures else ""
        return (
            f"lattice-bpd: {self.drafts} drafts of {self.draft_tokens} tokens, "
            f"{self.verified_tokens} verified, {self.accepted_tokens} accepted ({accepted:.1%}), "
            f"{self.tokens / max(self.target_calls, 1):.2f} tokens per call of the target, "
            f"{milliseconds:.2f} ms per step in {self.steps} steps{failed}"
        )


def describe_costs(seconds: Mapping[int, float]) -> str:
    """A file of `lattice-bpd build --costs`: milliseconds of steps by draft tokens, in JSON.

    Args:
        seconds: of steps of one request, by draft tokens.
    """
    return json.dumps({size: round(1e3 * one, 3) for size, one in seconds.items()})


class Advice:
    """What the counts say about a drafter that does not pay, each thing once.

    Args:
        num_tokens: draft tokens that the engine verifies at most for a request.
        draft: the draft form.
    """

    def __init__(self, num_tokens: int, draft: str) -> None:
        self._num_tokens, self._draft = num_tokens, draft
        self._left = ["acceptance", "time", "length"]
        self._own = self._whole = 0.0
        self._timed = self._longest = 0
        self._last: tuple[float, float] | None = None

    def add_step(self, start: float, end: float, longest: int) -> None:
        """Count a step.

        Args:
            start: when drafting for it began, in seconds.
            end: when it ended.
            longest: tokens of its longest draft.
        """
        if self._last is not None and start - self._last[0] < _IDLE_SECONDS:
            self._own += self._last[1] - self._last[0]
            self._whole += start - self._last[0]
            self._timed += 1
        self._last = start, end
        self._longest = max(self._longest, longest)

    def lines(self, counters: DraftCounters) -> list[str]:
        """What to log now."""
        found = {}
        verified, share = counters.verified_tokens, self._own / max(self._whole, 1e-9)
        if verified >= _JUDGED_TOKENS and counters.accepted_tokens < _LEAST_ACCEPTED * verified:
            found["acceptance"] = (
                f"lattice-bpd: {counters.accepted_tokens / verified:.1%} of {verified} draft "
                f"tokens were accepted; expected {_LEAST_ACCEPTED:.0%} or more. Are heads and LMs "
                "of this model? Give an LM of its own text (`lattice-bpd build`, option lm), or "
                "serve without the plug-in"
            )
        if self._timed >= _JUDGED_STEPS and share > _MOST_OWN:
            found["time"] = (
                f"lattice-bpd: drafting takes {share:.0%} of a step, "
                f"{1e3 * self._own / self._timed:.2f} of {1e3 * self._whole / self._timed:.2f} ms; "
                f"expected {_MOST_OWN:.0%} or less. Draft without heads "
                '("sources": ["lm", "text"]), or with a lower top_k'
            )
        if (
            self._draft == "mixture"
            and self._timed >= _JUDGED_STEPS
            and 0 < 2 * self._longest <= self._num_tokens
        ):
            found["length"] = (
                f"lattice-bpd: the longest draft that was expected to pay had {self._longest} "
                f"tokens in {self._timed} steps; num_speculative_tokens is {self._num_tokens}, and "
                "vLLM reserves positions of its KV cache for all of them: "
                f"{self._longest + 1} would do"
            )
        new = [name for name in self._left if name in found]
        self._left = [name for name in self._left if name not in found]
        return [found[name] for name in new]
