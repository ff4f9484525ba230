"""benchmarks/check_gpu.py on the CPU: parts, failures, and what it says without a GPU."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from lattice_bpd_conformance.cases import Case  # noqa: E402
from lattice_bpd_conformance.check import Verdict  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gpu():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module("check_gpu")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def check(gpu, tmp_path):
    arguments = {"device": "cpu", "size": "tiny", "minutes": 9.0, "backend": None}
    return gpu.Check(argparse.Namespace(**arguments, out=tmp_path / "gpu.json"))


def test_planned_heads_score_the_next_tokens(gpu):
    text = list(range(20, 60))
    heads = gpu.PlannedHeads([text], 512, "cpu")
    state = SimpleNamespace(tokens=text[:10])
    logits = heads.read_states([state, SimpleNamespace(tokens=[1, 2])])
    assert logits.shape == (2, gpu.SLOTS, 512)
    right = torch.tensor(text[10 : 10 + gpu.SLOTS])
    best = logits[0].topk(2).indices
    assert (best == right[:, None]).any(1).all()
    assert 0 < (best[:, 0] == right).sum() < gpu.SLOTS  # with mistakes
    assert logits[1].max() < 11.0  # of a text that it does not know, nothing


def test_the_draft_model_agrees_with_most_of_the_target(gpu):
    target = gpu.build_target("tiny", "cpu", torch.float32, "sdpa")
    draft = gpu.build_draft_model(target, "tiny")
    ids = torch.arange(1, 400)[None]
    with torch.no_grad():
        chosen = [model(input_ids=ids).logits.argmax(-1) for model in (target, draft)]
    assert 0.5 < (chosen[0] == chosen[1]).float().mean() < 1.0


def test_a_wrong_selection_is_a_failure(gpu, check, monkeypatch):
    assert all(line["equal"] for line in check.check_top_k())
    assert check.failures == []
    select = gpu.select_top_k

    def off_by_one(*args, **options):
        output = select(*args, **options)
        output.token_ids[0, 0, 0] += 1
        return output

    monkeypatch.setattr(gpu, "select_top_k", off_by_one)
    check.check_top_k()
    assert len(check.failures) == 9
    assert check.failures[0] == "top_k, float32, k = 1: not that of a stable sort"


def test_other_output_is_a_failure(gpu, check, monkeypatch):
    monkeypatch.setattr(gpu, "list_quick_cases", lambda: [Case("tree"), Case("greedy")])
    output = check.check_lossless(torch.float32, "sdpa")
    assert (output["equal"], check.failures) == (2, [])
    verdict = Verdict(Case("tree"), "different", "token 1, expected 2")
    monkeypatch.setattr(gpu.Checker, "run", lambda *_: [verdict])
    check.check_lossless(torch.float32, "sdpa")
    assert check.failures == ["lossless, sdpa, float32, tree, 1 prompt: different: "
                              "token 1, expected 2"]  # fmt: skip


def test_parts_are_written_and_skipped_without_time(check):
    check.run("one", lambda: 1, 0.0)
    check.run("broken", lambda: 1 / 0, 0.0)
    check.deadline = time.monotonic() + 1.0
    check.run("two", lambda: 2, 0.5)
    results = json.loads(check.out.read_text())
    assert results["one"] == 1
    assert results["skipped"] == ["two"]
    assert results["failures"] == ["broken: ZeroDivisionError: division by zero"]


def test_a_part_is_stopped_at_the_end_of_the_time(gpu, check, monkeypatch):
    before = gpu.signal.signal(gpu.signal.SIGALRM, gpu._stop)
    try:
        check.deadline = time.monotonic() + 0.2
        check.run("long", lambda: time.sleep(20), 0.0)
    finally:
        gpu.signal.signal(gpu.signal.SIGALRM, before)
    assert check.results["skipped"] == ["long"]
    assert check.failures == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_so(gpu, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    with pytest.raises(SystemExit, match=r"finds no CUDA device; expected one.*DEVICE=cpu"):
        gpu.main()
