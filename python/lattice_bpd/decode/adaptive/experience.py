"""Measurements of strategy "auto" that are kept for a model: latencies and acceptance."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from lattice_bpd.decode.adaptive.latencies import Latencies
from lattice_bpd.decode.drafters.acceptance_rates import Calibration

_FIRST_COOLDOWN, _LONGEST_COOLDOWN = 8, 512  # greedy steps after drafts that did not pay
_PAYS = 0.98  # throughput relative to greedy decoding, below which drafting pauses, ..
_PAYS_IN_TRIAL = 0.8  # .. or this, in the first steps after a pause
_TRIAL = 1.0 / 64.0  # length of a trial, relative to the pause that would follow it
_PRIOR_STEPS = 4.0  # steps that the expected number of tokens counts for
_STEPS_FADE, _TEXT_FADE = 0.75, 0.8  # weight of earlier intervals at each interval
_KEPT_RATE = 0.2  # weight of a tree in the moving average of accepted draft tokens
_WORTH_RATE, _LEAST_WORTH = 0.2, 0.2  # see Profile.worth
_SETTLED = 24.0  # steps with drafts that paid, after which the next pause is short again


@dataclass
class Profile:
    """Measurements at one batch size; tokens are those of each sequence.

    Attributes:
        latencies: seconds of a step, by draft tokens.
        accepted: expected number of accepted draft tokens, by size of the tree.
        size: the size of highest estimated throughput; 0 before the first tree.
        largest: draft tokens of the last tree.
        decisions: decisions so far.
        steps: recent steps with drafts, earlier ones with less weight.
        speedup: throughput of these steps relative to greedy decoding.
        is_paused: whether drafts did not pay when they were last tried.
        cooldown: greedy steps until drafting is tried again.
        next_cooldown: greedy steps of the next pause.
        worth: share of the recent texts in which drafting paid; below a fifth, a new text does not
            end a pause.
    """

    latencies: Latencies = field(default_factory=Latencies)
    accepted: dict[int, float] = field(default_factory=dict)
    size: int = 0
    largest: int = 0
    decisions: int = 0
    steps: float = 0.0
    speedup: float = 1.0
    is_paused: bool = False
    cooldown: int = 0
    next_cooldown: int = _FIRST_COOLDOWN
    worth: float = 0.5
    _accepted_in_text: float = 0.0
    _expected_in_text: float = 0.0

    def begin_text(self) -> None:
        """Prepares for other sequences, whose acceptance may differ."""
        if self.is_paused or self.steps > _PRIOR_STEPS:
            paid = not self.is_paused and self.speedup >= _PAYS
            self.worth += _WORTH_RATE * (paid - self.worth)
        self.steps = min(self.steps, 2.0)
        self._accepted_in_text = self._expected_in_text = 0.0
        if self.worth >= _LEAST_WORTH:
            self.cooldown, self.next_cooldown = 0, _FIRST_COOLDOWN
            self.is_paused = False

    def add_tree(self, sizes: Sequence[int], accepted: Sequence[float]) -> None:
        """Updates the expected accepted tokens with those of a tree.

        A size beyond the previous tree is out of date: it continues from the next smaller one.

        Args:
            sizes: ascending numbers of draft tokens.
            accepted: expected number of accepted draft tokens of the tree's first nodes.
        """
        below = below_of_tree = 0.0
        for size, of_tree in zip(sizes, accepted, strict=True):
            is_known = size in self.accepted and size <= self.largest
            before = self.accepted[size] if is_known else below + of_tree - below_of_tree
            below = self.accepted[size] = before + _KEPT_RATE * (of_tree - before)
            below_of_tree = of_tree
        self.largest = sizes[-1]

    def add_interval(self, steps: int, tokens: float, expected: float, seconds: float) -> None:
        """Steps with drafts: updates the speedup, and pauses drafting if it does not pay.

        Args:
            steps: number of steps.
            tokens: tokens that they decoded.
            expected: tokens expected of each.
            seconds: mean latency of a step.
        """
        drafted = max(expected - 1.0, 1e-3)
        self._accepted_in_text = _TEXT_FADE * self._accepted_in_text + tokens - steps
        self._expected_in_text = _TEXT_FADE * self._expected_in_text + steps * drafted
        prior = _PRIOR_STEPS * drafted
        share = (prior + self._accepted_in_text) / (prior + self._expected_in_text)
        per_step = (tokens + _PRIOR_STEPS * (1.0 + share * drafted)) / (steps + _PRIOR_STEPS)
        self.steps = _STEPS_FADE * self.steps + steps
        speedup = per_step * self.latencies.at(0) / seconds
        self.speedup += min(steps / self.steps, 1.0) * (speedup - self.speedup)
        in_trial = self.steps < _TRIAL * self.next_cooldown
        self.is_paused = self.speedup < (_PAYS_IN_TRIAL if in_trial else _PAYS)
        if self.is_paused:
            self.cooldown = self.next_cooldown
            self.next_cooldown = min(2 * self.next_cooldown, _LONGEST_COOLDOWN)
            self.steps, self.speedup = 0.0, 1.0
        elif self.steps > _SETTLED:
            self.next_cooldown = _FIRST_COOLDOWN


class Experience:
    """Latencies and acceptance that outlast a text; several controllers may share them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.calibration = Calibration()
        self.profiles: dict[int, Profile] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A new one: latencies belong to a process and its machine."""
        return type(self), ()

    def profile(self, batch: int) -> Profile:
        """The measurements for batches of this many sequences."""
        profile = self.profiles.get(batch)
        return self.profiles.setdefault(batch, Profile()) if profile is None else profile


_OF_MODELS: WeakKeyDictionary[Any, Experience] = WeakKeyDictionary()


def experience_of(model: Any) -> Experience:
    """The measurements of strategy "auto" for a model; kept as long as the model is.

    Args:
        model: a causal LM or a BlockwiseLM.
    """
    return _OF_MODELS.setdefault(model, Experience())
