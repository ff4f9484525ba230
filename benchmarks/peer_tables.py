"""The results of bench_peers.py as Markdown, as in research/kim2024/RESULTS.md."""

from __future__ import annotations

from typing import Any

_HEAD = (
    "drafts", "by", "tokens per call (95 %)", "relative to our tree (95 %)",
    "draft tokens per call", "speed, x greedy", "x greedy of the same loop",
)  # fmt: skip
_TIMED = 2  # columns of speeds
_TREES = {
    "medusa": "Medusa's fixed tree", "eagle2": "EAGLE-2's tree", "ddtree": "DDTree's heap",
    "tree_0gram": "our tree, no LM", "tree": "our tree, 4-gram",
}  # fmt: skip


def render(results: dict[str, Any]) -> str:
    """All tables, those of one target after the other."""
    return "\n\n".join(render_target(target) for target in results["targets"])


def render_target(target: dict[str, Any]) -> str:
    """The lines of a target, what was left out, and its trees by their number of nodes."""
    rows, head = [_line(line) for line in target["lines"]], _HEAD
    if target["rounds"] > 1:
        times = f"{target['rounds']} timed rounds of {target['timed_prompts']} prompts"
    else:  # one round shows the load of the machine
        times = "speeds are left out: one round says too little"
        rows, head = [row[:-_TIMED] for row in rows], head[:-_TIMED]
    kind = " with `--quick`" if target["quick"] else ""
    parts = [
        f"Target `{target['name']}`{kind}: {target['about']}. {target['prompts']} prompts, "
        f"{target['tokens']} new tokens; {times}. {_versions(target)}.",
        table(head, rows),
        *(f"Left out: {name}: {reason}." for name, reason in target["skipped"].items()),
        "Tokens per call by nodes of the tree:",
        table(
            ("nodes", *_TREES.values()),
            [[str(row["nodes"]), *(f"{row[name]:.2f}" for name in _TREES)]
             for row in target["budgets"]],
        ),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _versions(target: dict[str, Any]) -> str:
    """The versions that a target was measured with."""
    versions = target["machine"]["versions"]
    return f"transformers {target['transformers']}, torch {versions['torch']}"


def _line(line: dict[str, Any]) -> list[str]:
    calls, over = line["tokens_per_call"], line["over_tree"]
    speed, own = line["speed"], line["speed_in_own_loop"]
    relative = "" if line["name"] == "tree" else (
        f"{100 * over['value']:+.0f} % ({100 * over['low']:+.0f} to {100 * over['high']:+.0f})"
    )  # fmt: skip
    return [
        line["label"], line["group"],
        f"{calls['value']:.2f} ({calls['low']:.2f}-{calls['high']:.2f})", relative,
        f"{line['draft_tokens_per_call']:.1f}",
        f"{speed['median']:.2f} ({speed['low']:.2f}-{speed['high']:.2f})", f"{own['median']:.2f}",
    ]  # fmt: skip


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *map(tuple, rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)
