"""The table of strategies, for a terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lattice_bpd.evaluate.compare import Comparison, StrategyResult
from lattice_bpd.extras import require

if TYPE_CHECKING:
    from rich.table import Table

    from lattice_bpd.decode import DecodeStats

COLUMNS = (
    "strategy",
    "block eff.",
    "vs BPD",
    "loop-free",
    "calls",
    "tokens/s",
    "repeats",
    "= greedy",
)

FOOTNOTES = (
    "block eff.: decoded tokens / calls of the target model; the exact token of each call counts.",
    "vs BPD: relative gain in block efficiency on all prompts; loop-free: on {count} prompts "
    "behind which greedy's output never loops.",
    "{share:.0%} of greedy's output is in loops (positions whose last 8 tokens occurred before).",
    "repeats: share of neighbouring positions of first drafts that hold the same token.",
)
LOSSY_NOTE = (
    "lossy: nats a token by which the target likes the tokens kept less than its own argmax."
)


def table_rows(comparison: Comparison, names: Mapping[str, object]) -> list[tuple[str, ...]]:
    """The cells of each line.

    Args:
        comparison: results.
        names: values for {p}, {k} and {n} in the labels.

    Returns:
        One tuple for each strategy, with as many strings as COLUMNS.
    """
    return [_row(comparison, result, names) for result in comparison.results]


def _row(
    comparison: Comparison, result: StrategyResult, names: Mapping[str, object]
) -> tuple[str, ...]:
    total = result.total()
    return (
        result.setting.label.format(**names),
        f"{total.block_efficiency:.2f}",
        _percent(comparison.gain(result), "+.0%"),
        _percent(comparison.gain(result, comparison.loop_free), "+.0%"),
        f"{total.target_calls:,}",
        f"{total.tokens_per_second:,.0f}",
        _percent(total.repeat_share if total.neighbours else None, ".1%"),
        _verdict(result, total),
    )


def _verdict(result: StrategyResult, total: DecodeStats) -> str:
    """Whether output is greedy's; of a lossy rule what it cost."""
    rule = result.setting.acceptance
    if rule is not None and not rule.lossless:
        return f"lossy ({total.regret_per_token:.2f} nats)"
    if not result.is_exact:
        return "sampled"
    differing = len(result.differing)
    return "yes" if differing == 0 else f"NO ({differing} of {len(result.outputs)})"


def render_table(
    comparison: Comparison, names: Mapping[str, object], title: str | None = None
) -> Table:
    """A `rich` table with the strategies as lines.

    Args:
        comparison: results.
        names: values for {p}, {k} and {n} in the labels.
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
    """What the columns mean, one line each."""
    count = f"the {len(comparison.loop_free)} of {len(comparison.looping)}"
    notes = [note.format(count=count, share=comparison.loop_share) for note in FOOTNOTES]
    rules = [result.setting.acceptance for result in comparison.results]
    lossy = any(rule is not None and not rule.lossless for rule in rules)
    return [*notes, LOSSY_NOTE] if lossy else notes


def _percent(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
