"""The smallest target with which SpecDec is faster than greedy decoding on this machine.

    python examples/specdec_break_even.py [--sizes D ...] [--decoder-layers L ...] [--json FILE]

Times decoding calls of untrained targets by hidden size and decoder layers: a greedy call, and a
SpecDec call, which drafts and verifies a block. The break-even block efficiency is their ratio.
SpecDec is faster when its drafts reach a higher one. The time of the encoder, which both need, is
left out.
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
from specdec_translation_parts import FULL, build_target

from lattice_bpd import atomic_files
from lattice_bpd.cli.progress import make_console, quiet_transformers
from lattice_bpd.decode import generate
from lattice_bpd.decode.state import SpecDrafterHeads
from lattice_bpd.models import SpecDrafter, SpecDrafterConfig
from lattice_bpd.verify import Seq2SeqTarget


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Time all targets and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024], metavar="D",
                        help="hidden sizes of the target (default: %(default)s)")  # fmt: skip
    parser.add_argument("--decoder-layers", type=int, nargs="+", default=[2, 6], metavar="L",
                        help="decoder layers of the target (default: %(default)s)")  # fmt: skip
    parser.add_argument("--tokens", type=int, default=24, metavar="N",
                        help="tokens of each output (default: %(default)s)")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, metavar="N",
                        help="timings, whose median is printed (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results there, too")
    args = parser.parse_args(arguments)
    if args.tokens < 2 or args.repeats < 1:
        parser.error("--tokens must be at least 2 and --repeats at least 1")
    torch.set_num_threads(1)
    quiet_transformers()
    rows = [
        measure(size, layers, args.tokens, args.repeats)
        for layers in args.decoder_layers
        for size in args.sizes
    ]
    make_console().print(render(rows))
    if args.json is not None:
        atomic_files.write_json(args.json, {"rows": rows})
    return rows


def measure(size: int, layers: int, tokens: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of a greedy and of a SpecDec call; the drafter has two decoder layers."""
    recipe = replace(FULL, hidden_size=size, decoder_layers=layers)
    target = Seq2SeqTarget(build_target(recipe).base, stop_token_ids=[])
    config = SpecDrafterConfig(
        recipe.vocab_size, recipe.num_slots, size, 4 * size, 4, decoder_layers=2,
        source_size=size, state_size=size,
    )  # fmt: skip
    heads = SpecDrafterHeads(SpecDrafter(config).eval())
    source = list(range(10, 24))
    times: dict[str, list[float]] = {"greedy": [], "bpd": []}
    for _ in range(repeats + 1):  # the first warms up
        for drafter, found in times.items():
            given = None if drafter == "greedy" else heads
            stats = generate(target, source, drafter, heads=given, max_new_tokens=tokens).stats
            seconds = sum(stats.seconds.values()) - stats.seconds["prompt"]
            found.append(1e3 * seconds / (stats.target_calls - 1))
    greedy, specdec = (statistics.median(found[1:]) for found in times.values())
    return {
        "hidden_size": size,
        "decoder_layers": layers,
        "parameters": sum(weight.numel() for weight in target.base.parameters()),
        "greedy_ms": greedy,
        "specdec_ms": specdec,
        "break_even": specdec / greedy,
    }


def render(rows: list[dict[str, Any]]) -> Table:
    """The table."""
    table = Table(title=f"Milliseconds per call, blocks of {FULL.num_slots}", title_justify="left")
    columns = ("decoder layers", "hidden", "parameters", "greedy", "SpecDec", "break-even")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["decoder_layers"]), str(row["hidden_size"]), f"{row['parameters'] / 1e6:.1f} M",
            f"{row['greedy_ms']:.2f}", f"{row['specdec_ms']:.2f}", f"{row['break_even']:.2f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError, ImportError) as error:
        sys.exit(f"specdec_break_even: {error}")
