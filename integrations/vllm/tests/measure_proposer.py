"""Time of the proposer in an engine: of a step, by draft form, load and stage.

    PYTHONPATH=build/vllm-test/packages LATTICE_BPD_VLLM_FOLDER=build/vllm-test \
        build/vllm-venv/bin/python integrations/vllm/tests/measure_proposer.py [FORM ..]

after `make test-vllm`. Prints the median and the 10th percentile of the steps whose batch is full.
FORM: those of FORMS to measure, without stages; none: all. Times are those of the wall clock.
The first three lines have the stages, each called twice ("again": caches are warm then; "all" has
both calls). `lookup` is vLLM's own proposer `ngram`.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from scenes import read_prompts

import lattice_bpd_vllm.drafting as drafting
from conftest import FOLDER, Engine, in_child
from lattice_bpd_vllm.head_logits import HeadLogits

LOADS = (1, 8, 16)
FORMS: dict[str, dict[str, Any]] = {
    "chain": {},
    "chain, one thread": {"threads": 1},
    "chain, top_k 8": {"top_k": 8},
    "best": {"draft": "best", "alpha": 1.0},
    "argmax": {"draft": "argmax"},
    "mixture": {"draft": "mixture"},
    "mixture, LM and text": {"directory": None, "lm": str(FOLDER / "drafter" / "stories.lm")},
    "mixture, text": {"directory": None},
}


class Clock:
    """Times of calls, by name."""

    def __init__(self) -> None:
        self.times: dict[str, list[tuple[int, float]]] = {}
        self.batch = 0

    def wrap(self, holder: Any, name: str, label: str) -> None:
        function = getattr(holder, name)

        def timed(*args: Any, **values: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **values)
            self.times.setdefault(label, []).append((self.batch, time.perf_counter() - start))
            start = time.perf_counter()
            function(*args, **values)
            again = time.perf_counter() - start
            self.times.setdefault(f"{label} again", []).append((self.batch, again))
            return result

        setattr(holder, name, timed)

    def watch(self, drafter: Any, position: int) -> None:
        """Times `propose`, and notes how many requests kept tokens."""
        function = drafter.propose

        def timed(*args: Any, **values: Any) -> Any:
            self.batch = sum(1 for tokens in args[position] if tokens)
            start = time.perf_counter()
            result = function(*args, **values)
            self.times.setdefault("all", []).append((self.batch, time.perf_counter() - start))
            return result

        drafter.propose = timed

    def report(self, load: int) -> str:
        parts = []
        for label, times in self.times.items():
            full = 1e3 * np.array([seconds for batch, seconds in times if batch == load])
            parts.append(f"{label} {np.median(full):.2f} ({np.quantile(full, 0.1):.2f})")
        return ", ".join(parts)


def run(form: str, stages: bool) -> None:
    clock = Clock()
    if form == "lookup":
        settings = {"prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 8}
        engine = Engine(None, speculative_config={"method": "ngram", **settings})
        clock.watch(engine.runner.drafter, 1)
    else:
        if stages:
            clock.wrap(drafting, "select_top_k", "top-k")
            clock.wrap(drafting, "draft_chains", "search")
            clock.wrap(HeadLogits, "__call__", "heads and output embedding")
        engine = Engine({"check": False, **FORMS[form]})
        clock.watch(engine.runner.drafter, 0)
    prompts = read_prompts()
    for load in LOADS:
        clock.times.clear()
        engine.generate(prompts, load)
        engine.generate(prompts, load)
        print(f"{form}, load {load}: {clock.report(load)}", flush=True)


if __name__ == "__main__":
    print("ms per step, median (10th percentile)")
    chosen = sys.argv[1:]
    if unknown := sorted(set(chosen) - {*FORMS, "lookup"}):
        sys.exit(f"measure_proposer: no form {unknown[0]!r}; expected {', '.join(FORMS)} or lookup")
    if not chosen:
        in_child(run, "chain", True)
    for form in chosen or (*FORMS, "lookup"):
        in_child(run, form, False)
