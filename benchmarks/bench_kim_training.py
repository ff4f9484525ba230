"""Training choices of Kim et al. 2024 beside ours, each trained from scratch on the same text.

    python benchmarks/bench_kim_training.py                      # all, 12 minutes of one core
    python benchmarks/bench_kim_training.py --only first_head    # or loss, preset, num_heads
    python benchmarks/bench_kim_training.py --quick              # 6 steps, to try the command

first_head   a feed-forward network on head 1 too, as the paper's models have
loss         lambda 1 at every step and all positions; ours raises lambda 2.. and samples positions
preset       `--preset kim2024` whole: its rate and AdamW as well
num_heads    models trained with h of 3 and 6 heads, beside the first heads of one trained with 9

The model is the small GPT of `heads train --recipe joint` on files of Python's library, batches of
8 x 256 tokens. Losses and accuracies are measured on held-out files, block efficiency on greedy
outputs of each model. One seed: differences of some hundredths of a nat can be chance. Results go
to benchmarks/results/kim_training.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine
from report import print_table, write_json

from lattice_bpd.decode import generate
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.demo.library_text import draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import load_demo_model
from lattice_bpd_kim2024.heads.first_head import attach_first_head
from lattice_bpd_kim2024.heads.joint import train_blockwise
from lattice_bpd_kim2024.heads.options import HeadText, TrainOptions
from lattice_bpd_kim2024.heads.recipes import PRESETS
from lattice_bpd_kim2024.heads.validation import measure_heads
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import record
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.small_models import build_small_gpt
from lattice_bpd_kim2024.statistics import loop_share, measure_entropies

RESULTS = Path(__file__).parent / "results" / "kim_training.json"
LENGTH, BATCH, PROMPT, NEW_TOKENS, TOP_K = 256, 8, 48, 40, 16
SHOWN = (1, 2, 3, 6, 9)  # heads
KIM = dict(PRESETS["kim2024"].options["joint"])
_SCHEDULE = ("head_ramp", "head_fraction")  # of the loss; the rest is the optimizer's


@dataclass(frozen=True)
class Variant:
    """One model to train."""

    name: str
    num_heads: int = 9
    first_head: bool = False
    options: dict[str, Any] = field(default_factory=dict)


OURS = Variant("ours, h = 9")
LOSS = Variant("lambda 1 throughout, all positions", options={key: KIM[key] for key in _SCHEDULE})
GROUPS = {
    "first_head": [OURS, replace(OURS, name="ours, network on head 1", first_head=True)],
    "loss": [OURS, LOSS],
    "preset": [
        OURS,
        Variant("kim2024", first_head=PRESETS["kim2024"].first_head, options={
            key: value for key, value in KIM.items()
            if key not in ("steps", "batch_size", "sequence_length")
        }),
    ],
    "num_heads": [OURS, *(Variant(f"ours, h = {h}", h) for h in (3, 6))],
}  # fmt: skip


class Text:
    """Token ids to train on, to validate on, and prompts."""

    def __init__(self, prompts: int, max_files: int | None) -> None:
        demo = load_demo_model()
        corpus = read_library_sources(max_files=max_files)
        few = max_files and max_files // 4
        self.vocab_size = demo.model.vocab_size
        self.train, self.held_out = (
            np.concatenate(demo.encode(texts)) for texts in (corpus.train, corpus.tune[:few])
        )
        documents = demo.encode(corpus.test[:few])
        self.prompts = draw_prompts(documents, prompts, PROMPT, NEW_TOKENS, 0)


def train(variant: Variant, text: Text, steps: int) -> tuple[BlockwiseLM, float]:
    """The trained model, and the seconds that it took."""
    torch.manual_seed(0)  # all variants share the target's first weights
    model = build_small_gpt(text.vocab_size, num_heads=variant.num_heads, max_positions=LENGTH)
    if variant.first_head:
        attach_first_head(model.base)
    options = TrainOptions(
        **{"steps": steps, "batch_size": BATCH, "sequence_length": LENGTH, "precision": "fp32",
           **variant.options}
    )  # fmt: skip
    start = time.perf_counter()
    train_blockwise(model, text.train, options)
    return model, time.perf_counter() - start


def measure(variant: Variant, text: Text, steps: int) -> dict[str, Any]:
    """Trains a variant; its scores by head, and block efficiency on its own greedy outputs."""
    model, seconds = train(variant, text, steps)
    scores = measure_heads(model, HeadText(text.held_out), LENGTH, max_pieces=32)
    greedy = generate(model.base, text.prompts, "greedy", max_new_tokens=NEW_TOKENS)
    outputs = [result.token_ids for result in greedy]
    recording = record(model, text.prompts, outputs, top_k=TOP_K)

    def efficiency(name: str, num_heads: int) -> float:
        strategy, options = STRATEGIES[name], DraftConfig(top_k=TOP_K)
        cut = recording.with_slots(num_heads - 1)
        return cut.replay(strategy, Rescorers(), options).block_efficiency

    return {
        "name": variant.name,
        "num_heads": variant.num_heads,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "losses": scores.losses,
        "accuracies": scores.accuracies,
        "bpd_by_heads": {h: efficiency("bpd", h) for h in (3, 6, 9) if h <= variant.num_heads},
        "oracle": efficiency("oracle", variant.num_heads),
        "h_max": measure_entropies(recording)["h_max"],
        "loop_share": loop_share(text.prompts, outputs),
        "seconds": round(seconds, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train all, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=tuple(GROUPS), action="append", help="repeatable")
    parser.add_argument("--steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--prompts", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="6 steps, 4 prompts")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    args = parser.parse_args(arguments)
    steps, prompts = (6, 4) if args.quick else (args.steps, args.prompts)
    torch.set_num_threads(1)  # matrices this small are slower on several threads
    text = Text(prompts, 20 if args.quick else None)
    chosen = args.only or list(GROUPS)
    variants = {one.name: one for name in chosen for one in GROUPS[name]}
    results = []
    for variant in variants.values():
        results.append(measure(variant, text, steps))
        print(f"{variant.name}: {results[-1]['seconds']:.0f} s", flush=True)
    columns = ["BPD, 3 heads", "6", "9", "oracle", "h_max", "in loops", "parameters", "s"]
    print_table(
        f"{steps} steps: losses of heads {', '.join(map(str, SHOWN))} in nats; tokens per call",
        ["", *(f"L{head}" for head in SHOWN), *columns],
        [
            [
                row["name"],
                *(row["losses"][h - 1] if h <= row["num_heads"] else None for h in SHOWN),
                *(row["bpd_by_heads"].get(h) for h in (3, 6, 9)),
                row["oracle"], row["h_max"], row["loop_share"], f"{row['parameters']:,}",
                row["seconds"],
            ]
            for row in results
        ],
    )  # fmt: skip
    if not args.quick:
        settings = {"steps": steps, "prompts": len(text.prompts), "machine": describe_machine()}
        write_json(args.json, {**settings, "variants": results})


if __name__ == "__main__":
    main()
