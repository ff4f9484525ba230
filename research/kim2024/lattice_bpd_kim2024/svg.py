"""Line, interval and bar charts as SVG, without dependencies.

Text and axes have the color of the page (`currentColor`), so that a chart follows its light or dark
scheme.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

WIDTH, HEIGHT = 760, 440
_LEFT, _TOP, _RIGHT, _BOTTOM = 64, 40, 150, 52  # margins; the right one holds the legend
_TICKS = 6
_ROW = 18  # pixels per line of the legend
_SPAN_ROW, _SPAN_LEFT, _SPAN_RIGHT = 24, 230, WIDTH - 30  # interval charts: row height, x range
_BAR = 9  # pixels: height of a bar
_GRID = 'stroke="currentColor" stroke-opacity="0.15"'

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """A curve: `line` is a list of points to join, `dots` are separate points."""

    name: str
    line: Points = ()
    dots: Points = ()
    dashed: bool = False


@dataclass(frozen=True)
class Span:
    """A value with its interval low..high."""

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
    """Curves in one frame, each in its own color.

    Args:
        series: the curves.
        title: above the chart.
        x_label: below the x axis.
        y_label: left of the y axis.
        note: below the legend.
        x_from_zero: whether the x axis includes 0.
        right: width of the right margin, in pixels; it holds the legend.

    Returns:
        An <svg> element to embed in a page.
    """
    points = [point for one in series for point in chain(one.line, one.dots)]
    xs, ys = zip(*(points or [(0.0, 0.0), (1.0, 1.0)]), strict=True)
    end, bottom, middle = WIDTH - right, HEIGHT - _BOTTOM, (HEIGHT - _BOTTOM + _TOP) / 2
    x_axis = _Axis(min(0, *xs) if x_from_zero else min(xs), max(xs), _LEFT, end)
    y_axis = _Axis(min(ys), max(ys), bottom, _TOP)
    parts = [_text(_LEFT, 22, title, "start", 'font-size="14"')]
    for tick in y_axis.ticks:
        y = y_axis.pixel(tick)
        parts += [_line(_LEFT, y, end, y, _GRID), _text(_LEFT - 8, y + 4, f"{tick:g}", "end")]
    parts += [_text(x_axis.pixel(tick), bottom + 18, f"{tick:g}") for tick in x_axis.ticks]
    parts += [
        f'<path d="M{_LEFT} {_TOP} V{bottom} H{end}" fill="none" stroke="currentColor"/>',
        _text((_LEFT + end) / 2, bottom + 40, x_label),
        _text(16, middle, y_label, more=f'transform="rotate(-90 16 {middle})"'),
    ]
    for index, one in enumerate(series):
        color, dashes = color_of(index, len(series)), 'stroke-dasharray="5 3"' * one.dashed
        line = " ".join(f"{x_axis.pixel(x):.1f},{y_axis.pixel(y):.1f}" for x, y in one.line)
        stroke = f'stroke="{color}" stroke-width="1.5" {dashes}'
        parts += [f'<polyline points="{line}" fill="none" {stroke}/>'] if line else []
        parts += [_dot(x_axis.pixel(x), y_axis.pixel(y), 3, color) for x, y in one.dots]
        y = _TOP + 12 + _ROW * index
        parts += [
            _line(end + 16, y, end + 38, y, stroke),
            _text(end + 44, y + 4, one.name, "start"),
        ]
    if note:
        parts.append(_text(end + 16, _TOP + 16 + _ROW * len(series), note, "start"))
    return _element(parts, HEIGHT, title)


def draw_spans(spans: Sequence[Span], *, title: str, x_label: str) -> str:
    """Values with their intervals, one row each.

    Args:
        spans: from top to bottom.
        title: above the chart.
        x_label: below the x axis.

    Returns:
        An <svg> element to embed in a page.
    """
    low = min((span.low for span in spans), default=0.0)
    high = max((span.high for span in spans), default=1.0)
    axis = _Axis(low, high, _SPAN_LEFT, _SPAN_RIGHT)
    bottom = _TOP + _SPAN_ROW * len(spans) + 8
    parts = [_text(12, 22, title, "start", 'font-size="14"')]
    for tick in axis.ticks:
        x = axis.pixel(tick)
        parts += [_line(x, _TOP, x, bottom, _GRID), _text(x, bottom + 18, f"{tick:g}")]
    for index, span in enumerate(spans):
        y, color = _TOP + _SPAN_ROW * index + 14, color_of(index, len(spans))
        tooltip = f"{span.name}: {span.value:.3f} ({span.low:.3f} to {span.high:.3f})"
        ends = axis.pixel(span.low), axis.pixel(span.high)
        parts += [
            f"<g><title>{html.escape(tooltip)}</title>",
            _text(_SPAN_LEFT - 12, y + 4, span.name, "end"),
            _line(ends[0], y, ends[1], y, f'stroke="{color}" stroke-width="3"'),
            _dot(axis.pixel(span.value), y, 5, color) + "</g>",
        ]
    parts.append(_text((_SPAN_LEFT + _SPAN_RIGHT) / 2, bottom + 38, x_label))
    return _element(parts, bottom + 48, title)


def draw_bars(
    rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], *, title: str, x_label: str
) -> str:
    """Horizontal bars from zero, several of each row.

    Args:
        rows: names, and a value for each of `names`, from top to bottom.
        names: of the bars of a row, for the legend.
        title: above the chart.
        x_label: below the x axis.

    Returns:
        An <svg> element to embed in a page.
    """
    values = [value for _, bars in rows for value in bars]
    axis = _Axis(min([0.0, *values]), max([0.0, *values]), _SPAN_LEFT, _SPAN_RIGHT)
    height = _BAR * len(names) + 10
    top = _TOP + _ROW
    bottom = top + height * len(rows) + 4
    parts = [_text(12, 22, title, "start", 'font-size="14"')]
    for tick in axis.ticks:
        x = axis.pixel(tick)
        parts += [_line(x, top, x, bottom, _GRID), _text(x, bottom + 18, f"{tick:g}")]
    for index, name in enumerate(names):
        x, color = _SPAN_LEFT + 130 * index, color_of(index, len(names))
        parts += [_bar(x, _TOP - 4, 10, color), _text(x + 16, _TOP + 5, name, "start")]
    for index, (row, bars) in enumerate(rows):
        y = top + height * index + 8
        parts.append(_text(_SPAN_LEFT - 12, y + height / 2 - 2, row, "end"))
        for number, value in enumerate(bars):
            ends = sorted((axis.pixel(0.0), axis.pixel(value)))
            tooltip = html.escape(f"{row}, {names[number]}: {value:+.3f}")
            bar = _bar(ends[0], y + _BAR * number, ends[1] - ends[0], color_of(number, len(names)))
            parts.append(f"<g><title>{tooltip}</title>{bar}</g>")
    zero = axis.pixel(0.0)
    parts += [
        _line(zero, top, zero, bottom, 'stroke="currentColor"'),
        _text((_SPAN_LEFT + _SPAN_RIGHT) / 2, bottom + 38, x_label),
    ]
    return _element(parts, bottom + 48, title)


def as_file(element: str) -> str:
    """A chart as a stand-alone file with a white background."""
    opening, rest = element.split(">", 1)
    attributes = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}"'
    opening = opening.replace("<svg", attributes, 1)
    return f'{opening}>\n<rect width="100%" height="100%" fill="white"/>{rest}\n'


def color_of(index: int, count: int) -> str:
    """Hues from blue (first) to red (last)."""
    return f"hsl({230 - 230 * index / max(1, count - 1):.0f},70%,50%)"


def _element(parts: Sequence[str], height: float, title: str) -> str:
    opening = (
        f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{html.escape(title)}" '
        'font-family="sans-serif" font-size="12" fill="currentColor">'
    )
    return "\n".join([opening, *parts, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {position} {more}>{html.escape(text)}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {stroke}/>'


def _bar(x: float, y: float, width: float, color: str) -> str:
    shape = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR - 1}"'
    return f'<rect {shape} fill="{color}"/>'


def _dot(x: float, y: float, radius: int, color: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}"/>'


class _Axis:
    """Round numbers that enclose low..high, and their pixels from start to end."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        spread = max(high - low, 1e-6 * max(1.0, abs(high)))
        raw = spread / (_TICKS - 1)
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        self.ticks = [round(step * i, 12) for i in range(first, max(last, first + 1) + 1)]
        self._start, self._length = start, end - start

    def pixel(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self._start + (value - low) / (high - low) * self._length
