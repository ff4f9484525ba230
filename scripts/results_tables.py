"""Markdown tables of evaluation results, written into marked sections of a page."""

from __future__ import annotations

from typing import Any

from lattice_bpd_kim2024.lab.results import line_of
from lattice_bpd_kim2024.report.page import paper_gain

Tasks = dict[str, dict[str, Any]]
PAPER_PERPLEXITY = {"lambada": 7.88}  # Kim et al. 2024, table 1
FIGURE_2 = ("neural", "mixture", "ngram_1best", "p_best_ngram", "tree")


def describe_strategies(tasks: Tasks) -> list[str]:
    """Block efficiency with intervals, strategies down and tasks across."""
    first = next(iter(tasks.values()))["strategies"]
    lines = [f"| block efficiency (95 %) | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for line in first:
        cells = []
        for task in tasks.values():
            interval = line_of(task, line["name"])["interval"]
            cells.append(f"{interval['value']:.2f} ({interval['low']:.2f}-{interval['high']:.2f})")
        lines.append(f"| {line['label']} | {' | '.join(cells)} |")
    texts = _counts({name: task["texts"] for name, task in tasks.items()})
    held_out = _counts({name: task["texts_held_out"] for name, task in tasks.items()})
    shares = ", ".join(f"{name} {task['loop_share']:.0%}" for name, task in tasks.items())
    return [
        *lines, "",
        f"Texts reported on: {texts}; held out for tuning: {held_out}. Output in loops: {shares}.",
    ]  # fmt: skip


def _counts(texts: dict[str, int]) -> str:
    """Numbers of texts by task, or the one that all tasks have."""
    if len(set(texts.values())) == 1:
        return f"{next(iter(texts.values()))} per task"
    return ", ".join(f"{name} {count}" for name, count in texts.items())


def describe_perplexity(tasks: Tasks) -> list[str]:
    """The target's perplexity, the metric of LAMBADA in table 1 of the paper, where measured."""
    measured = {name: task.get("performance") for name, task in tasks.items()}
    cells = [
        f"{name} {one['value']:.2f} ({one['texts']} texts"
        + (f"; the paper's target: {PAPER_PERPLEXITY[name]})" if name in PAPER_PERPLEXITY else ")")
        for name, one in measured.items()
        if one and one["metric"] == "perplexity"
    ]
    return ["", f"Perplexity of the target, per token: {', '.join(cells)}."] if cells else []


def describe_gains(tasks: Tasks) -> list[str]:
    """Gains over BPD: the paper's, on loop-free texts, and relative to the oracle's."""
    has_neural = any(line["name"] == "neural" for line in next(iter(tasks.values()))["strategies"])
    kinds = {"ngram_1best": "4-gram, 1-best", "p_best_0gram": "16-best 0-gram"}
    kinds = {"neural": "neural, 1-best", **kinds} if has_neural else kinds
    head = ["gain over BPD"]
    for label in (*kinds.values(), "16-best 4-gram (95 %)"):
        head += [label, "paper"]
    head += ["loop-free texts", "best tree's gain / oracle's gain"]
    rows = []
    for name, task in tasks.items():
        best = line_of(task, "p_best_ngram")["over_bpd"]["gain"]
        row = [name]
        for kind in kinds:
            row += [_gain(task, kind), _percent(paper_gain(name, kind))]
        rows.append([
            *row, f"{best['value']:+.1%} ({best['low']:+.1%} to {best['high']:+.1%})",
            _percent(paper_gain(name, "p_best_ngram")), _loop_free(task), f"{tree_share(task):.0%}",
        ])  # fmt: skip
    return _table(head, rows)


def describe_losses(tasks: Tasks) -> list[str]:
    """Rows where the LM adds less than 2 % to the same kind of drafts without it."""
    losses = []
    pairs = (("ngram_1best", "bpd"), ("p_best_ngram", "p_best_0gram"), ("tree", "tree_0gram"))
    for name, task in tasks.items():
        for with_lm, without in pairs:
            one, other = line_of(task, with_lm), line_of(task, without)
            gain = one["block_efficiency"] / other["block_efficiency"] - 1.0
            if gain < 0.02:
                losses.append(f"- {name}: {one['label']} relative to {other['label']}: {gain:+.1%}")
    if not losses:
        return ["The 4-gram adds at least 2 % to every kind of drafts on every task."]
    return ["The 4-gram adds less than 2 % to these drafts:", "", *losses]


def describe_rules(tasks: Tasks) -> list[str]:
    """Acceptance rules: block efficiency and regret by task, quality over all of them."""
    rules = [line["rule"] for line in next(iter(tasks.values()))["acceptance"]]
    texts = _counts({name: task["acceptance"][0]["texts"] for name, task in tasks.items()})
    lines = [
        "Block efficiency by task, with regret in nats per token (and the task's metric, if any) "
        f"in brackets. Texts: {texts}.", "",
        f"| rule | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}",
    ]  # fmt: skip
    totals = [
        "| rule | output | block efficiency | x exact | relaxed tokens | regret, nats per token "
        "| target's nats per token | outputs equal to `exact` |",
        "|---|---|---|---|---|---|---|---|",
    ]
    exact = 0.0
    for number, rule in enumerate(rules):
        results = [task["acceptance"][number] for task in tasks.values()]
        cells = [_rule_cell(line) for line in results]
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
        tokens = sum(f["tokens"] for f in results)
        efficiency = tokens / sum(f["target_calls"] for f in results)
        exact = exact or efficiency
        nats = sum(f["nats_per_token"] * f["tokens"] for f in results) / tokens
        cells = [
            f"`{rule}`", "lossless" if results[0]["lossless"] else "lossy", f"{efficiency:.2f}",
            f"{efficiency / exact:.2f}",
            f"{sum(f['relaxed_tokens'] for f in results) / tokens:.1%}",
            f"{sum(f['regret'] for f in results) / tokens:.3f}", f"{nats:.3f}",
            f"{sum(f['same_texts'] for f in results)} of {sum(f['texts'] for f in results)}",
        ]  # fmt: skip
        totals.append(f"| {' | '.join(cells)} |")
    return [*totals, "", *lines]


def _rule_cell(line: dict[str, Any]) -> str:
    quality = "" if line["quality"] is None else f"; {line['quality']:.1f}"
    return f"{line['block_efficiency']:.2f} ({line['regret_per_token']:.3f}{quality})"


def describe_sampling(gains: list[dict[str, Any]]) -> list[str]:
    """Sampling: block efficiency by temperature, accepted lengths relative to the first row's."""
    temperatures = sorted({gain["temperature"] for gain in gains})
    lines = [
        f"| drafts | rule | {' | '.join(f'T = {t}' for t in temperatures)} |",
        f"|---|---|{'---|' * len(temperatures)}",
    ]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for gain in gains:
        rows.setdefault((gain["name"], gain["rule"]), []).append(gain)
    first = next(iter(rows.values()))
    for (name, rule), by_task in rows.items():
        cells = [
            f"{gain['block_efficiency']:.2f}, {gain['accept_length']:.2f} "
            f"({gain['accept_length'] / base['accept_length']:.2f}x)"
            for gain, base in zip(by_task, first, strict=True)
        ]
        lines.append(f"| {name} | `{rule}` | {' | '.join(cells)} |")
    same = [gain for gain in gains if gain["same_texts"] is not None]
    equal = sum(gain["same_texts"] for gain in same)
    return [
        *lines, "",
        f"{first[0]['texts']} texts of {first[0]['tokens'] // first[0]['texts']} tokens. Under "
        f"`sampled`, {equal} of {sum(gain['texts'] for gain in same)} outputs equal plain sampling "
        "token for token.",
    ]  # fmt: skip


def tree_share(task: dict[str, Any]) -> float:
    """Gain of the better tree over BPD / gain of the oracle, 0..1."""
    bpd, oracle = (line_of(task, name)["block_efficiency"] for name in ("bpd", "oracle"))
    tree = max(line_of(task, name)["block_efficiency"] for name in ("tree", "tree_0gram"))
    return float((tree - bpd) / (oracle - bpd)) if oracle > bpd else 1.0


def describe_paper_tables(results: dict[str, Any]) -> list[str]:
    """Tables 3, 4, 5, 7, 8 and 11 and figures 2 and 3b of the paper, of one run's results.json."""
    tasks: Tasks = results["tasks"]
    return [
        "*Table 4: all strategies.*", "", *describe_strategies(tasks), "",
        "*Table 3: consecutive repetition in single drafts* (share of adjacent tokens that are "
        "equal; mean longest run).", "", *_repetition(tasks), "",
        "*Table 5: single rescored drafts against the argmax at every position* (repair, regress: "
        "shares of the wins and losses whose repetition rescoring eliminates, introduces).", "",
        *_wins(tasks), "",
        "*Table 7: with each LM and rescorer.*", "", *_lms(tasks), "",
        "*Table 8: weights that were tuned on the held-out texts.*", "", *_weights(tasks), "",
        "*Table 11: memory traffic and arithmetic per token of the paper's target of 1.5 B "
        "parameters at the mean block efficiency of the tasks.*", "", *_costs(results["costs"]), "",
        "*Figure 2: changes from BPD.*", "", *_changes(tasks), "",
        "*Figure 3b: h_max and BPD's block efficiency.*", "",
        *describe_h_max(tasks, results["h_max_correlation"]),
    ]  # fmt: skip


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|",
            *(f"| {' | '.join(row)} |" for row in rows)]  # fmt: skip


def _repetition(tasks: Tasks) -> list[str]:
    names = list(next(iter(tasks.values()))["repetition"])
    rows = [
        [f"`{name}`", *(f"{task['repetition'][name]['consecutive']:.1%}; "
                        f"{task['repetition'][name]['longest_run']:.2f}"
                        for task in tasks.values())]
        for name in names
    ]  # fmt: skip
    return _table(["drafts", *tasks], rows)


def _wins(tasks: Tasks) -> list[str]:
    head = ["task", "drafts", "wins", "ties", "losses", "wins: repair", "regress",
            "losses: repair", "regress"]  # fmt: skip
    kinds = ("win_repair", "win_regress", "loss_repair", "loss_regress")
    rows = [
        [name, f"`{strategy}`", *(str(one[count]) for count in ("wins", "ties", "losses")),
         *(f"{one[kind]:.0%}" for kind in kinds)]
        for name, task in tasks.items()
        for strategy, one in task["wins_and_losses"].items()
    ]  # fmt: skip
    return _table(head, rows)


def _lms(tasks: Tasks) -> list[str]:
    """Strategies and their LMs down, tasks across."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for name, task in tasks.items():
        for line in task["by_lm"]:
            source = str(line.get("lm") or line.get("scorer"))
            by_task = cells.setdefault((line["strategy"], source), {})
            by_task[name] = f"{line['block_efficiency']:.2f}"
    rows = [
        [f"`{strategy}`", source, *(by_task.get(name, "") for name in tasks)]
        for (strategy, source), by_task in sorted(cells.items(), key=lambda cell: cell[0][0])
    ]
    return _table(["drafts", "LM or rescorer", *tasks], rows)


def _weights(tasks: Tasks) -> list[str]:
    """The best options of each strategy and task."""
    tried = next(iter(tasks.values()))["block_efficiency_by_weights"]
    rows = []
    for strategy in tried:
        row = [f"`{strategy}`"]
        for task in tasks.values():
            lines = task["block_efficiency_by_weights"][strategy]
            best = max(lines, key=lambda line: line["block_efficiency"])
            options = [f"alpha {best['alpha']:g}"] if "alpha" in best else []
            if "temperature" in best:
                options.append(f"temperature {best['temperature']:g}")
            if (source := str(best.get("scorer") or "")).count(" + "):
                options.append(source)
            row.append(f"{', '.join(options)}: {best['block_efficiency']:.2f}")
        rows.append(row)
    return _table(["drafts", *tasks], rows)


def _costs(costs: list[dict[str, Any]]) -> list[str]:
    head = ["drafts", "block efficiency", "parameters, GB", "KV cache, GB at 128", "at 512",
            "at 1024", "at 2048", "TFLOP"]  # fmt: skip
    rows = [
        [f"`{line['strategy']}`", f"{line['mean_block_efficiency']:.2f}",
         f"{line['parameter_gb']:.3f}", *(f"{kv:.3f}" for kv in line["kv_gb"].values()),
         f"{line['tera_flops']:.3f}"]
        for line in costs
    ]  # fmt: skip
    return _table(head, rows)


def _changes(tasks: Tasks) -> list[str]:
    head = ["task", "drafts", "block efficiency", "parameter I/O", "KV cache I/O", "FLOPs"]
    kinds = ("block_efficiency", "parameter_gb", "kv_gb", "tera_flops")
    rows = [
        [name, line["label"], *(f"{line[kind]:+.1%}" for kind in kinds)]
        for name, task in tasks.items()
        for line in task["relative_to_bpd"]
        if line["strategy"] in FIGURE_2
    ]
    return _table(head, rows)


def describe_h_max(tasks: Tasks, correlation: float | None) -> list[str]:
    """Figure 3b: h_max and BPD's block efficiency by task, and their correlation R."""
    rows = [
        [name, str(task["entropies"]["h_max"]),
         f"{line_of(task, 'bpd')['block_efficiency']:.3f}"]
        for name, task in tasks.items()
    ]  # fmt: skip
    found = (
        "R is not defined: fewer than three tasks, or the same h_max on all."
        if correlation is None else f"R = {correlation:.2f}."
    )  # fmt: skip
    return [*_table(["task", "h_max", "block efficiency of BPD"], rows), "", found]


def replace_section(text: str, name: str, body: str) -> str:
    """Replace the text between `<!-- name -->` and `<!-- /name -->`.

    Raises:
        ValueError: the marks are missing or in the wrong order.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    start, stop = text.find(begin), text.find(end)
    if not 0 <= start < stop:
        raise ValueError(f"no section {begin} .. {end}; put these two lines into the document")
    return f"{text[: start + len(begin)]}\n{body}\n{text[stop:]}"


def _gain(task: dict[str, Any], name: str) -> str:
    return _percent(line_of(task, name)["over_bpd"]["gain"]["value"])


def _loop_free(task: dict[str, Any]) -> str:
    """The 16-best list's gain on texts whose output never loops."""
    for group in line_of(task, "p_best_ngram")["by_loop_share"]:
        if group["high"] == 0.0:
            count = group["texts"]
            return f"{group['gain']:+.1%} ({count} text{'s' if count > 1 else ''})"
    return "no such text"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"
