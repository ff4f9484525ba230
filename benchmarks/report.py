"""Results as tables in the shape of Kim et al. 2024, appendix H.2, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lattice_bpd import atomic_files

# Milliseconds, 4-gram LM of 100 M n-grams: best paths of 8 x 16 by their number (table 12), and
# 1-best by slots and top-k (table 13).
PAPER_BY_DRAFTS = {1: 1.630, 2: 1.751, 4: 1.878, 8: 1.871, 16: 1.983}
PAPER_BY_SHAPE = {
    (4, 2): 1.038, (4, 4): 1.050, (4, 8): 1.130, (4, 16): 1.237,
    (8, 2): 1.061, (8, 4): 1.144, (8, 8): 1.234, (8, 16): 1.630,
    (16, 2): 1.102, (16, 4): 1.206, (16, 8): 1.558, (16, 16): 2.174,
}  # fmt: skip


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns padded to their widest cell."""
    cells = [list(head), *([_show(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    print(f"\n{title}")
    for row in cells:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _show(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:,.3f}" if cell < 10 else f"{cell:,.1f}"
    return "-" if cell is None else str(cell)


def print_comparison(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """A line for each measurement of both engines."""
    head = ["lattices", "slots", "top-k", "paths", "paper ms", "openfst ms", "90 %"]
    head += ["fused ms", "90 %", "openfst / fused"]
    lines = []
    for row in rows:
        shape = (row["slots"], row["top_k"])
        ours, peer = row["fused"], row["openfst"]
        times = [value / 1000 for value in (peer["median_us"], peer["p90_us"])]
        times += [value / 1000 for value in (ours["median_us"], ours["p90_us"])]
        lines.append(
            [row["lattices"], *shape, row["num_drafts"], row["paper_ms"], *times, row["ratio"]]
        )
    print_table(title, head, lines)


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Replaces a JSON file as a whole; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_json(path, results)
