"""A decoding step's own time beside the replayed call of the target, measured without a GPU.

    python benchmarks/bench_step.py [--tokens 64] [--prompts 3]

Calls are recorded and replayed as on a GPU, by the stand-in of the tests (`recorded_calls.py`), in
float32. Own time is that of a step but for the replay: drafts, inputs, what is read from the
outputs, and bookkeeping. On a GPU two copies and the wait for the call come on top; here the
replay leaves the processor's caches cold, which a GPU does not. Outputs are first compared with
those of the model's own `generate`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import torch
from bench_llm import DRAFTER, fetch_model
from corpus import ROOT
from llm_prompts import make_prompt, read_rows
from machine import describe_machine
from report import print_table
from transformers import AutoModelForCausalLM, AutoTokenizer

from lattice_bpd.decode import generate
from lattice_bpd.decode.drafter_file import load_drafter
from lattice_bpd.decode.loop.engine import Engine
from lattice_bpd.models import load_heads

sys.path.append(str(ROOT / "tests" / "python"))
import recorded_calls


class Stopwatch:
    """The time of each step without that of its replay."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self._replays = 0.0
        step, replay = Engine.step, recorded_calls.Recording.replay

        def timed_replay(recording: Any) -> Any:
            start = time.perf_counter()
            output = replay(recording)
            self._replays += time.perf_counter() - start
            return output

        def timed_step(engine: Any) -> None:
            before, start = self._replays, time.perf_counter()
            step(engine)
            if self._replays > before:
                own = time.perf_counter() - start - (self._replays - before)
                self.steps.append(own)

        Engine.step = timed_step  # type: ignore[method-assign]
        recorded_calls.Recording.replay = timed_replay  # type: ignore[method-assign]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=3)
    args = parser.parse_args()
    folder = fetch_model()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [row for row in read_rows("tuning") if "turns" not in row][: args.prompts]
    prompts = [make_prompt(row, tokenizer, list).token_ids for row in rows]
    expected = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(ids, do_sample=False, max_new_tokens=args.tokens)
        expected.append(output[0, len(prompt) :].tolist())
    recorded_calls.pytest_configure()
    stopwatch, table = Stopwatch(), []
    methods: dict[str, dict[str, Any]] = {
        "greedy": {"drafter": "greedy"},
        "text and predictions": {},
        "with LM and heads": {"drafter": load_drafter(DRAFTER), "heads": load_heads(DRAFTER)},
    }
    for name, options in methods.items():
        for number, prompt in enumerate([prompts[0], *prompts]):
            found = generate(
                model, prompt, max_new_tokens=args.tokens, cpu_kernels=False, **options
            )
            assert found.token_ids == expected[max(0, number - 1)], (name, number)
            if number == 0:  # records
                stopwatch.steps.clear()
        times = sorted(1e3 * seconds for seconds in stopwatch.steps)
        tenth = len(times) // 10
        table.append([name, len(times), statistics.median(times), times[tenth], times[-1 - tenth]])
    print(describe_machine())
    print_table("own time of a step", ["drafts", "steps", "median ms", "10 %", "90 %"], table)


if __name__ == "__main__":
    main()
