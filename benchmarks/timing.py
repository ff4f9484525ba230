"""Timing of calls that handle several items each.

The clock is the calling thread's CPU time: on an idle machine it is the wall clock, on a busy one
it leaves out the time that other programs had the core. Work in other threads needs the wall clock.
Reading that clock is a system call of half a microsecond, which is measured and taken off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Times(NamedTuple):
    """Microseconds for one item.

    Attributes:
        median: Of all samples.
        p90: Their 90th percentile.
        p10: Their 10th percentile: the wall clock where other programs did not interfere.
        samples: How many; a sample is one call, divided by the items it handled.
    """

    median: float
    p90: float
    p10: float
    samples: int

    def to_json(self) -> dict[str, Any]:
        """Rounded to a hundredth of a microsecond."""
        return {
            "median_us": round(self.median, 2),
            "p90_us": round(self.p90, 2),
            "p10_us": round(self.p10, 2),
            "samples": self.samples,
        }


def summarize(seconds: Sequence[float], items_per_call: int = 1) -> Times:
    """Times of calls that were measured elsewhere."""
    micros = np.array(seconds) * 1e6 / items_per_call
    p10, median, p90 = np.percentile(micros, (10, 50, 90))
    return Times(float(median), float(p90), float(p10), len(micros))


class Contender(NamedTuple):
    """Something to be timed beside others.

    Attributes:
        call: What is timed.
        inputs: Its inputs.
        slow: Too slow to take all inputs each round: it takes a share of them, all in the end.
    """

    call: Callable[[Any], object]
    inputs: Sequence[Any]
    slow: bool = False


def time_in_turns(
    contenders: Sequence[Contender],
    *,
    items_per_call: int = 1,
    rounds: int = 5,
    clock: Callable[[], float] = time.thread_time,
) -> list[Times]:
    """Each contender in passes of its own, by turns, so that a busy machine is busy for all.

    A pass over all inputs comes before the timed one and fills the caches with what they keep. What
    reading the clock takes is taken off.

    Args:
        contenders: What is compared.
        items_per_call: Items that one call handles.
        rounds: Passes of each.
        clock: Seconds.
    """
    samples: list[list[float]] = [[] for _ in contenders]
    reading = time_reading(clock)
    for turn in range(rounds):
        for contender, taken in zip(contenders, samples, strict=True):
            inputs = contender.inputs[turn::rounds] if contender.slow else contender.inputs
            for item in inputs[:1] if contender.slow else inputs:
                contender.call(item)
            for item in inputs:
                start = clock()
                contender.call(item)
                taken.append(clock() - start - reading)
    return [summarize(taken, items_per_call) for taken in samples]


def time_alternating(
    contenders: Sequence[Contender],
    *,
    items_per_call: int = 1,
    rounds: int = 5,
    clock: Callable[[], float] = time.thread_time,
) -> list[Times]:
    """The contenders input by input: each finds the caches full of the others' data.

    An input's time is the least of all rounds, for every contender: between two rounds nothing of
    it stays in a near cache, and what other programs disturb drops out.

    Args:
        contenders: What is compared, on the same number of inputs.
        items_per_call: Items that one call handles.
        rounds: Passes over all inputs.
        clock: Seconds.
    """
    least = np.full((len(contenders), len(contenders[0].inputs)), np.inf)
    reading = time_reading(clock)
    for _ in range(rounds):
        for n in range(least.shape[1]):
            for contender, taken in zip(contenders, least, strict=True):
                start = clock()
                contender.call(contender.inputs[n])
                taken[n] = min(taken[n], clock() - start - reading)
    return [summarize(list(taken), items_per_call) for taken in least]


def time_reading(clock: Callable[[], float]) -> float:
    """Seconds between two readings with nothing in between: the median of many."""
    pairs = [(clock(), clock()) for _ in range(1000)]
    return float(np.median([end - start for start, end in pairs]))
