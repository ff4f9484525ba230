"""Counts and stage times of decoding."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class DecodeStats:
    """Counts and seconds of one or more decoded texts; `merge` sums them.

    Attributes:
        target_calls: serial calls of the target, including the call that reads the prompt.
        cached_tokens: tokens of the prompt that were in a KV cache of an earlier call.
        tokens: decoded tokens; each call returns one exact token besides the accepted drafts.
        accept_lengths: accepted draft tokens of each verifying call.
        verified_tokens: draft tokens sent to the target; shared prefixes count once.
        flattened_trees: steps whose draft tree was reduced to its best chain, since the target
            has a recurrent state.
        relaxed_tokens: decoded tokens that a lossy rule accepted although they are not the
            target's argmax.
        regret: sum over relaxed tokens of the target's log probability of its argmax minus that of
            the token, in nats.
        draft_failures: steps whose draft failed, so that they decoded one token, by kind: "nan",
            "shape", "memory", "error" (of a scorer), or a kind defined by the drafter.
        seconds: wall time by stage: "prompt", "heads", "top_k", "rescore", "draft_model" (all of
            its work), "lookup", "target" (only the verifying calls), "predict" (selection of its
            predictions), "verify" (layout, acceptance, rollback) and "total".
            On a GPU only the launches of a stage are timed; waiting is part of "verify". Sequences
            of a batch share its seconds equally, so that their sum is the batch's.
    """

    target_calls: int = 0
    tokens: int = 0
    accept_lengths: list[int] = field(default_factory=list)
    verified_tokens: int = 0
    flattened_trees: int = 0
    relaxed_tokens: int = 0
    regret: float = 0.0
    draft_failures: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cached_tokens: int = 0

    @property
    def block_efficiency(self) -> float:
        """Decoded tokens / target calls, including exact tokens (Kim et al. 2024, section 5)."""
        return self.tokens / self.target_calls if self.target_calls else 0.0

    @property
    def relaxed_share(self) -> float:
        """Fraction of decoded tokens that are not the target's argmax."""
        return self.relaxed_tokens / self.tokens if self.tokens else 0.0

    @property
    def regret_per_token(self) -> float:
        """Regret per decoded token, in nats."""
        return self.regret / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens / total seconds."""
        total = self.seconds.get("total", 0.0)
        return self.tokens / total if total else 0.0

    def lap(self, name: str, start: float) -> float:
        """Add the time since `start` of `time.perf_counter` to a stage; returns the time now.

        Like `stage`, with less overhead.
        """
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - start
        return now

    def count_draft_failure(self, kind: str) -> None:
        """Count a step whose draft failed."""
        self.draft_failures[kind] = self.draft_failures.get(kind, 0) + 1

    def stage(self, name: str) -> Stage:
        """A context manager that adds the wall time of its block to `seconds[name]`."""
        return Stage(self, name)

    def count_relaxed(self, regrets: Sequence[tuple[int, float]]) -> None:
        """Count relaxed tokens: (token index, nats) of each, as a lossy rule's selector lists them.

        Set `tokens` first: tokens selected after a stop token are not part of the output.
        """
        output = [nats for index, nats in regrets if index < self.tokens]
        self.relaxed_tokens, self.regret = len(output), sum(output)

    def merge(self, other: DecodeStats) -> None:
        """Add another run's counts and seconds to this one's."""
        for name, value in vars(other).items():
            own: Any = getattr(self, name)
            if isinstance(value, dict):
                for kind, number in value.items():
                    own[kind] = own.get(kind, 0) + number
            else:
                own += value  # a list in place
                setattr(self, name, own)


class Stage:
    """The context manager of `DecodeStats.stage`; a class is faster than a generator."""

    __slots__ = ("_name", "_start", "_stats")

    def __init__(self, stats: DecodeStats, name: str) -> None:
        self._stats, self._name = stats, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._stats.lap(self._name, self._start)
