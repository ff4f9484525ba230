"""benchmarks/bench_peers.py on a tiny model: its lines, tables, and the check of outputs."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

import torch

import lattice_bpd.decode.drafters as ld
from blockwise_models import VOCAB, model_of
from lattice_bpd import NGramLM
from lattice_bpd_kim2024.small_models import build_small_gpt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

peer_targets = importlib.import_module("peer_targets")
peer_lines = importlib.import_module("peer_lines")
peer_tables = importlib.import_module("peer_tables")
bench_peers = importlib.import_module("bench_peers")


@pytest.fixture
def target():
    torch.manual_seed(0)
    draft = build_small_gpt(VOCAB, hidden_size=16, num_layers=1, num_heads=2, max_positions=64).base
    draft.eval()
    lm = NGramLM.train([np.arange(4000, dtype=np.int32) * 5 % VOCAB], 2, vocab_size=VOCAB,
                       smoothing="witten_bell")  # fmt: skip
    prompts = [[3, 8, 13, 18, 23], [40, 2, 7]]
    return peer_targets.Target(
        "tiny", "a test", model_of("trained"), lm, draft, None, prompts, prompts[::-1],
        24, [VOCAB - 1],
    )  # fmt: skip


def test_a_wrong_output_stops_the_benchmark(target):
    greedy = peer_lines.own_line(target, "greedy", "greedy", peer_lines.OURS, ld.NoDrafter())
    wrong = peer_lines.Line("wrong", "", peer_lines.OURS, lambda _: ([0] * 24, None))
    with pytest.raises(AssertionError, match="tiny, wrong: the output of prompt"):
        bench_peers.measure(target, [greedy, wrong], 2, 1)


def test_a_whole_run_of_a_target(target, monkeypatch):
    monkeypatch.setattr(peer_lines, "MAX_NODES", 12)
    size = peer_targets.Size(
        timed_prompts=1, rounds=2, alphas=(0.5,), temperatures=(1.0,), budgets=(8,)
    )
    found = bench_peers.measure_target(target, size)
    rows = {line["name"]: line for line in found["lines"]}
    assert rows["greedy"]["tokens_per_call"]["value"] == 1.0
    assert rows["transformers_greedy"]["tokens_per_call"]["value"] == 1.0
    for name in ("bpd", "medusa", "eagle2", "ddtree", "p_best", "chain", "tree"):
        assert rows[name]["tokens_per_call"]["value"] > 1.0, name
    assert {"assisted", "assisted_fixed", "prompt_lookup", "suffix_automaton", "mixture",
            "draft_model", "draft_model_tree"} <= rows.keys()  # fmt: skip
    # The heap is our tree without an LM, but for the candidates that it starts from.
    assert rows["ddtree"]["tokens_per_call"]["value"] == pytest.approx(
        rows["tree_0gram"]["tokens_per_call"]["value"], rel=0.1
    )
    assert rows["tree"]["over_tree"]["value"] == 0.0
    text = peer_tables.render({"targets": [json.loads(json.dumps(found)) | {"quick": False}]})
    assert text.count("\n| ") == len(rows) + 2 + len(found["budgets"]) + 2


def test_the_page_has_the_tables_of_the_results():
    results = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())
    page = ROOT / "research" / "kim2024" / "RESULTS.md"
    assert peer_tables.render(results) in page.read_text()
