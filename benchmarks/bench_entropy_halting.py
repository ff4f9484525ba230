"""Does the order of the heads' entropies pay as a halting condition? (Kim et al. 2024, B.2)

    python benchmarks/bench_entropy_halting.py                    # 90 seconds of one core
    python benchmarks/bench_entropy_halting.py --only drafting    # 10 seconds
    python benchmarks/bench_entropy_halting.py --quick            # to try the command

The paper proposes the order of the heads' mean entropies as a condition that ends the training of
draft heads. h_max is the head up to which mean entropies never fall. Two questions:

training   New heads are trained on the demo model, frozen. h_max and BPD's block efficiency are
           measured along the way: what does a rule lose that stops where h_max reaches h, or where
           h_max has not risen for three measurements, beside one that stops where the validation
           loss has not fallen for three, and beside the whole training?
drafting   With the demo model's own heads, drafts end before the first slot whose entropy is below
           that of the head before it, head 1 counted or not; beside drafts that end where a slot's
           entropy exceeds a threshold, and drafts of fixed length: block efficiency by draft tokens
           per call.

In the training, h_max is that of the draft heads: head 1 is the target's, which does not train, and
the demo's target was trained so that its own entropy is higher than that of the heads.

All texts are greedy outputs after prompts from held-out files of Python's library. Results go to
benchmarks/results/entropy_halting.json.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine
from report import print_table, write_json

from lattice_bpd.decode import generate
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.evaluate.demo.library_text import draw_prompts, read_library_sources
from lattice_bpd.evaluate.demo.model_folder import load_demo_model
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording, Replayed, record
from lattice_bpd.evaluate.replay.strategies import STRATEGIES
from lattice_bpd.evaluate.statistics.heads import h_max, measure_entropies
from lattice_bpd.models import BlockwiseLM
from lattice_bpd.train.heads.batches import HeadText
from lattice_bpd.train.heads.frozen import FrozenOptions, train_frozen
from lattice_bpd.train.heads.options import TrainReport
from lattice_bpd.train.heads.validation import measure_heads

RESULTS = Path(__file__).parent / "results" / "entropy_halting.json"
NEW_TOKENS, ROW, PATIENCE = 40, 96, 3
THRESHOLDS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)  # nats
Row = dict[str, Any]


def replay(recording: Recording) -> Replayed:
    """BPD's drafts."""
    return recording.replay(STRATEGIES["bpd"], Rescorers(), DraftConfig())


def cut_slots(recording: Recording, kept: Sequence[int]) -> Recording:
    """The recording with drafts of at most kept[p] tokens at position p."""
    cut = copy.copy(recording)
    cut.slots = np.minimum(recording.slots, np.asarray(kept))
    return cut


def entropies_of(recording: Recording) -> Any:
    """(P, h) entropies of all heads at every position, in nats."""
    return np.concatenate([text.entropies for text in recording.texts])


def halting_steps(rows: Sequence[Row], num_heads: int) -> dict[str, Row | None]:
    """The measurement at which each rule stops; None where it never does.

    Args:
        rows: measurements in order, with h_max and validation_loss.
        num_heads: h.
    """

    def stalls(values: Sequence[float]) -> Row | None:
        """The first row after PATIENCE measurements without a new best value."""
        best = 0
        for index, value in enumerate(values):
            if value > values[best]:
                best = index
            if index - best >= PATIENCE:
                return rows[index]
        return None

    return {
        "h_max = h": next((row for row in rows if row["h_max"] == num_heads), None),
        f"h_max not risen for {PATIENCE} measurements": stalls([row["h_max"] for row in rows]),
        f"validation loss not fallen for {PATIENCE}": stalls(
            [-row["validation_loss"] for row in rows]
        ),
    }


def follow_training(
    model: BlockwiseLM, rows: Any, measure: Callable[[int], Row], steps: int, every: int
) -> list[Row]:
    """Trains heads on a frozen target; measurements at step 1 and every so many steps."""
    found = []

    def on_step(report: TrainReport) -> None:
        if report.step == 1 or report.step % every == 0:
            found.append(measure(report.step))

    train_frozen(model, rows, FrozenOptions(steps=steps), on_step)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--every", type=int, default=100, metavar="N", help="default: %(default)s")
    parser.add_argument("--prompts", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--only", choices=("training", "drafting"), help="default: both")
    parser.add_argument("--quick", action="store_true", help="10 steps, 4 prompts")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args(arguments)
    steps, every, prompts = (10, 5, 4) if args.quick else (args.steps, args.every, args.prompts)
    torch.set_num_threads(1)  # matrices this small are slower on several threads
    demo, corpus = load_demo_model(), read_library_sources(max_files=20 if args.quick else None)
    few = 4 if args.quick else None
    texts = draw_prompts(
        demo.encode(corpus.test[:few]), prompts, demo.settings.prompt_length, NEW_TOKENS, 0
    )
    greedy = generate(demo.model, texts, "greedy", max_new_tokens=NEW_TOKENS)
    outputs = [result.token_ids for result in greedy]
    results: dict[str, Any] = {}
    if args.only != "drafting":
        ids = np.concatenate(demo.encode(corpus.train))
        rows = ids[: (40 if args.quick else 2000) * ROW].reshape(-1, ROW)
        held_out = HeadText(np.concatenate(demo.encode(corpus.tune[:few])))
        results |= measure_training(demo.model, rows, held_out, (texts, outputs), steps, every)
    if args.only != "training":
        results["drafting"] = compare_drafting(record(demo.model, texts, outputs, top_k=1))
        print_table(
            "where a rule ends the drafts",
            ["rule", "tokens per call", "draft tokens per call", "fixed length with as many"],
            [list(row.values()) for row in results["drafting"]],
        )
    if not args.quick and args.only is None:
        settings = {"steps": steps, "prompts": len(texts), "machine": describe_machine()}
        write_json(args.json, {**settings, **results})


def measure_training(
    trained: BlockwiseLM,
    rows: Any,
    held_out: HeadText,
    greedy: tuple[list[list[int]], list[list[int]]],
    steps: int,
    every: int,
) -> dict[str, Any]:
    """Trains new heads on a model's target, prints the table, and says where rules stop."""
    torch.manual_seed(0)
    model = BlockwiseLM(trained.base, trained.num_heads)

    def measure(step: int) -> Row:
        recording = record(model, *greedy, top_k=1)
        scores = measure_heads(model, held_out, ROW, max_pieces=32)
        return {
            "step": step,
            "h_max": 1 + h_max(measure_entropies(recording)["means"][1:]),  # of the draft heads
            "block_efficiency": replay(recording).block_efficiency,
            "validation_loss": float(np.mean(scores.losses[1:])),
        }

    found = follow_training(model, rows, measure, steps, every)
    columns = ["step", "h_max", "block_efficiency", "validation_loss"]
    print_table("training", columns, [[row[key] for key in columns] for row in found])
    halts = halting_steps(found, model.num_heads)
    whole = found[-1]["block_efficiency"]
    print_table(
        "where a rule stops the training",
        ["rule", "step", "tokens per call", "of the whole training's"],
        [
            [rule, row["step"], row["block_efficiency"], f"{row['block_efficiency'] / whole:.1%}"]
            if row is not None else [rule, None, None, None]
            for rule, row in halts.items()
        ],
    )  # fmt: skip
    return {"training": found, "halts": halts}


def compare_drafting(recording: Recording) -> list[Row]:
    """Rules that end drafts, each beside drafts of fixed length with as many draft tokens."""
    fixed = [
        replay(cut_slots(recording, [length] * len(recording)))
        for length in range(recording.num_slots + 1)
    ]
    sizes = [one.nodes_per_call for one in fixed]
    values = [one.block_efficiency for one in fixed]
    entropies = entropies_of(recording)
    rules: dict[str, Any] = {
        f"fixed: {length} tokens": np.full(len(recording), length)
        for length in range(1, recording.num_slots + 1)
    }
    rules["first head of lower entropy"] = [h_max(row) - 1 for row in entropies]
    rules["first draft head of lower entropy"] = [h_max(row[1:]) for row in entropies]
    for threshold in THRESHOLDS:
        above = entropies[:, 1:] > threshold
        kept = np.where(above.any(axis=1), above.argmax(axis=1), recording.num_slots)
        rules[f"first slot above {threshold:g} nats"] = kept
    rows = []
    for name, kept in rules.items():
        replayed = replay(cut_slots(recording, kept))
        size = replayed.nodes.sum() / max(1, len(replayed.nodes))
        rows.append(
            {
                "rule": name,
                "block_efficiency": replayed.block_efficiency,
                "draft_tokens_per_call": float(size),
                "fixed_length": float(np.interp(size, sizes, values)),
            }
        )
    return rows


if __name__ == "__main__":
    main()
