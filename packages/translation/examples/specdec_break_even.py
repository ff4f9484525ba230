"""The smallest target with which SpecDec is faster than greedy decoding on this machine.

    python examples/specdec_break_even.py [--sizes D ...] [--encoder-layers L]
        [--decoder-layers L ...] [--block-efficiency B] [--json FILE]

Times untrained targets by hidden size and decoder layers: the call that reads the source (encoder
and the first decoder call, which both strategies need), a greedy call, and a SpecDec call, which
drafts and verifies a block. For a translation of m tokens at block efficiency b

    greedy     source + (m - 1) greedy calls
    SpecDec    source + (m / b - 1) SpecDec calls

The break-even block efficiency makes both equal.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from specdec_translation_parts import FULL, Recipe, build_target

from lattice_bpd import atomic_files
from lattice_bpd.cli.progress import make_console, quiet_transformers
from lattice_bpd.decode import generate
from lattice_bpd_translation.drafter import SpecDrafter, SpecDrafterConfig
from lattice_bpd_translation.heads import SpecDrafterHeads
from lattice_bpd_translation.target import Seq2SeqTarget

SOURCE = list(range(10, 24))  # as long as an average sentence
DECODED = 40  # tokens per timing, so that few blocks are cut at the end


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Time all targets and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024], metavar="D",
                        help="hidden sizes of the target (default: %(default)s)")  # fmt: skip
    parser.add_argument("--encoder-layers", type=int, default=FULL.encoder_layers, metavar="L",
                        help="encoder layers of the target (default: %(default)s)")  # fmt: skip
    parser.add_argument("--decoder-layers", type=int, nargs="+", default=[2, 6], metavar="L",
                        help="decoder layers of the target (default: %(default)s)")  # fmt: skip
    parser.add_argument("--num-slots", type=int, default=FULL.num_slots, metavar="N",
                        help="tokens of a block (default: %(default)s)")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=14, metavar="M",
                        help="tokens of a translation (default: %(default)s)")  # fmt: skip
    parser.add_argument("--block-efficiency", type=float, default=2.5, metavar="B",
                        help="of SpecDec, to predict its speed (default: %(default)s)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, metavar="N",
                        help="timings, whose median is printed (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results there, too")
    args = parser.parse_args(arguments)
    if args.tokens < 2 or args.repeats < 1 or args.block_efficiency < 1:
        parser.error("--tokens must be at least 2, --repeats and --block-efficiency at least 1")
    torch.set_num_threads(1)
    quiet_transformers()
    base = replace(FULL, encoder_layers=args.encoder_layers, num_slots=args.num_slots)
    rows = []
    for layers in args.decoder_layers:
        for size in args.sizes:
            recipe = replace(base, hidden_size=size, decoder_layers=layers)
            row = measure(recipe, args.repeats)
            row |= predict(row, args.tokens, args.block_efficiency)
            rows.append(row)
    make_console().print(render(rows, base, args.block_efficiency))
    if args.json is not None:
        atomic_files.write_json(args.json, {"rows": rows})
    return rows


def measure(recipe: Recipe, repeats: int) -> dict[str, Any]:
    """Milliseconds of the calls of an untrained target and drafter."""
    size = recipe.hidden_size
    target = Seq2SeqTarget(build_target(recipe).base, stop_token_ids=[])
    config = SpecDrafterConfig(
        recipe.vocab_size, recipe.num_slots, size, 4 * size, 4,
        decoder_layers=min(recipe.drafter_layers, recipe.decoder_layers),
        source_size=size, state_size=size,
    )  # fmt: skip
    heads = SpecDrafterHeads(SpecDrafter(config).eval())
    prompts: list[float] = []
    calls: dict[str, list[float]] = {"greedy": [], "bpd": []}
    for _ in range(repeats + 1):  # the first warms up
        for drafter, of_drafter in calls.items():
            given = None if drafter == "greedy" else heads
            stats = generate(target, SOURCE, drafter, heads=given, max_new_tokens=DECODED).stats
            prompt, total = stats.seconds["prompt"], stats.seconds["total"]
            prompts.append(1e3 * prompt)
            of_drafter.append(1e3 * (total - prompt) / (stats.target_calls - 1))
    greedy, specdec = (statistics.median(of_drafter[1:]) for of_drafter in calls.values())
    return {
        "hidden_size": size,
        "encoder_layers": recipe.encoder_layers,
        "decoder_layers": recipe.decoder_layers,
        "parameters": sum(weight.numel() for weight in target.base.parameters()),
        "source_ms": statistics.median(prompts[2:]),
        "greedy_ms": greedy,
        "specdec_ms": specdec,
    }


def predict(row: dict[str, Any], tokens: int, block_efficiency: float) -> dict[str, float]:
    """Break-even block efficiency, and SpecDec's speed relative to greedy decoding."""
    greedy, specdec = row["greedy_ms"], row["specdec_ms"]
    calls = max(tokens / block_efficiency - 1, 0.0)
    return {
        "break_even": tokens / (1 + (tokens - 1) * greedy / specdec),
        "speed": (row["source_ms"] + (tokens - 1) * greedy) / (row["source_ms"] + calls * specdec),
    }


def render(rows: list[dict[str, Any]], recipe: Recipe, block_efficiency: float) -> Table:
    """The table."""
    title = (
        f"Milliseconds, {recipe.encoder_layers} encoder layers, blocks of {recipe.num_slots}; "
        f"speed relative to greedy at block efficiency {block_efficiency:g}"
    )
    table = Table(title=title, title_justify="left")
    columns = (
        "decoder layers", "hidden", "parameters", "source", "greedy", "SpecDec", "break-even",
        "speed",
    )  # fmt: skip
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["decoder_layers"]), str(row["hidden_size"]), f"{row['parameters'] / 1e6:.1f} M",
            *(f"{row[name]:.2f}" for name in
              ("source_ms", "greedy_ms", "specdec_ms", "break_even", "speed")),
        )  # fmt: skip
    return table


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"specdec_break_even: {error}")
