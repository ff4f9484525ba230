"""Charts of a run and of each task: the paper's figures 2, 3, 6 and 7, and further ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from lattice_bpd_kim2024.svg import Series, Span, draw_bars, draw_lines, draw_spans

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
