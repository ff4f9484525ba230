"""Batches of lattices on threads, and what would bound more threads than this machine has."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from engines import engine_contender
from lattices import Lattices
from timing import Times, summarize, time_alternating, time_reading
from valgrind_counts import count_line_fills

from lattice_bpd import NGramLM

SIZES = (64, 256)
SIMULATED = 16  # threads
_DRAFTS = 16
_LINE = 64  # bytes
_PRIVATE_CACHES = 1 << 26  # bytes: more than any core's L1 and L2


def time_batches(lm: NGramLM, lattices: Lattices, size: int, rounds: int) -> dict[int, Times]:
    """Microseconds for a lattice in calls with `size` of them, on one thread and on two.

    Two threads need the wall clock and both cores, which virtual machines share with others for
    seconds at a time: of rounds over ten seconds the least counts.
    """
    parts = lattices.split(size)
    contenders = [engine_contender(lm, _DRAFTS, "fused", parts, threads=n) for n in (1, 2)]
    measured = time_alternating(
        contenders, items_per_call=size, rounds=rounds, clock=time.perf_counter
    )
    return dict(zip((1, 2), measured, strict=True))


def simulate_threads(lm: NGramLM, lm_path: Path, lattices: Lattices, rounds: int) -> dict[str, Any]:
    """What SIMULATED threads would do with a batch of SIZES[-1] lattices; a simulation.

    One thread searches its share, with private caches that other work has emptied: its time is
    that of the batch, as long as memory serves all threads. How many it serves is the bandwidth of
    this machine's memory over that of one search: what misses a private cache of 1 MiB (cachegrind)
    is taken to come from memory, though a shared cache keeps some of it.

    Raises:
        MissingValgrindError: no valgrind.
    """
    share = SIZES[-1] // SIMULATED
    warm, cold = _time_shares(lm, lattices.split(share), share, rounds)
    num_bytes = _LINE * count_line_fills(lm_path, lattices)
    per_thread = num_bytes / cold.median / 1e3
    bandwidth = {n: _measure_bandwidth(n) for n in (1, os.cpu_count() or 1)}
    most = max(bandwidth.values())
    return {
        "share": share,
        "warm_share": warm.to_json(),
        "cold_share": cold.to_json(),
        "speed_without_bound": round(SIMULATED * warm.median / cold.median, 2),
        "kib_per_lattice": round(num_bytes / 1024, 1),
        "gb_per_s_per_thread": round(per_thread, 2),
        "memory_gb_per_s": {str(n): round(value, 1) for n, value in bandwidth.items()},
        "threads_until_memory_bound": round(most / per_thread, 1),
    }


def _time_shares(
    lm: NGramLM, parts: list[Lattices], share: int, rounds: int
) -> tuple[Times, Times]:
    """Each part right after another one, and with private caches emptied; the least of all rounds.

    They are emptied by a read of memory that they cannot hold.
    """
    call, inputs, _ = engine_contender(lm, _DRAFTS, "fused", parts)
    other = np.zeros(_PRIVATE_CACHES // 8)
    least = np.full((2, len(inputs)), np.inf)
    reading = time_reading(time.thread_time)
    for _ in range(rounds):
        for is_cold in (0, 1):
            for n, arguments in enumerate(inputs):
                if is_cold:
                    other.sum()
                start = time.thread_time()
                call(arguments)
                least[is_cold, n] = min(least[is_cold, n], time.thread_time() - start - reading)
    return summarize(list(least[0]), share), summarize(list(least[1]), share)


def _measure_bandwidth(threads: int) -> float:
    """10^9 bytes a second that so many threads read from memory together; the best of 7."""
    arrays = [np.zeros(1 << 26) for _ in range(threads)]  # 512 MiB each
    for array in arrays:
        array.fill(1.0)  # pages of its own
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            start = time.perf_counter()
            list(pool.map(np.sum, arrays))
            times.append(time.perf_counter() - start)
    return sum(array.nbytes for array in arrays) / min(times) / 1e9
