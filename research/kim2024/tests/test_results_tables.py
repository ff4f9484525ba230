"""scripts/results_tables.py: the paper's tables from one results.json, and their section."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

tables = importlib.import_module("results_tables")
write_results = importlib.import_module("write_results")


def task(h_max: int, efficiency: float) -> dict[str, Any]:
    interval = {"value": efficiency, "low": 1.0, "high": 3.0}
    changes = {"block_efficiency": 0.25, "parameter_gb": -0.2, "kv_gb": 0.015, "tera_flops": -0.1}
    by_lm = {"strategy": "tree", "block_efficiency": 2.5}
    return {
        "strategies": [{"name": "bpd", "label": "BPD", "block_efficiency": efficiency,
                        "interval": interval}],
        "texts": 12, "texts_held_out": 8, "loop_share": 0.07,
        "repetition": {"bpd": {"consecutive": 0.225, "longest_run": 2.477, "drafts": 9},
                       "2gram_1best": {"consecutive": 0.05, "longest_run": 1.5, "drafts": 9}},
        "wins_and_losses": {"neural": {
            "ties": 713, "wins": 229, "losses": 186, "win_repair": 0.2, "win_regress": 0.07,
            "loss_repair": 0.17, "loss_regress": 0.1,
        }},
        "by_lm": [{**by_lm, "lm": "4-gram"}, {**by_lm, "lm": "in-domain Katz"},
                  {**by_lm, "strategy": "neural", "scorer": "rescorer"}],
        "block_efficiency_by_weights": {
            "neural": [{"alpha": 0.5, "scorer": "rescorer", "block_efficiency": 2.1},
                       {"alpha": 1.0, "scorer": "rescorer", "block_efficiency": 2.4}],
            "mixture": [{"alpha": 2.0, "scorer": "rescorer + 0.5 4-gram",
                         "block_efficiency": 2.9}],
            "tree_0gram": [{"temperature": 1.5, "block_efficiency": 3.3}],
        },
        "relative_to_bpd": [{"strategy": "neural", "label": "neural BPD", **changes},
                            {"strategy": "oracle", "label": "oracle", **changes}],
        "entropies": {"h_max": h_max},
    }  # fmt: skip


@pytest.fixture
def results() -> dict[str, Any]:
    cost = {"strategy": "autoregressive", "mean_block_efficiency": 1.0, "parameter_gb": 3.0,
            "kv_gb": {"128": 0.1132, "512": 0.453, "1024": 0.906, "2048": 1.812},
            "tera_flops": 0.931}  # fmt: skip
    return {
        "tasks": {"anywhere": task(4, 2.1), "functions": task(6, 2.2), "docstrings": task(8, 2.3)},
        "costs": [cost], "h_max_correlation": 0.987,
    }  # fmt: skip


def test_rows_of_the_papers_tables(results):
    lines = tables.describe_paper_tables(results)
    cell = "22.5%; 2.48"
    assert f"| `bpd` | {cell} | {cell} | {cell} |" in lines
    assert "| functions | `neural` | 229 | 713 | 186 | 20% | 7% | 17% | 10% |" in lines
    assert "| `neural` | rescorer | 2.50 | 2.50 | 2.50 |" in lines
    assert "| `tree` | in-domain Katz | 2.50 | 2.50 | 2.50 |" in lines
    best = "alpha 1: 2.40"
    assert f"| `neural` | {best} | {best} | {best} |" in lines
    mixed = "alpha 2, rescorer + 0.5 4-gram: 2.90"
    assert f"| `mixture` | {mixed} | {mixed} | {mixed} |" in lines
    assert any(line.startswith("| `tree_0gram` | temperature 1.5: 3.30 |") for line in lines)
    assert (
        "| `autoregressive` | 1.00 | 3.000 | 0.113 | 0.453 | 0.906 | 1.812 | 0.931 |" in lines
    )  # fmt: skip
    assert "| anywhere | neural BPD | +25.0% | -20.0% | +1.5% | -10.0% |" in lines
    assert not any("| oracle |" in line for line in lines)  # not in figure 2
    assert lines[-5:] == [
        "| anywhere | 4 | 2.100 |", "| functions | 6 | 2.200 |", "| docstrings | 8 | 2.300 |", "",
        "R = 0.99.",
    ]  # fmt: skip
    assert tables.describe_h_max(results["tasks"], None)[-1].startswith("R is not defined")


def test_tables_have_as_many_cells_as_their_heads(results):
    lines = tables.describe_paper_tables(results)
    for number, line in enumerate(lines):
        if line.startswith("|---"):
            assert line.count("|") == lines[number - 1].count("|") == lines[number + 1].count("|")


def test_run_folder_into_the_page(results, tmp_path, monkeypatch):
    (tmp_path / "results.json").write_text(json.dumps(results))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results-paper -->\nold\n<!-- /results-paper -->\nafter\n")
    given = Namespace(run=tmp_path, document=page)
    monkeypatch.setattr(write_results, "read_arguments", lambda: given)
    write_results.main()
    expected = "\n".join(
        ["    lattice-bpd evaluate --quick --out run", "", *tables.describe_paper_tables(results)]
    )
    assert page.read_text() == (
        f"before\n<!-- results-paper -->\n{expected}\n<!-- /results-paper -->\nafter\n"
    )


def test_report_results_replace_their_section_only():
    text = "before\n<!-- a -->\nold\n<!-- /a -->\nafter <!-- b -->"
    assert tables.replace_section(text, "a", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match=r"no section <!-- b --> .. <!-- /b -->"):
        tables.replace_section(text, "b", "new")


def test_report_results_have_their_marks_in_the_document():
    text = (ROOT / "research" / "kim2024" / "RESULTS.md").read_text(encoding="utf-8")
    for name in ("results-demo", "results-stories", "results-stories-rules"):
        assert tables.replace_section(text, name, "x").count(f"<!-- {name} -->\nx\n") == 1
