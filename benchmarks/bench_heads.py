"""Training heads on a frozen target with a large vocabulary: speed and memory against a plain loop.

    python benchmarks/bench_heads.py
    python benchmarks/bench_heads.py --quick

The plain loop materializes the logits of all heads and leaves the rest to autograd. Gradients are
compared before anything is timed. Each variant trains in a process of its own, so that its peak
memory is its own; processes take turns, and the clock is the CPU time of the one thread that
works. Goals: eight heads take at most 1.3 times the memory of one, and train on 1.5 times the
plain loop's tokens a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from machine import describe_machine
from processes import Usage, run_measured
from report import print_table, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from lattice_bpd_kim2024.blockwise import BlockwiseLM
    from lattice_bpd_kim2024.heads.trainer import HeadTrainer

RESULTS = Path(__file__).parent / "results" / "heads.json"
VOCAB, WIDTH, LAYERS, LENGTH = 50257, 256, 4, 128
HEADS = 8  # draft heads
VARIANTS = {"ours, 1 head": ("ours", 1), "ours, 8 heads": ("ours", HEADS),
            "plain, 1 head": ("plain", 1), "plain, 8 heads": ("plain", HEADS)}  # fmt: skip


def make_trainer(slots: int, batch_size: int, steps: int) -> HeadTrainer:
    """A random GPT-2 of GPT-2's vocabulary with new heads, and random text."""
    import numpy as np
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from lattice_bpd_kim2024.blockwise import BlockwiseLM
    from lattice_bpd_kim2024.heads.options import HeadText, TrainOptions
    from lattice_bpd_kim2024.heads.trainer import HeadTrainer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "n_positions": 2 * LENGTH, "n_embd": WIDTH, "n_layer": LAYERS}
    model = BlockwiseLM(GPT2LMHeadModel(GPT2Config(**sizes, n_head=4)), slots + 1)
    text = HeadText(np.random.default_rng(0).integers(0, VOCAB, 20_000).astype(np.int32))
    options = TrainOptions(
        steps=steps, batch_size=batch_size, sequence_length=LENGTH, head_fraction=1.0,
        train_base=False, precision="fp32",
    )  # fmt: skip
    return HeadTrainer(model, text, options)


def plain_loss(model: BlockwiseLM, pieces: Tensor) -> Tensor:
    """The sum of the heads' mean cross entropies, all logits at once."""
    import torch
    from torch.nn import functional as F

    from lattice_bpd_kim2024.heads.losses import label_view

    with torch.no_grad():
        hidden = model.base.base_model(input_ids=pieces[:, :LENGTH]).last_hidden_state
    logits = model.output_embedding(model.heads(hidden.flatten(0, 1)))  # (N, H, V)
    labels = label_view(pieces, model.num_heads)[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) * model.num_slots


def take_plain_step(trainer: HeadTrainer) -> None:
    """What HeadTrainer.take_step does, in the plain way."""
    model = trainer.model

    def backward(step: int) -> dict[int, float]:
        starts = trainer.sample(step).starts
        pieces = trainer.text.take(starts, LENGTH + model.num_heads, model.device)
        loss = plain_loss(model, pieces)
        loss.backward()
        return {2: float(loss.detach())}

    trainer.backward = backward
    trainer.take_step()


def run_variant(kind: str, slots: int, batch_size: int, steps: int) -> None:
    """Train; print the CPU seconds of each step but the first."""
    seconds = []
    with make_trainer(slots, batch_size, steps + 1) as trainer:
        for _ in range(steps + 1):
            start = time.thread_time()
            if kind == "plain":
                take_plain_step(trainer)
            else:
                trainer.take_step()
            seconds.append(time.thread_time() - start)
    print(json.dumps(seconds[1:]))


def check_gradients() -> None:
    """Raise unless both ways give the same gradients; print the largest difference."""
    with make_trainer(HEADS, 1, 1) as trainer:
        model = trainer.model
        model.heads.outer_weight.data.normal_(0.0, 0.02)
        sample = trainer.sample(0)
        trainer.add_gradients(sample)
        ours = {name: weight.grad.clone() for name, weight in trainer.weights.items()}
        model.zero_grad()
        pieces = trainer.text.take(sample.starts, LENGTH + model.num_heads, model.device)
        plain_loss(model, pieces).backward()
        worst = 0.0
        for name, weight in trainer.weights.items():
            scale = float(weight.grad.abs().max())
            worst = max(worst, float((weight.grad - ours[name]).abs().max()) / scale)
    if worst > 1e-4:
        raise AssertionError(f"gradients differ by {worst:.2e} of the largest")
    print(json.dumps(worst))


def measure(batch_size: int, steps: int, rounds: int) -> dict[str, Any]:
    """All variants by turns."""
    usages: dict[str, list[Usage]] = {name: [] for name in VARIANTS}
    for _ in range(rounds):
        for name, (kind, slots) in VARIANTS.items():
            own = ["--variant", kind, slots, batch_size, steps]
            usages[name].append(run_measured([sys.executable, __file__, *map(str, own)]))
    tokens = batch_size * LENGTH
    figures = {}
    for name, runs in usages.items():
        seconds = [second for run in runs for second in json.loads(run.output)]
        median, p90 = statistics.median(seconds), statistics.quantiles(seconds, n=10)[-1]
        figures[name] = {
            "tokens_per_second": round(tokens / median, 1),
            "step_s": round(median, 3),
            "step_s_p90": round(p90, 3),
            "steps": len(seconds),
            "peak_mib": round(statistics.median(run.peak_mib for run in runs), 1),
        }
    return figures


def report(figures: dict[str, Any], difference: float, batch_size: int) -> dict[str, Any]:
    """Print the table and the two ratios; give all of it for JSON."""
    head = ["variant", "tokens/s", "step s", "90 %", "peak MiB"]
    keys = ("tokens_per_second", "step_s", "step_s_p90", "peak_mib")
    rows = [[name, *(row[key] for key in keys)] for name, row in figures.items()]
    title = f"V = {VOCAB:,}, D = {WIDTH}, {batch_size} x {LENGTH} tokens a step, one thread"
    print_table(title, head, rows)
    ours, plain = figures["ours, 8 heads"], figures["plain, 8 heads"]
    ratios = {
        "memory_of_8_heads_over_1": ours["peak_mib"] / figures["ours, 1 head"]["peak_mib"],
        "plain_memory_of_8_heads_over_1": plain["peak_mib"] / figures["plain, 1 head"]["peak_mib"],
        "speed_over_plain": ours["tokens_per_second"] / plain["tokens_per_second"],
    }
    for name, ratio in ratios.items():
        print(f"  {name.replace('_', ' ')}: {ratio:.2f}")
    return {
        "machine": describe_machine(),
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "tokens_per_step": batch_size * LENGTH,
        "largest_gradient_difference": difference,
        "variants": figures,
        **{name: round(ratio, 3) for name, ratio in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and smaller steps")
    parser.add_argument("--variant", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.variant:
        kind, *numbers = args.variant
        run_variant(kind, *map(int, numbers))
        return
    if args.check:
        check_gradients()
        return
    difference = float(run_measured([sys.executable, __file__, "--check"]).output)
    print(f"gradients agree: largest difference {difference:.1e} of the largest gradient")
    batch_size, steps, rounds = (1, 2, 1) if args.quick else (4, 3, 2)
    results = report(measure(batch_size, steps, rounds), difference, batch_size)
    if not args.quick:
        write_json(RESULTS, results)


if __name__ == "__main__":
    main()
