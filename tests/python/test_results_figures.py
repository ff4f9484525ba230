"""docs/results.md quotes the figures of benchmarks/results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def rows_below(heading: str) -> list[list[str]]:
    """The cells of all rows of the tables below a heading of docs/results.md."""
    text = (ROOT / "docs" / "results.md").read_text()
    assert text.count(f"\n{heading}\n") == 1
    section = text.split(f"\n{heading}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|")
    ]


def test_entropies_as_a_halting_condition() -> None:
    found, rows = results("entropy_halting"), rows_below("### Entropies as a halting condition")
    training = [row for row in rows if len(row) == 4 and row[0].isdigit()]
    assert len(training) > 5
    by_step = {row["step"]: row for row in found["training"]}
    for step, h_max, tokens, loss in training:
        row = by_step[int(step)]
        assert [h_max, tokens, loss] == [
            str(row["h_max"]), f"{row['block_efficiency']:.3f}", f"{row['validation_loss']:.3f}"
        ]  # fmt: skip
    whole = found["training"][-1]["block_efficiency"]
    halts = {name: row for name, row in found["halts"].items() if row is not None}
    stops = [row for row in rows if row[-1].endswith(" %")]
    assert [row[1:] for row in stops] == [
        [str(row["step"]), f"{row['block_efficiency']:.3f}",
         f"{row['block_efficiency'] / whole:.1%}".replace("%", " %")]
        for row in halts.values()
    ]  # fmt: skip
    drafts = [row for row in rows if row[0].startswith(("after", "before", "the same"))]
    measured = {
        (f"{row['block_efficiency']:.3f}", f"{row['draft_tokens_per_call']:.2f}",
         f"{row['fixed_length']:.3f}")
        for row in found["drafting"]
    }  # fmt: skip
    assert len(drafts) == 8
    for row in drafts:
        assert tuple(row[1:]) in measured, row
