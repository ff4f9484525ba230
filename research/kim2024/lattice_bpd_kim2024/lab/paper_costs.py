"""Table 11 and figure 2 of Kim et al. 2024: memory traffic and arithmetic by strategy.

The costs are those of the paper's 1.5 B target, at the block efficiencies measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lattice_bpd_kim2024.costs.cost_model import (
    PAPER_RESCORER,
    PAPER_TARGET,
    SEQUENCE_LENGTHS,
    TokenCost,
)

Row = dict[str, Any]
_NEURAL = ("neural", "mixture")  # strategies that call a rescorer begin with one of these


def count_verified_tokens(line: Row) -> float:
    """Tokens of a call that are verified or predicted, as table 11 counts them.

    Args:
        line: of a strategy in results.json.

    Returns:
        h for each draft of a list, head 1 among them (9 and 16 x 9 in the paper), whether or not
        drafts share tokens; for trees and lookup the measured draft tokens and one for head 1.
    """
    options, heads = line["options"], len(line["accept_histogram"])
    if "max_nodes" in options or line["name"] == "prompt_lookup":
        return float(line["draft_tokens_per_call"]) + 1.0
    return float(heads * options.get("num_drafts", 1))


def cost_rows(tasks: Mapping[str, Row]) -> list[Row]:
    """Table 11: autoregressive decoding, then each strategy at its mean over the tasks.

    Args:
        tasks: of results.json; the strategies are those of the first.

    Returns:
        The rows `costs` of results.json; docs/evaluate.md has the keys.
    """
    rows = [_row("autoregressive", 1.0, 0.0, 0.0)]
    for first in next(iter(tasks.values()))["strategies"] if tasks else ():
        name = first["name"]
        lines = [_line(task, name) for task in tasks.values()]
        means = (
            sum(values) / len(lines)
            for values in (
                [line["block_efficiency"] for line in lines],
                [line["draft_tokens_per_call"] for line in lines],
                [count_verified_tokens(line) for line in lines],
            )
        )
        rows.append(_row(name, *means))
    return rows


def relative_costs(task: Row) -> list[Row]:
    """Figure 2: each strategy of a task relative to BPD, as fractions of its values.

    Returns:
        {strategy, label, block_efficiency: change, parameter_gb, kv_gb, tera_flops: change per
        decoded token at the longest context of table 11}, without BPD and the oracle.
    """
    lines: Sequence[Row] = task["strategies"]
    bpd = _line(task, "bpd")
    baseline, efficiency = _cost_of(bpd), bpd["block_efficiency"]
    rows = []
    for line in lines:
        if line["name"] not in ("bpd", "oracle"):
            cost = _cost_of(line)._asdict().items()
            changes = {key: value / getattr(baseline, key) - 1.0 for key, value in cost}
            gain = line["block_efficiency"] / efficiency - 1.0
            labels = {"strategy": line["name"], "label": line["label"]}
            rows.append({**labels, "block_efficiency": gain, **changes})
    return rows


def _cost_of(line: Row) -> TokenCost:
    return _cost(
        line["name"], line["block_efficiency"], count_verified_tokens(line), SEQUENCE_LENGTHS[-1]
    )


def _cost(name: str, efficiency: float, tokens: float, context: int) -> TokenCost:
    rescorer = PAPER_RESCORER if name.startswith(_NEURAL) else None
    return PAPER_TARGET.per_token(efficiency, context, tokens, rescorer)


def _row(name: str, efficiency: float, drafted: float, verified: float) -> Row:
    costs = {n: _cost(name, efficiency, verified, n) for n in SEQUENCE_LENGTHS}
    first = costs[SEQUENCE_LENGTHS[0]]
    return {
        "strategy": name,
        "mean_block_efficiency": efficiency,
        "draft_tokens_per_call": drafted,
        "verified_tokens_per_call": verified,
        "parameter_gb": first.parameter_gb,
        "kv_gb": {str(n): cost.kv_gb for n, cost in costs.items()},
        "tera_flops": first.tera_flops,
    }


def _line(task: Row, name: str) -> Row:
    line: Row = next(line for line in task["strategies"] if line["name"] == name)
    return line
