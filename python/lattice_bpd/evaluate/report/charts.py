"""Charts of a report: the paper's figures 3, 6 and 7 and more, for one task of results.json."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from lattice_bpd.svg import Series, Span, draw_lines, draw_spans

_LEGEND = 230  # pixels for names of strategies
Lines = Sequence[dict[str, Any]]


def draw_charts(task: dict[str, Any]) -> list[str]:
    """All charts that a task's results can fill, as <svg> elements."""
    strategies = task["strategies"]
    labels = {line["name"]: line["label"] for line in strategies}
    found = [
        _efficiencies(strategies),
        _oracle(task["oracle_by_top_k"]),
        _curve(task["by_num_drafts"], "num_drafts", "p-best drafts (figure 7)", "p, drafts"),
        _curve(task["by_max_nodes"], "max_nodes", "trees by size", "N, nodes"),
        _weights(task["block_efficiency_by_weights"]),
        _entropies(task["entropies"]),
        _entropy_histograms(task["entropies"]),
        _accept_lengths(strategies),
        _acceptance(strategies),
        _loops(strategies),
        _calibration(task["calibration"], labels),
    ]
    return [chart for chart in found if chart]


def _efficiencies(strategies: Lines) -> str:
    spans = [
        Span(line["label"], *(line["interval"][key] for key in ("value", "low", "high")))
        for line in strategies
    ]
    return draw_spans(
        spans, title="block efficiency by strategy, 95 % intervals", x_label="tokens a target call"
    )


def _oracle(lines: Lines) -> str:
    series = [
        Series(f"{heads} heads", points, points)
        for heads, points in _grouped(lines, "num_heads", "top_k")
    ]
    return _efficiency_chart(series, "oracle by k (figure 6)", "k, candidates of a slot")


def _curve(lines: Lines, knob: str, title: str, label: str) -> str:
    series = [
        Series(strategy, points, points) for strategy, points in _grouped(lines, "strategy", knob)
    ]
    return _efficiency_chart(series, title, label)


def _weights(tried: dict[str, Lines]) -> str:
    """Block efficiency by alpha; trees at the best of their temperatures."""
    series = []
    for strategy, lines in tried.items():
        best: dict[float, float] = {}
        for line in lines:
            if "alpha" in line:
                value = line["block_efficiency"]
                best[line["alpha"]] = max(value, best.get(line["alpha"], value))
        if len(best) > 1:
            series.append(Series(strategy, sorted(best.items()), sorted(best.items())))
    return _efficiency_chart(series, "weights of the LM, held-out texts", "alpha")


def _efficiency_chart(series: Sequence[Series], title: str, label: str) -> str:
    if not series:
        return ""
    return draw_lines(
        series, title=title, x_label=label, y_label="tokens a target call", right=_LEGEND
    )


def _entropies(entropies: dict[str, Any]) -> str:
    points = list(enumerate(entropies["means"], 1))
    return draw_lines(
        [Series("mean", points, points)], title="entropy of each head", x_label="head",
        y_label="nats", note=f"h_max is {entropies['h_max']}", x_from_zero=False,
    )  # fmt: skip


def _entropy_histograms(entropies: dict[str, Any]) -> str:
    edges = entropies["edges"]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    series = [
        Series(f"head {head}", list(zip(middles, shares, strict=True)))
        for head, shares in enumerate(entropies["histograms"], 1)
    ]
    return draw_lines(
        series, title="entropies by head (figure 3)", x_label="entropy, nats",
        y_label="share of positions",
    )  # fmt: skip


def _accept_lengths(strategies: Lines) -> str:
    series = []
    for line in strategies:
        calls = sum(line["accept_histogram"])
        if calls:
            points = [(n, count / calls) for n, count in enumerate(line["accept_histogram"])]
            series.append(Series(line["label"], points, points))
    return draw_lines(
        series, title="accepted lengths", x_label="draft tokens kept",
        y_label="share of calls", right=_LEGEND,
    )  # fmt: skip


def _acceptance(strategies: Lines) -> str:
    series = [
        Series(line["label"], points, points)
        for line in strategies
        if (points := [(s["slot"] + 1, s["accepted"]) for s in line["acceptance_by_slot"]])
    ]
    return draw_lines(
        series, title="acceptance by position", x_label="position of the draft token",
        y_label="share of calls that keep it", x_from_zero=False, right=_LEGEND,
    )  # fmt: skip


def _loops(strategies: Lines) -> str:
    """Gains by group of texts; a group stands at the upper end of its looping share."""
    series = [
        Series(line["label"], points, points)
        for line in strategies
        if line["name"] != "bpd"
        and (points := [
            (group["high"], group["gain"])
            for group in line["by_loop_share"] if group["gain"] is not None
        ])
    ]  # fmt: skip
    if not series:
        return ""
    return draw_lines(
        series, title="gains by share of looping output", x_label="looping share up to",
        y_label="gain over BPD", right=_LEGEND,
    )  # fmt: skip


def _calibration(calibration: dict[str, Any], labels: dict[str, str]) -> str:
    series = [
        Series(
            labels.get(name, name), [(b["predicted"], b["accepted"]) for b in found["bins"]],
            [(b["predicted"], b["accepted"]) for b in found["bins"]],
        )
        for name, found in calibration.items()
    ]  # fmt: skip
    if not series:
        return ""
    return draw_lines(
        [*series, Series("calibrated", [(0.0, 0.0), (1.0, 1.0)], dashed=True)],
        title="calibration of trees' prefixes", x_label="predicted probability",
        y_label="share accepted", right=_LEGEND,
    )  # fmt: skip


def _grouped(lines: Lines, key: str, knob: str) -> Iterator[tuple[Any, list[tuple[float, float]]]]:
    """(knob, block efficiency) in order, for each value of a key."""
    for value in dict.fromkeys(line[key] for line in lines):
        yield (
            value,
            sorted((line[knob], line["block_efficiency"]) for line in lines if line[key] == value),
        )
