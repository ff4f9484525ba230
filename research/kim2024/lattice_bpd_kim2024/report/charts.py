"""Charts of the report as SVG.

Text and axes have the color of the page (`currentColor`), so that a chart follows its light or dark
scheme.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

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


_LEGEND = 230  # pixels for names of strategies
_TOKENS = "tokens a target call"
_RELATIVE = {
    "block_efficiency": "block efficiency", "parameter_gb": "parameter I/O", "kv_gb": "KV I/O",
    "tera_flops": "FLOPs",
}  # fmt: skip
Lines = Sequence[dict[str, Any]]


def draw_overview(results: dict[str, Any]) -> list[str]:
    """Charts over all tasks: block efficiency of BPD by h_max with its regression (figure 3b)."""
    points = {
        name: (task["entropies"]["h_max"], line["block_efficiency"])
        for name, task in results["tasks"].items()
        for line in task["strategies"]
        if line["name"] == "bpd"
    }
    series = [Series(name, dots=[point]) for name, point in points.items()]
    line, ends = results.get("h_max_line"), sorted({x for x, _ in points.values()})
    if line is not None:
        slope, intercept = line
        ends = [ends[0], ends[-1]]
        name = f"regression, R = {results['h_max_correlation']:.2f}"
        series.append(Series(name, [(x, slope * x + intercept) for x in ends], dashed=True))
    return [
        _chart(
            "block efficiency of BPD by h_max (figure 3b)", "h_max, heads", _TOKENS, series,
            x_from_zero=False,
        )
    ]  # fmt: skip


def draw_charts(task: dict[str, Any]) -> list[str]:
    """The charts of a task of results.json, as <svg> elements; those without data are left out."""
    lines, entropies = task["strategies"], task["entropies"]
    labels = {line["name"]: line["label"] for line in lines}
    edges = itertools.pairwise(entropies["edges"])
    bins = [(low + high) / 2 for low, high in edges]
    charts = [
        draw_spans(
            [Span(line["label"], **line["interval"]) for line in lines],
            title="block efficiency by strategy, 95 % intervals", x_label=_TOKENS,
        ),
        draw_bars(
            [
                (row["label"], [row[key] for key in _RELATIVE])
                for row in task["relative_to_bpd"]
            ],
            tuple(_RELATIVE.values()),
            title="relative to BPD, per decoded token of a 1.5 B target (figure 2)",
            x_label="change, as a fraction of BPD's",
        ),
        _chart(
            "oracle by k (figure 6)", "k, candidates of a slot", _TOKENS,
            _by_size(task["oracle_by_top_k"], "num_heads", "top_k", "{} heads"),
        ),
        _chart(
            "p-best drafts (figure 7)", "p, drafts", _TOKENS,
            _by_size(task["by_num_drafts"], "strategy", "num_drafts"),
        ),
        _chart(
            "trees by size", "N, nodes", _TOKENS,
            _by_size(task["by_max_nodes"], "strategy", "max_nodes"),
        ),
        _chart(
            "weights of the LM, held-out texts", "alpha", _TOKENS,
            _weights(task["block_efficiency_by_weights"]),
        ),
        _chart(
            "entropy of each head", "head", "nats",
            [_series("mean", enumerate(entropies["means"], 1))],
            note=f"h_max is {entropies['h_max']}", x_from_zero=False,
        ),
        _chart(
            "entropies by head (figure 3)", "entropy, nats", "share of positions",
            [
                Series(f"head {head}", list(zip(bins, shares, strict=True)))
                for head, shares in enumerate(entropies["histograms"], 1)
            ],
        ),
        _chart(
            "accepted lengths", "draft tokens kept", "share of calls",
            [
                _series(line["label"], enumerate(n / calls for n in line["accept_histogram"]))
                for line in lines
                if (calls := sum(line["accept_histogram"]))
            ],
        ),
        _chart(
            "acceptance by position", "position of the draft token", "share of calls that keep it",
            [
                _series(line["label"], ((s["slot"] + 1, s["accepted"]) for s in slots))
                for line in lines
                if (slots := line["acceptance_by_slot"])
            ],
            x_from_zero=False,
        ),
        _chart(
            "gains by share of looping output", "looping share up to", "gain over BPD",
            [
                _series(line["label"], points)
                for line in lines
                if (points := [(group["high"], group["gain"]) for group in line["by_loop_share"]
                               if group["gain"] is not None]) and line["name"] != "bpd"
            ],
        ),
        _chart(
            "calibration of trees' prefixes", "predicted probability", "share accepted",
            _calibration(task["calibration"], labels),
        ),
    ]  # fmt: skip
    return [chart for chart in charts if chart]


def _chart(title: str, x_label: str, y_label: str, series: Sequence[Series], **more: Any) -> str:
    """A line chart; empty without series."""
    if not series:
        return ""
    return draw_lines(series, title=title, x_label=x_label, y_label=y_label, right=_LEGEND, **more)


def _series(name: str, points: Any) -> Series:
    """A line with a dot at each of its points."""
    points = list(points)
    return Series(name, points, points)


def _by_size(lines: Lines, key: str, size: str, name: str = "{}") -> list[Series]:
    """Block efficiency by a size; a curve for each value of a key."""
    return [
        _series(
            name.format(value),
            sorted((line[size], line["block_efficiency"]) for line in lines if line[key] == value),
        )
        for value in dict.fromkeys(line[key] for line in lines)
    ]


def _weights(tried: dict[str, Lines]) -> list[Series]:
    """Block efficiency by alpha, at the best temperature of each alpha."""
    curves = []
    for strategy, lines in tried.items():
        best: dict[float, float] = {}
        for line in lines:
            if "alpha" in line:
                value = line["block_efficiency"]
                best[line["alpha"]] = max(value, best.get(line["alpha"], value))
        if len(best) > 1:
            curves.append(_series(strategy, sorted(best.items())))
    return curves


def _calibration(calibration: dict[str, Any], labels: dict[str, str]) -> list[Series]:
    curves = [
        _series(labels.get(name, name), ((b["predicted"], b["accepted"]) for b in measured["bins"]))
        for name, measured in calibration.items()
    ]
    return [*curves, Series("calibrated", [(0.0, 0.0), (1.0, 1.0)], dashed=True)] if curves else []
