"""Throughput of vLLM with drafts and without, on the CPU: tokens per second by way and load.

    PYTHONPATH=build/vllm-test/packages LATTICE_BPD_VLLM_FOLDER=build/vllm-test \
        build/vllm-venv/bin/python integrations/vllm/tests/measure_throughput.py

after `make test-vllm`. Ways take turns, each in an engine of its own; the medians of all rounds are
printed: tokens per second of processor time of the process, and of wall-clock time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scenes import read_prompts

from conftest import FOLDER, Engine, in_child

LOADS = {1: 8, 16: 32}  # prompts of each
ENGINES, REPEATS = 2, 3
WAYS: dict[str, dict[str, Any] | None] = {
    "plain vLLM": None,
    "heads, argmax": {"draft": "argmax"},
    "heads, chain": {},
    "mixture: heads, LM, text": {"draft": "mixture"},
    "mixture: text": {"directory": None},
    "block drafter with transitions, chain": {"directory": str(FOLDER / "block_pairs")},
}


def run(options: dict[str, Any] | None) -> dict[int, list[tuple[float, float]]]:
    """Seconds of processor and wall-clock time per token of each repetition, by load."""
    engine = Engine(None if options is None else {"check": False, **options})
    prompts, times = read_prompts(), {}
    engine.generate(prompts[:16])  # first calls are slower
    for load, count in LOADS.items():
        times[load] = []
        for _ in range(REPEATS):
            cpu, wall = time.process_time(), time.perf_counter()
            results = engine.generate(prompts[:count], load)
            tokens = sum(len(result.outputs[0].token_ids) for result in results)
            seconds = time.process_time() - cpu, time.perf_counter() - wall
            times[load].append((seconds[0] / tokens, seconds[1] / tokens))
    return times


def main() -> None:
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(ENGINES):
        for way, options in WAYS.items():
            for load, times in in_child(run, options).items():
                found.setdefault((way, load), []).extend(times)
    for load in LOADS:
        plain = np.median(found["plain vLLM", load], axis=0)
        print(f"load {load}: tokens per second of processor time (x plain), of wall-clock time (x)")
        for way in WAYS:
            cpu, wall = median = np.median(found[way, load], axis=0)
            gains = plain / median
            print(
                f"  {way}: {1 / cpu:.0f} ({gains[0]:.2f}), {1 / wall:.0f} ({gains[1]:.2f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
