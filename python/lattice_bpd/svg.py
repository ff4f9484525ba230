"""Charts as SVG, without any library: lines, dots and intervals in a frame of round numbers.

Text and axes take the colour of the page (`currentColor`), so that a chart inside a page follows
its light or dark scheme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

WIDTH, HEIGHT = 760, 440
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 40, 150, 52  # margins; the legend stands in the right one
_TICKS = 6
_ROW = 18  # pixels of a line of the legend
_LABELS = 230  # pixels for names at the left of intervals
_SPACE = "http://www.w3.org/2000/svg"

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One curve.

    Attributes:
        name: in the legend.
        line: points to join, in order.
        dots: points on their own.
        dashed: whether the line is.
    """

    name: str
    line: Points = ()
    dots: Points = ()
    dashed: bool = False


@dataclass(frozen=True)
class Span:
    """A value with its interval.

    Attributes:
        name: beside it.
        value: of the dot.
        low: where the bar begins.
        high: where it ends.
    """

    name: str
    value: float
    low: float
    high: float


def draw_lines(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    note: str = "",
    x_from_zero: bool = True,
    right: int = _RIGHT,
) -> str:
    """Curves over one another.

    Args:
        series: each in a colour of its own.
        title: above the chart.
        x_label: below it.
        y_label: at its left.
        note: below the legend.
        x_from_zero: whether 0 is on the x axis.
        right: pixels of the margin that holds the legend.

    Returns:
        An <svg> element, to stand in a page.
    """
    points = [point for one in series for point in chain(one.line, one.dots)]
    frame = _Frame(points or [(0.0, 0.0), (1.0, 1.0)], x_from_zero, WIDTH - right)
    parts = [f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>']
    parts += frame.axes(x_label, y_label)
    for place, one in enumerate(series):
        colour = colour_of(place, len(series))
        parts += _line(frame, one, colour)
        parts += [
            f'<circle cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3" fill="{colour}"/>'
            for x, y in one.dots
        ]
        parts += _key(WIDTH - right + 16, _TOP + 12 + _ROW * place, one, colour)
    if note:
        y = _TOP + 16 + _ROW * len(series)
        parts.append(f'<text x="{WIDTH - right + 16}" y="{y}">{escape(note)}</text>')
    return _element(parts, HEIGHT, title)


def draw_spans(spans: Sequence[Span], *, title: str, x_label: str) -> str:
    """Values with their intervals, a row each.

    Args:
        spans: from the top.
        title: above the chart.
        x_label: below it.

    Returns:
        An <svg> element, to stand in a page.
    """
    ticks = _ticks(min(s.low for s in spans), max(s.high for s in spans)) if spans else [0.0, 1.0]
    low, high = ticks[0], ticks[-1]
    bottom = _TOP + 24 * len(spans) + 8

    def x_of(value: float) -> float:
        return _LABELS + (value - low) / (high - low) * (WIDTH - _LABELS - 30)

    parts = [f'<text x="12" y="22" font-size="14">{escape(title)}</text>']
    for tick in ticks:
        x = x_of(tick)
        parts.append(_grid(x, _TOP, x, bottom))
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for place, span in enumerate(spans):
        y, colour = _TOP + 24 * place + 14, colour_of(place, len(spans))
        about = f"{span.name}: {span.value:.3f} ({span.low:.3f} to {span.high:.3f})"
        parts.append(
            f"<g><title>{escape(about)}</title>"
            f'<text x="{_LABELS - 12}" y="{y + 4}" text-anchor="end">{escape(span.name)}</text>'
            f'<line x1="{x_of(span.low):.1f}" y1="{y}" x2="{x_of(span.high):.1f}" y2="{y}" '
            f'stroke="{colour}" stroke-width="3"/>'
            f'<circle cx="{x_of(span.value):.1f}" cy="{y}" r="5" fill="{colour}"/></g>'
        )
    middle = (_LABELS + WIDTH - 30) / 2
    parts.append(f'<text x="{middle}" y="{bottom + 38}" text-anchor="middle">'
                 f"{escape(x_label)}</text>")  # fmt: skip
    return _element(parts, bottom + 48, title)


def as_file(element: str) -> str:
    """A chart as a file of its own, on white."""
    opening, rest = element.split(">", 1)
    opening = opening.replace("<svg", f'<svg xmlns="{_SPACE}" width="{WIDTH}"', 1)
    return f'{opening}>\n<rect width="100%" height="100%" fill="white"/>{rest}\n'


def escape(text: object) -> str:
    """Text as HTML and SVG hold it, in quotes too."""
    return html.escape(str(text), quote=True)


def colour_of(place: int, count: int) -> str:
    """Hues from blue (first) to red (last)."""
    return f"hsl({230 - 230 * place / max(1, count - 1):.0f},70%,50%)"


def _element(parts: Iterable[str], height: float, title: str) -> str:
    opening = (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(title)}" '
        'font-family="sans-serif" font-size="12" fill="currentColor">'
    )
    return "\n".join([opening, *parts, "</svg>"])


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            'stroke="currentColor" stroke-opacity="0.15"/>')  # fmt: skip


def _line(frame: _Frame, one: Series, colour: str) -> list[str]:
    if not one.line:
        return []
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in one.line)
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"'
            f"{_dashes(one)}/>"]  # fmt: skip


def _key(x: float, y: float, one: Series, colour: str) -> list[str]:
    """A line of the legend."""
    return [
        f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colour}" stroke-width="2"'
        f"{_dashes(one)}/>",
        f'<text x="{x + 28}" y="{y + 4}">{escape(one.name)}</text>',
    ]


def _dashes(one: Series) -> str:
    return ' stroke-dasharray="5 3"' if one.dashed else ""


class _Frame:
    """Where values lie on the picture."""

    def __init__(self, points: Points, x_from_zero: bool, right: int) -> None:
        xs, ys = zip(*points, strict=True)
        self._xs = _ticks(min(0, *xs) if x_from_zero else min(xs), max(xs))
        self._ys = _ticks(min(ys), max(ys))
        self._right = right

    def x(self, value: float) -> float:
        """Pixels from the left."""
        low, high = self._xs[0], self._xs[-1]
        return _LEFT + (value - low) / (high - low) * (self._right - _LEFT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        low, high = self._ys[0], self._ys[-1]
        return HEIGHT - _BOTTOM - (value - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    def axes(self, x_label: str, y_label: str) -> list[str]:
        """Grid, numbers and labels."""
        right, bottom = self._right, HEIGHT - _BOTTOM
        parts = []
        for value in self._ys:
            y = self.y(value)
            parts.append(_grid(_LEFT, y, right, y))
            parts.append(
                f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
            )
        for value in self._xs:
            x = self.x(value)
            parts.append(
                f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>'
            )
        parts.append(f'<path d="M{_LEFT} {_TOP} V{bottom} H{right}" fill="none" '
                     'stroke="currentColor"/>')  # fmt: skip
        parts.append(f'<text x="{(_LEFT + right) / 2}" y="{bottom + 40}" text-anchor="middle">'
                     f"{escape(x_label)}</text>")  # fmt: skip
        middle = (_TOP + bottom) / 2
        parts.append(f'<text x="16" y="{middle}" text-anchor="middle" '
                     f'transform="rotate(-90 16 {middle})">{escape(y_label)}</text>')  # fmt: skip
        return parts


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, at least two, that enclose low..high."""
    spread = max(high - low, 1e-6 * max(1.0, abs(high)))
    raw = spread / (_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * i, 12) for i in range(first, max(last, first + 1) + 1)]
