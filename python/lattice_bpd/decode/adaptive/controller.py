"""Strategy "auto": trees of the size with the highest estimated throughput, or greedy steps.

Decoding steps are grouped into intervals of one tree size. At the start of an interval the
controller measures the last one, estimates latency and accepted tokens of every size, and chooses.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lattice_bpd.decode.adaptive.experience import Experience, Profile
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.proposals import empty_tree, propose_checked
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree

SIZES = (2, 4, 6, 8, 12, 18, 24, 36, 48, 72, 108, 144, 216, 288)

_LONG, _SHORT, _TRIAL = 12, 4, 2  # steps of an interval: drafts that pay, that may, in a trial
_LONG_COOLDOWN = 64  # steps of an interval during a pause
_GREEDY = 3  # steps of an interval that measures greedy decoding
_GREEDY_EVERY, _EXPLORE_EVERY = 12, 8  # decisions
_GREEDY_EVERY_IF_PAYS = 48  # the same where drafts clearly pay
_TRIAL_SIZE = 4  # draft tokens of a trial; twice as many are considered
_CLEARLY_PAYS = 1.15  # speedup


@dataclass
class _Interval:
    """Steps of one size.

    Attributes:
        states: their sequences.
        size: draft tokens.
        steps: number of steps.
        expected: tokens of each sequence expected of a step.
        trees: of the first step, to calibrate acceptance with.
        done: steps so far.
        start: when the second step began; the first one also decides.
    """

    states: list[DecodeState]
    size: int
    steps: int
    expected: float = 1.0
    trees: list[PrefixTree] | None = None
    done: int = 1
    start: float = 0.0
    lengths: list[int] = field(init=False)
    calls: int = field(init=False)

    def __post_init__(self) -> None:
        self.lengths = [len(state.tokens) for state in self.states]
        self.calls = self.states[0].stats.target_calls

    def is_of(self, states: Sequence[DecodeState]) -> bool:
        """Whether these are the same sequences: they leave a batch, but none joins it."""
        return len(self.states) == len(states) and self.states[0] is states[0]


class Controller(Drafter):
    """Cuts the trees of another drafter to the size that pays, or drafts nothing.

    The output stays the target's own; only speed changes. One controller serves one call of
    `decode` or `generate` at a time; its experience may be shared between threads.

    Args:
        drafter: proposes trees with probabilities, such as TreeDrafter, for this controller alone.
            Its max_nodes is the largest size, and is set before each proposal.
        experience: measurements of earlier texts; None: none, which takes about ten steps.

    Raises:
        TypeError: in `propose`, a drafter whose trees have no probabilities.
    """

    def __init__(self, drafter: Any, experience: Experience | None = None) -> None:
        self.drafter = drafter
        self.max_nodes = int(getattr(drafter, "max_nodes", SIZES[-1]))
        self.experience = Experience() if experience is None else experience
        self._sizes = [size for size in SIZES if size < self.max_nodes] + [self.max_nodes]
        self._sets_size = hasattr(drafter, "max_nodes")
        self._random = random.Random(0)
        self._interval: _Interval | None = None

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """Trees of at most max_nodes draft tokens; None for each state in a greedy step."""
        interval = self._interval
        if interval is not None and interval.done < interval.steps and interval.is_of(states):
            if interval.done == 1:
                self._calibrate(interval)
                interval.start = time.perf_counter()
            interval.done += 1
            return self._draft(states, interval.size)
        now = time.perf_counter()
        profile = self.experience.profile(len(states))
        with self.experience.lock:
            if interval is None or all(state is not states[0] for state in interval.states):
                profile.begin_text()
            elif interval.is_of(states):
                self._learn(profile, interval, now)
            size, steps = self._choose_interval(profile)
        self._interval = interval = _Interval(list(states), size, steps)
        if size == 0:
            return [None] * len(states)
        proposed = self._draft(states, self._considered(profile, size))
        if all(tree is None for tree in proposed):
            return proposed
        trees = [tree or empty_tree(state) for tree, state in zip(proposed, states, strict=True)]
        if any(tree.log_probs is None for tree in trees):
            raise TypeError(
                f"Controller: {type(self.drafter).__name__} proposed drafts without probabilities; "
                "expected trees whose first nodes are a smaller tree; use TreeDrafter"
            )
        with self.experience.lock:
            interval.size = self._choose_size(profile, trees)
            interval.expected = 1.0 + profile.accepted[interval.size]
        interval.trees = [
            tree.cut(interval.size, state.max_draft_length)
            for tree, state in zip(trees, states, strict=True)
        ]
        return [*interval.trees]

    def _draft(self, states: Sequence[DecodeState], size: int) -> list[PrefixTree | None]:
        if size == 0:
            return [None] * len(states)
        if self._sets_size:
            self.drafter.max_nodes = size
        return propose_checked(self.drafter, states)

    def _choose_interval(self, profile: Profile) -> tuple[int, int]:
        """Draft tokens to begin with, and steps."""
        profile.decisions += 1
        if profile.cooldown > 0:
            steps = min(profile.cooldown, _LONG_COOLDOWN)
            profile.cooldown -= steps
            return 0, steps
        pays = profile.speedup > _CLEARLY_PAYS and profile.steps > 2.0 * _SHORT
        measured = profile.latencies.counts.get(0, 0)
        every = 2 if measured < 2 else _GREEDY_EVERY_IF_PAYS if pays else _GREEDY_EVERY
        if profile.decisions % every == 0 or not measured:
            return 0, _GREEDY
        if profile.steps < 2.0:
            return min(profile.size or _TRIAL_SIZE, _TRIAL_SIZE), _TRIAL
        return profile.size or _TRIAL_SIZE, _LONG if pays else _SHORT

    def _considered(self, profile: Profile, size: int) -> int:
        """The largest tree that may be chosen."""
        if not profile.accepted:
            return self.max_nodes
        return self._sizes[min(bisect_left(self._sizes, 2 * size), len(self._sizes) - 1)]

    def _choose_size(self, profile: Profile, trees: Sequence[PrefixTree]) -> int:
        """The size of highest estimated throughput, or sometimes its neighbor."""
        most = max(map(len, trees)) - 1
        if most == 0:
            profile.accepted[0] = 0.0
            return 0
        sizes = [size for size in self._sizes if size < most] + [most]
        profile.add_tree(sizes, self._expect(trees, sizes))
        latencies = profile.latencies
        if profile.steps < 2.0:
            sizes = [size for size in sizes if size <= 2 * _TRIAL_SIZE] or sizes[:1]
        if sizes[-1] not in latencies.counts:
            return sizes[-1]
        rates = [(1.0 + profile.accepted[size]) / latencies.at(size) for size in sizes]
        best = rates.index(max(rates))
        profile.size = sizes[best]
        if profile.decisions % _EXPLORE_EVERY == 0:
            best = min(max(best + self._random.choice((-1, 1)), 0), len(sizes) - 1)
        return sizes[best]

    def _expect(self, trees: Sequence[PrefixTree], sizes: Sequence[int]) -> list[float]:
        """Expected accepted draft tokens of the first nodes of a tree, by their number."""
        totals = [0.0] * len(sizes)
        for tree in trees:
            if len(tree) > 1:
                log_probs: Any = tree.log_probs
                expected = self.experience.calibration.expected(log_probs).tolist()
                for index, size in enumerate(sizes):
                    totals[index] += expected[min(size, len(expected)) - 1]
        return [total / len(trees) for total in totals]

    def _learn(self, profile: Profile, interval: _Interval, now: float) -> None:
        """Updates latencies and acceptance from an interval that has ended."""
        states = interval.states
        if states[0].stats.target_calls - interval.calls != interval.done:
            return  # some steps were not this controller's
        if interval.done == 1:
            self._calibrate(interval)
            return
        seconds = (now - interval.start) / (interval.done - 1)
        profile.latencies.add(interval.size, seconds)
        if interval.size > 0 and 0 in profile.latencies.counts:
            lengths = zip(states, interval.lengths, strict=True)
            tokens = sum(len(state.tokens) - length for state, length in lengths) / len(states)
            profile.add_interval(interval.done, tokens, interval.expected, seconds)

    def _calibrate(self, interval: _Interval) -> None:
        """Compares the trees of the first step with what was decoded."""
        trees, interval.trees = interval.trees or [], None
        for tree, state, length in zip(trees, interval.states, interval.lengths, strict=False):
            if len(tree) > 1:
                log_probs: Any = tree.log_probs
                accepted = tree.kept(state.tokens[length:])
                with self.experience.lock:
                    self.experience.calibration.add(log_probs, accepted)
