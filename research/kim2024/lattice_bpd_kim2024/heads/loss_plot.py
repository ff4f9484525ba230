"""An SVG plot of a loss log with one curve per head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lattice_bpd.atomic_files import write_text
from lattice_bpd_kim2024.report.charts import Series, as_file, draw_lines


def write_loss_plot(
    path: Path, lines: Sequence[Mapping[str, Any]], title: str, unit: str = "head"
) -> None:
    """Plots training losses (lines) and validation losses (dots) by step.

    Args:
        path: the .svg file, replaced as a whole.
        lines: of a loss log, see `loss_log`.
        title: title of the plot.
        unit: what has a loss of its own, "head" or "slot".

    Raises:
        OSError: the file cannot be written.
    """
    training = _curves(line for line in lines if "losses" in line)
    validation = _curves(
        {"step": line["step"], **line["validation"]}
        for line in lines
        if "losses" in line.get("validation", {})
    )
    series = [
        Series(f"{unit} {head}", training.get(head, ()), validation.get(head, ()))
        for head in sorted({*training, *validation})
    ]
    note = "dots: validation" if validation else ""
    chart = draw_lines(series, title=title, x_label="step", y_label="loss, nats a token", note=note)
    write_text(path, as_file(chart))


def _curves(lines: Any) -> dict[int, list[tuple[float, float]]]:
    """(step, loss) of each head."""
    curves: dict[int, list[tuple[float, float]]] = {}
    for line in lines:
        for head, loss in line["losses"].items():
            curves.setdefault(int(head), []).append((line["step"], loss))
    return dict(sorted(curves.items()))
