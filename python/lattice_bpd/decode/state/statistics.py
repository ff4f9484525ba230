"""What a decoding run counts and times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class DecodeStats:
    """Counts and seconds of one or more decoded texts; `merge` adds them up.

    Attributes:
        target_calls: serial calls of the target, the call that reads the prompt among them.
        tokens: decoded tokens; each call gives one exact token besides the drafts it accepts.
        accept_lengths: draft tokens kept by each verifying call.
        repeats: neighbouring positions of first drafts that hold the same token.
        neighbours: neighbouring positions of first drafts, all.
        verified_tokens: draft tokens sent to the target, those with a shared prefix counted once.
        flattened_trees: steps whose draft tree was cut to its best chain, since the target keeps a
            recurrent state.
        scorer_failures: steps in which a scorer failed and heads alone drafted, by kind: "nan",
            "shape", "slow", "error"; and "dropped", those after a call that was too slow.
        relaxed_tokens: decoded tokens that a lossy rule kept though they are not the target's
            argmax.
        regret: what that cost, in nats: how much less the target likes each of them than its
            argmax, added up.
        draft_failures: steps whose draft failed, so that they decoded one token, by kind: "nan",
            "shape", "memory", or what the drafter calls it.
        seconds: wall time by stage: "prompt", "heads", "top_k", "rescore", "draft_model" (all that
            it does), "lookup", "target" (the verifying calls alone), "verify" (laying out,
            accepting, rolling back) and "total" (everything).
            On a GPU a stage's launches are timed, waits fall to "verify". Sequences of a batch
            share its seconds equally, so that merged they are the batch's.
    """

    target_calls: int = 0
    tokens: int = 0
    accept_lengths: list[int] = field(default_factory=list)
    repeats: int = 0
    neighbours: int = 0
    verified_tokens: int = 0
    flattened_trees: int = 0
    scorer_failures: dict[str, int] = field(default_factory=dict)
    relaxed_tokens: int = 0
    regret: float = 0.0
    draft_failures: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def block_efficiency(self) -> float:
        """Decoded tokens / target calls, exact tokens counted (Kim et al. 2024, section 5)."""
        return self.tokens / self.target_calls if self.target_calls else 0.0

    @property
    def repeat_share(self) -> float:
        """Share of neighbouring draft positions with the same token (paper table 3)."""
        return self.repeats / self.neighbours if self.neighbours else 0.0

    @property
    def relaxed_share(self) -> float:
        """Share of decoded tokens that are not the target's argmax."""
        return self.relaxed_tokens / self.tokens if self.tokens else 0.0

    @property
    def regret_per_token(self) -> float:
        """Nats for each decoded token by which the target would have preferred its argmax."""
        return self.regret / self.tokens if self.tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decoded tokens / seconds in all."""
        total = self.seconds.get("total", 0.0)
        return self.tokens / total if total else 0.0

    @property
    def accept_histogram(self) -> list[int]:
        """How many verifying calls kept 0, 1, 2, .. draft tokens."""
        longest = max(self.accept_lengths, default=-1)
        return [self.accept_lengths.count(length) for length in range(longest + 1)]

    @property
    def own_seconds(self) -> float:
        """Wall time of everything but the models: no target, heads, draft model, or prompt."""
        models = ("prompt", "heads", "draft_model", "target")
        return self.seconds.get("total", 0.0) - sum(self.seconds.get(n, 0.0) for n in models)

    def add_seconds(self, name: str, seconds: float) -> None:
        """Add to a stage what was timed elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def lap(self, name: str, start: float) -> float:
        """Add the time since `start` of `time.perf_counter` to a stage; returns the time now.

        What `stage` does, for the steps of a loop that count in microseconds.
        """
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - start
        return now

    def count_scorer_failure(self, kind: str, count: int = 1) -> None:
        """Take note of steps in which a scorer failed."""
        self.scorer_failures[kind] = self.scorer_failures.get(kind, 0) + count

    def count_draft_failure(self, kind: str) -> None:
        """Take note of a step whose draft failed."""
        self.draft_failures[kind] = self.draft_failures.get(kind, 0) + 1

    def stage(self, name: str) -> Stage:
        """Add the wall time of the block to `seconds[name]`."""
        return Stage(self, name)

    def add_repeats(self, repeats: int, neighbours: int) -> None:
        """Count stutter in a step's first draft; see `PrefixTree.count_repeats`."""
        self.repeats += repeats
        self.neighbours += neighbours

    def count_relaxed(self, regrets: Sequence[tuple[int, float]]) -> None:
        """Take over what a chooser of a lossy rule counted: (number of the token, nats) of each.

        Tokens behind a stop token were chosen, but are no output; `tokens` must be set before.
        """
        kept = [nats for number, nats in regrets if number < self.tokens]
        self.relaxed_tokens, self.regret = len(kept), sum(kept)

    def merge(self, other: DecodeStats) -> None:
        """Add another run's counts and seconds to this one's."""
        self.target_calls += other.target_calls
        self.tokens += other.tokens
        self.accept_lengths += other.accept_lengths
        self.repeats += other.repeats
        self.neighbours += other.neighbours
        self.verified_tokens += other.verified_tokens
        self.flattened_trees += other.flattened_trees
        self.relaxed_tokens += other.relaxed_tokens
        self.regret += other.regret
        for kind, count in other.scorer_failures.items():
            self.count_scorer_failure(kind, count)
        for kind, count in other.draft_failures.items():
            self.draft_failures[kind] = self.draft_failures.get(kind, 0) + count
        for name, value in other.seconds.items():
            self.add_seconds(name, value)


class Stage:
    """The context manager of `DecodeStats.stage`: a class is quicker than a generator."""

    __slots__ = ("_name", "_start", "_stats")

    def __init__(self, stats: DecodeStats, name: str) -> None:
        self._stats, self._name = stats, name

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        seconds, name = self._stats.seconds, self._name
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - self._start
