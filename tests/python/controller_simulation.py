"""A decoding loop on a simulated clock, for tests of the controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lattice_bpd.decode import DecodeStats
from lattice_bpd.decode.adaptive import Controller, Experience
from lattice_bpd.decode.adaptive import controller as controller_module
from lattice_bpd.verify import PrefixTree


@dataclass
class Clock:
    """A clock that is advanced by hand.

    Attributes:
        now: the time.
        tick: seconds that reading it takes.
    """

    now: float = 0.0
    tick: float = 0.0

    def perf_counter(self) -> float:
        self.now += self.tick
        return self.now


@dataclass
class FakeState:
    tokens: list[int]
    stats: DecodeStats = field(default_factory=lambda: DecodeStats(target_calls=1))
    max_draft_length: int = 99
    model: Any = field(default_factory=lambda: SimpleNamespace(vocab_size=9))


@dataclass
class ChainDrafter:
    """A chain of ones that claims a probability of `claim` for each."""

    clock: Clock
    seconds: float
    claim: float = 0.8
    max_nodes: int = 16

    def propose(self, states: Any) -> list[PrefixTree]:
        self.clock.now += self.seconds
        count = self.max_nodes
        log_probs = (np.arange(1, count + 1) * np.log(self.claim)).astype(np.float32)
        nodes = ([1] * count, list(range(-1, count - 1)), count, log_probs)
        return [PrefixTree.from_nodes(state.tokens[-1], *nodes) for state in states]


class Simulation:
    """Decodes with a Controller; the target generates ones with probability `truth`, else a two.

    A step takes what drafting takes and 1 + slope N for its call with N draft tokens. With noise
    calls take up to that much more, and the machine is half as fast half of the time, besides.

    Attributes:
        clock: the time.
        tokens: decoded so far.
        slow: seconds that the machine lost by being half as fast.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        slope: float,
        draft: float,
        noise: float = 0.0,
        tick: float = 0.0,
    ) -> None:
        self.clock, self.tokens, self.slow = Clock(tick=tick), 0, 0.0
        self.slope, self.draft, self.noise = slope, draft, noise
        self.rng = np.random.default_rng(0)
        self.experience = Experience()
        self.steps = 0
        monkeypatch.setattr(controller_module, "time", self.clock)
        self.begin_text()

    def begin_text(self) -> None:
        """Another text, with the experience of those before."""
        self.drafter = ChainDrafter(self.clock, self.draft)
        self.controller = Controller(self.drafter, self.experience)
        self.state: Any = FakeState([0])

    def run(self, truth: float, steps: int) -> float:
        """So many more steps of this text; their tokens a second."""
        tokens, begin = self.tokens, self.clock.now
        for _ in range(steps):
            self.step(truth)
        return (self.tokens - tokens) / (self.clock.now - begin)

    def step(self, truth: float) -> None:
        slowdown = 2.0 if self.noise and self.steps // 100 % 2 else 1.0
        self.steps += 1
        self.drafter.seconds = slowdown * self.draft
        begin = self.clock.now
        (tree,) = self.controller.propose([self.state])
        size = 0 if tree is None else len(tree) - 1
        right = int(self.rng.geometric(1.0 - truth)) - 1 if truth < 1.0 else size
        new = [1] * min(right, size) + [2]
        self.state.tokens += new
        self.state.stats.target_calls += 1
        self.tokens += len(new)
        noise = 1.0 + self.noise * self.rng.random()
        self.clock.now += slowdown * (1.0 + self.slope * size) * noise
        self.slow += (self.clock.now - begin) * (1.0 - 1.0 / slowdown)

    def fixed(self, truth: float, size: int) -> float:
        """Tokens a second with so many draft tokens in each step, but for what is slow."""
        if size == 0:
            return 1.0 / (1.0 + self.noise / 2)
        kept = sum(truth**depth for depth in range(1, size + 1))
        call = (1.0 + self.slope * size) * (1.0 + self.noise / 2)
        return (1.0 + kept) / (self.draft + call)

    def best(self, truth: float) -> float:
        """The same with the size that is best, of those the drafter can."""
        return max(self.fixed(truth, size) for size in range(self.drafter.max_nodes + 1))
