"""Counts of drafts and the time that they took, for a log line."""

from __future__ import annotations

from dataclasses import dataclass


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
