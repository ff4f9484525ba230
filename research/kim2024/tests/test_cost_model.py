"""The cost model gives all cells of table 11 of Kim et al. 2024."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lattice_bpd_kim2024.costs import (
    PAPER_RESCORER,
    PAPER_TARGET,
    SEQUENCE_LENGTHS,
    CostModel,
)
from lattice_bpd_kim2024.lab.results import cost_rows, relative_costs

HEADS = 9
# Kim et al. 2024, table 11: block efficiency, drafts of a call, neural rescorer, then parameter
# I/O (GB), KV cache I/O (GB) at 128, 512, 1024 and 2048 tokens, FLOPS (T).
TABLE_11 = {
    "autoregressive": (1.000, 0, False, "3.000", ("0.113", "0.453", "0.906", "1.812"), "0.931"),
    "BPD": (1.646, 1, False, "1.823", ("0.074", "0.280", "0.555", "1.106"), "0.57"),
    "4-gram": (1.657, 1, False, "1.811", ("0.073", "0.278", "0.552", "1.098"), "0.567"),
    "neural-61M": (1.724, 1, True, "1.811", ("0.076", "0.290", "0.574", "1.144"), "0.635"),
    "16-best 0-gram": (1.717, 16, False, "1.747", ("0.140", "0.338", "0.602", "1.129"), "0.621"),
    "16-best 4-gram": (1.797, 16, False, "1.669", ("0.134", "0.323", "0.575", "1.079"), "0.593"),
}


def shown(value: float, like: str) -> str:
    return f"{value:.{len(like.split('.')[1])}f}"


@pytest.mark.parametrize("name", TABLE_11)
def test_cost_model_gives_every_cell_of_table_11(name):
    efficiency, drafts, neural, parameters, kv, flops = TABLE_11[name]
    rescorer = PAPER_RESCORER if neural else None
    costs = [
        PAPER_TARGET.per_token(efficiency, length, HEADS * drafts, rescorer)
        for length in SEQUENCE_LENGTHS
    ]
    assert shown(costs[0].parameter_gb, parameters) == parameters
    assert tuple(shown(c.kv_gb, cell) for c, cell in zip(costs, kv, strict=True)) == kv
    assert shown(costs[0].tera_flops, flops) == flops


def paper_line(name: str, efficiency: float, drafts: int = 1, **more: float) -> dict:
    """A line of results.json with the paper's 9 heads and an arbitrary number of tree nodes."""
    options = {"num_drafts": drafts} if drafts > 1 else {}
    return {
        "name": name, "label": name, "options": {**options, **more},
        "block_efficiency": efficiency, "draft_tokens_per_call": 7.5, "accept_histogram": [1] * 9,
    }  # fmt: skip


def test_results_have_the_rows_of_table_11():
    names = dict(zip(["autoregressive", "bpd", "ngram_1best", "neural_1best", "p_best_0gram",
                      "p_best_ngram"], TABLE_11.values(), strict=True))  # fmt: skip
    lines = [
        paper_line(name, row[0], row[1]) for name, row in names.items() if name != "autoregressive"
    ]
    low = [{**line, "block_efficiency": line["block_efficiency"] - 0.1} for line in lines]
    high = [{**line, "block_efficiency": line["block_efficiency"] + 0.1} for line in lines]
    rows = cost_rows({"one": {"strategies": low}, "two": {"strategies": high}})  # same mean
    assert [row["strategy"] for row in rows] == list(names)
    for row, (efficiency, drafts, _, parameters, kv, flops) in zip(
        rows, names.values(), strict=True
    ):
        assert row["mean_block_efficiency"] == pytest.approx(efficiency)
        assert row["verified_tokens_per_call"] == HEADS * drafts  # 9p
        assert shown(row["parameter_gb"], parameters) == parameters
        assert tuple(map(shown, row["kv_gb"].values(), kv)) == kv
        assert shown(row["tera_flops"], flops) == flops
    tree = cost_rows({"one": {"strategies": [paper_line("tree", 2.0, max_nodes=36)]}})[1]
    assert tree["verified_tokens_per_call"] == 7.5 + 1  # the measured nodes and head 1's token


def test_relative_costs_are_the_bars_of_figure_2():
    """Kim et al. 2024, figure 2: block efficiency of NewsRoom, FLOPs as in table 11."""
    task = {"strategies": [paper_line("bpd", 1.08), paper_line("p_best_ngram", 1.31, 16)]}
    (row,) = relative_costs(task)
    assert row["block_efficiency"] == pytest.approx(0.2130, abs=1e-4)
    table = {"strategies": [paper_line("bpd", 1.646), paper_line("p_best_ngram", 1.797, 16)]}
    (row,) = relative_costs(table)
    assert row["tera_flops"] == pytest.approx(0.0404, abs=2e-3)
    assert row["kv_gb"] == pytest.approx(-0.0254, abs=2e-3)
    assert row["parameter_gb"] == pytest.approx(1.646 / 1.797 - 1)
    bars = relative_costs({"strategies": [*task["strategies"], paper_line("oracle", 1.5)]})
    assert [bar["strategy"] for bar in bars] == ["p_best_ngram"]


def test_cost_model_of_any_size():
    model = CostModel.of_size(7e9, 32, 1024)
    greedy = model.per_token(1.0, 1000)
    assert greedy.parameter_gb == 14.0
    assert greedy.kv_gb == pytest.approx(1000 * 2 * 32 * 1024 * 2 / 1e9)
    assert greedy.tera_flops == pytest.approx((2 * 7e9 + 4 * 32 * 1024 * 1000) / 1e12)
    # Three tokens per call with 10 draft tokens: a third of the traffic, 11/3 of the arithmetic.
    tree = model.per_token(3.0, 1000, 10)
    assert tree.parameter_gb == pytest.approx(14.0 / 3)
    assert tree.kv_gb == pytest.approx(greedy.kv_gb * 1.01 / 3)
    assert tree.tera_flops == pytest.approx(greedy.tera_flops * 11 / 3)
