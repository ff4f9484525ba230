"""Renders the table of strategies for a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lattice_bpd.extensions import require
from lattice_bpd_kim2024.live.compare import Comparison, StrategyResult

if TYPE_CHECKING:
    from rich.table import Table

    from lattice_bpd.decode.state.statistics import DecodeStats

COLUMNS = (
    "strategy",
    "tokens/call",
    "95 % interval",
    "vs BPD",
    "speed",
    "calls",
    "= greedy",
)

FOOTNOTES = (
    "tokens/call: decoded tokens / calls of the target model, the call that reads the prompt "
    "included; bootstrap interval over prompts.",
    "speed: tokens per second relative to greedy decoding, which decodes {greedy:,.0f} per second.",
    "{share:.0%} of greedy's output is in loops (positions whose last 8 tokens occurred before).",
)
LOSSY_NOTE = (
    "lossy: by how many nats per token the target prefers its argmax to the tokens that were kept."
)


def table_rows(comparison: Comparison, names: Mapping[str, object]) -> list[tuple[str, ...]]:
    """The cells of each line.

    Args:
        comparison: results.
        names: values for {p}, {k}, {n} and {nodes} in the labels.

    Returns:
        One tuple for each strategy, with as many strings as COLUMNS.
    """
    return [_row(comparison, result, names) for result in comparison.results]


def _row(
    comparison: Comparison, result: StrategyResult, names: Mapping[str, object]
) -> tuple[str, ...]:
    total, interval = result.total(), result.interval
    gain, speed = comparison.gain(result), comparison.relative_speed(result)
    return (
        result.setting.label.format(**names),
        f"{total.block_efficiency:.2f}",
        f"{interval.low:.2f}-{interval.high:.2f}",
        "-" if gain is None else f"{1.0 + gain:.2f}x",
        "-" if speed is None else f"{speed:.2f}x",
        f"{total.target_calls:,}",
        _verdict(result, total),
    )


def _verdict(result: StrategyResult, total: DecodeStats) -> str:
    """Whether the output is greedy's; for a lossy rule its cost."""
    rule = result.setting.acceptance
    if rule is not None and not rule.lossless:
        return f"lossy ({total.regret_per_token:.2f} nats)"
    if not result.is_exact:
        return "sampled"
    differing, ties = len(result.differing), result.near_ties
    if differing == ties:
        return "yes" if differing == 0 else f"but {ties} near-ties of {len(result.outputs)}"
    return f"NO ({differing - ties} of {len(result.outputs)})"


def render_table(
    comparison: Comparison, names: Mapping[str, object], title: str | None = None
) -> Table:
    """A `rich` table with the strategies as lines.

    Args:
        comparison: results.
        names: values for {p}, {k}, {n} and {nodes} in the labels.
        title: above the table.

    Raises:
        ImportError: `rich` is missing (extra `train`).
    """
    rich_table = require("rich.table", "train")
    table: Table = rich_table.Table(title=title, title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    for row in table_rows(comparison, names):
        table.add_row(*row)
    return table


def footnotes(comparison: Comparison) -> Sequence[str]:
    """Explanations of the columns, one line each."""
    greedy = comparison.tokens_per_second(comparison.results[0])
    notes = [note.format(greedy=greedy, share=comparison.loop_share) for note in FOOTNOTES]
    rules = [result.setting.acceptance for result in comparison.results]
    lossy = any(rule is not None and not rule.lossless for rule in rules)
    return [*notes, LOSSY_NOTE] if lossy else notes
