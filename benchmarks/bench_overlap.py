"""Would it pay to draft for half of a batch while the target verifies the other half?

    python benchmarks/bench_overlap.py [--quick]

One loop decodes a batch: the target waits while drafts are searched for, and the other way round.
Two loops, each with half of the batch, share the target: one loop drafts while the target works for
the other. The target works for one call at a time, as an accelerator does. A call takes the
milliseconds that are asked for: our small target computes the result, and the rest of the time is
waited for, with the processor free. With a call of B texts of T ms, one of half as many takes

memory bound   T, since reading the weights takes the time
compute bound  T / 2

"this processor" waits for nothing: target and loops share the cores that there are. Outputs of both
ways are compared, and ways take turns. Results go to benchmarks/results/overlap.json.
"""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from corpus import ROOT
from decoding_model import Subject, train_subject
from machine import describe_machine
from report import print_table, write_json

from lattice_bpd.decode import DecodeResult, DraftingModel, TreeDrafter, decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify.target import CausalLMTarget

NODES = 18
BOUNDS = ("memory bound", "compute bound")


class Accelerator:
    """Works for one call at a time, each of which takes a given time.

    Args:
        milliseconds: of a call with `batch` texts; 0: as long as it takes here.
        batch: texts of the whole batch.
        bound: of BOUNDS.

    Attributes:
        late: calls whose result took longer here.
    """

    def __init__(self, milliseconds: float, batch: int, bound: str) -> None:
        self.late = 0
        self._seconds, self._batch, self._bound = milliseconds / 1e3, batch, bound
        self._lock = threading.Lock()

    def run(self, texts: int, call: Any) -> Any:
        """The result of a call."""
        share = texts / self._batch if self._bound == "compute bound" else 1.0
        with self._lock:
            end = time.perf_counter() + self._seconds * share
            result = call()
            left = end - time.perf_counter()
            if left > 0:
                time.sleep(left)
            elif self._seconds:
                self.late += 1
            return result


class SharedTarget(CausalLMTarget):
    """A target on an accelerator."""

    def __init__(self, base: Any, accelerator: Accelerator) -> None:
        super().__init__(base)
        self._accelerator = accelerator

    def __call__(self, input_ids: Any, cache: Any, **values: Any) -> Any:
        """See TargetModel."""
        call = super().__call__
        return self._accelerator.run(len(input_ids), lambda: call(input_ids, cache, **values))

    def read_prompts(self, input_ids: Any, *others: Any, **values: Any) -> Any:
        """See CausalLMTarget."""
        call = super().read_prompts
        return self._accelerator.run(len(input_ids), lambda: call(input_ids, *others, **values))


class Run(NamedTuple):
    """One way to decode a batch.

    Attributes:
        seconds: wall-clock time after the prompts.
        own_ms: of a step of one loop, without target and heads; mean.
        outputs: token ids of each text.
    """

    seconds: float
    own_ms: float
    outputs: list[list[int]]


@dataclass(frozen=True)
class Bench:
    """What is decoded."""

    subject: Subject
    drafter: TreeDrafter
    new_tokens: int

    def run(self, loops: int, batch: int, milliseconds: float, bound: str) -> tuple[Run, int]:
        """Decode the first `batch` prompts in one loop or two; also returns the late calls."""
        accelerator = Accelerator(milliseconds, batch, bound)
        prompts = self.subject.prompts[:batch]
        size = batch // loops
        parts = [prompts[i * size : (i + 1) * size] for i in range(loops)]
        with ThreadPoolExecutor(loops) as pool:
            found = list(pool.map(lambda part: self._decode(part, accelerator), parts))
        results = [result for part in found for result in part]
        seconds = [_decoding_seconds(part) for part in found]
        steps = [max(result.stats.target_calls for result in part) - 1 for part in found]
        own = sum(result.stats.own_seconds for result in results) / sum(steps)
        outputs = [result.token_ids for result in results]
        return Run(max(seconds), 1e3 * own, outputs), accelerator.late

    def _decode(self, prompts: list[list[int]], accelerator: Accelerator) -> list[DecodeResult]:
        model = DraftingModel(self.subject.model)
        model.target = SharedTarget(self.subject.model.base, accelerator)
        results: list[DecodeResult] = decode(
            model, prompts, self.drafter, max_new_tokens=self.new_tokens, layout="tree"
        )
        return results


def _decoding_seconds(results: list[DecodeResult]) -> float:
    """Wall-clock seconds of a batch without those of its prompts."""
    return sum(result.stats.seconds["total"] - result.stats.seconds["prompt"] for result in results)


def measure(
    bench: Bench, batch: int, milliseconds: float, bound: str, rounds: int
) -> dict[str, Any]:
    """Both ways in turn.

    Raises:
        AssertionError: their outputs differ.
    """
    ratios, own, late = [], [], 0
    for turn in range(rounds + 1):  # the first one does not count
        found = {}
        for loops in (1, 2) if turn % 2 else (2, 1):
            found[loops], missed = bench.run(loops, batch, milliseconds, bound)
            late += missed
        if found[1].outputs != found[2].outputs:
            raise AssertionError(f"batch {batch}: outputs of one loop and of two differ")
        if turn:
            ratios.append(found[1].seconds / found[2].seconds)
            own.append(found[1].own_ms)
    return {
        "batch": batch,
        "call_ms": milliseconds,
        "bound": bound,
        "own_ms_of_a_step": round(float(np.median(own)), 3),
        "two_loops_over_one": round(float(np.median(ratios)), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "late_calls": late,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one batch size, two rounds")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "overlap.json"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    batches = (16,) if args.quick else (8, 32)
    rounds, steps = (2, 150) if args.quick else (5, 400)
    subject = train_subject(max(batches), steps)
    config = DraftConfig("tree", max_nodes=NODES, alpha=1.0, temperature=1.0)
    bench = Bench(subject, TreeDrafter(subject.lm, config), 32 if args.quick else 64)
    cases = [(batch, 0.0, "this processor") for batch in batches]
    cases += list(product(batches, (20.0, 40.0), BOUNDS))
    rows = [measure(bench, *case, rounds) for case in cases]
    print_table(
        "two loops with half of the batch each, relative to one loop",
        list(rows[0]), [list(row.values()) for row in rows],
    )  # fmt: skip
    write_json(args.out, {"machine": describe_machine(), "nodes": NODES, "cases": rows})


if __name__ == "__main__":
    main()
