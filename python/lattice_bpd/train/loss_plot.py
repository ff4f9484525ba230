"""A loss log as a picture: one curve for each head, as SVG, without any library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT = 760, 440
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 40, 150, 52  # margins; the legend stands in the right one
_TICKS = 6

Points = list[tuple[float, float]]


def write_loss_plot(path: Path, lines: Sequence[Mapping[str, Any]], title: str) -> None:
    """Draw training losses (lines) and validation losses (dots) by step.

    Args:
        path: the .svg file, replaced as a whole.
        lines: of a loss log, see `loss_log`.
        title: above the picture.

    Raises:
        OSError: the file cannot be written.
    """
    training = _curves(line for line in lines if "losses" in line)
    validation = _curves(
        {"step": line["step"], **line["validation"]} for line in lines if "validation" in line
    )
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(_draw(training, validation, title), encoding="utf-8")
    temporary.replace(path)


def _curves(lines: Any) -> dict[int, Points]:
    """(step, loss) of each head."""
    curves: dict[int, Points] = {}
    for line in lines:
        for head, loss in line["losses"].items():
            curves.setdefault(int(head), []).append((line["step"], loss))
    return dict(sorted(curves.items()))


def _draw(training: dict[int, Points], validation: dict[int, Points], title: str) -> str:
    points = [point for curves in (training, validation) for c in curves.values() for point in c]
    frame = _Frame(points or [(0.0, 0.0), (1.0, 1.0)])
    heads = sorted({*training, *validation})
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{_escape(title)}</text>',
        *frame.axes(),
    ]
    for place, head in enumerate(heads):
        colour = _colour(place, len(heads))
        parts.extend(_line(frame, training.get(head, []), colour))
        parts.extend(_dots(frame, validation.get(head, []), colour))
        y = _TOP + 12 + 18 * place
        x = _WIDTH - _RIGHT + 16
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colour}" '
                     'stroke-width="2"/>')  # fmt: skip
        parts.append(f'<text x="{x + 28}" y="{y + 4}">head {head}</text>')
    if validation:
        y = _TOP + 16 + 18 * len(heads)
        parts.append(f'<text x="{_WIDTH - _RIGHT + 16}" y="{y}">dots: validation</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _line(frame: _Frame, points: Points, colour: str) -> list[str]:
    if not points:
        return []
    path = " ".join(f"{frame.x(step):.1f},{frame.y(loss):.1f}" for step, loss in points)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']


def _dots(frame: _Frame, points: Points, colour: str) -> list[str]:
    return [
        f'<circle cx="{frame.x(step):.1f}" cy="{frame.y(loss):.1f}" r="3" fill="{colour}"/>'
        for step, loss in points
    ]


class _Frame:
    """Where steps and losses lie on the picture."""

    def __init__(self, points: Points) -> None:
        steps, losses = zip(*points, strict=True)
        self._steps = _ticks(min(0, *steps), max(steps))
        self._losses = _ticks(min(losses), max(losses))

    def x(self, step: float) -> float:
        """Pixels from the left."""
        low, high = self._steps[0], self._steps[-1]
        return _LEFT + (step - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, loss: float) -> float:
        """Pixels from the top."""
        low, high = self._losses[0], self._losses[-1]
        return _HEIGHT - _BOTTOM - (loss - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> list[str]:
        """Grid, numbers and labels."""
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = []
        for loss in self._losses:
            y = self.y(loss)
            parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" '
                         'stroke="#ddd"/>')  # fmt: skip
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:g}</text>')
        for step in self._steps:
            x = self.x(step)
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{step:g}</text>'
            )
        parts.append(f'<path d="M{_LEFT} {_TOP} V{bottom} H{right}" fill="none" stroke="#333"/>')
        parts.append(f'<text x="{(_LEFT + right) / 2}" y="{bottom + 40}" text-anchor="middle">'
                     "step</text>")  # fmt: skip
        middle = (_TOP + bottom) / 2
        parts.append(f'<text x="16" y="{middle}" text-anchor="middle" '
                     f'transform="rotate(-90 16 {middle})">loss, nats a token</text>')  # fmt: skip
        return parts


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, at least two, that enclose low..high."""
    spread = max(high - low, 1e-6 * max(1.0, abs(high)))
    raw = spread / (_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 12) for i in range(first, max(last, first + 1) + 1)]


def _colour(place: int, count: int) -> str:
    """Hues from blue (near heads) to red (far heads)."""
    return f"hsl({230 - 230 * place / max(1, count - 1):.0f},70%,45%)"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
