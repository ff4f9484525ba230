"""The benchmarks at small sizes: prompts, LMs and answers, and the faults that they must report."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROMPTS = BENCHMARKS / "prompts"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of benchmarks/ by name; later tests get new ones."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(PROMPTS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in {*sys.modules} - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def read_prompts(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PROMPTS / name).read_text(encoding="utf-8").splitlines()]


def content(row: dict[str, Any]) -> str:
    texts: list[str] = row.get("turns") or [message["content"] for message in row["messages"]]
    assert len(texts) > 1 if "turns" in row else len(texts) == 1
    assert all(text.strip() == text and text for text in texts), row["id"]
    return "\n".join(texts)


def test_prompts_of_training_and_of_the_yardstick_share_no_text(load: Any) -> None:
    composer = load("make_train")
    rows, train = read_prompts("prompts.jsonl"), read_prompts("train.jsonl")
    assert Counter((row["kind"], row["split"]) for row in rows) == {
        (kind, split): 10 for kind in composer.KINDS for split in ("tuning", "test")
    }
    assert {row["kind"] for row in train[:50]} == set(composer.KINDS)
    assert len({row["id"] for row in rows + train}) == len(rows + train)
    assert len({content(row) for row in rows + train}) == len(rows + train)
    held_out = set().union(*(composer.word_runs(content(row)) for row in rows))
    for row in train:
        assert held_out.isdisjoint(composer.word_runs(content(row))), row["id"]


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.KatzWarning")
def test_lms_of_other_sizes_give_the_same_answers(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """bench_scale.py with Zipf text for all of its texts; then with an engine that errs."""
    pytest.importorskip("pynini")  # OpenFst answers, too
    scale, corpus, engines, lattices = map(load, ("bench_scale", "corpus", "engines", "lattices"))
    text = corpus.make_zipf_text(6000)
    dense = corpus.make_dense_text(text, 50_000, seed=1)
    settings = {
        "FOLDER": tmp_path, "ORDER": 3, "MEMORY": "100M", "PRUNED": "5k", "ROUNDS": 1,
        "PAPER_BY_SHAPE": {(4, 2): 1.038, (8, 16): 1.63}, "PAPER_BY_DRAFTS": {16: 1.983},
        "load_all_text": lambda: text, "load_corpus": lambda *_: text,
        "make_dense_text": lambda *_: dense,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(scale, name, value)
    monkeypatch.setattr(engines, "CACHE", tmp_path)
    path = tmp_path / "scale.json"
    monkeypatch.setattr(sys, "argv", ["bench_scale.py", "--json", str(path)])
    scale.main()
    results = json.loads(path.read_text())
    assert results["tokens"] == {"real": 6000, "synthetic": 50_000}
    assert sum(results["lms"]["pruned"]["num_ngrams"]) < sum(results["lms"]["large"]["num_ngrams"])
    plain = lattices.rescore

    def swapped(some: Any, lm: Any, drafts: int, engine: str, threads: int = 1) -> Any:
        token_ids, scores, counts = plain(some, lm, drafts, engine, threads)
        if engine == "openfst":
            token_ids[0, [0, 1]] = token_ids[0, [1, 0]]
        return token_ids, scores, counts

    lms = {"small": engines.make_lm("small.lm", text)}
    scale.check_answers(lms)
    monkeypatch.setattr(lattices, "rescore", swapped)
    with pytest.raises(AssertionError):
        scale.check_answers(lms)


def test_other_output_is_a_failure(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    gpu = load("check_gpu")
    arguments = {"device": "cpu", "size": "tiny", "minutes": 9.0, "backend": None}
    check = gpu.Check(argparse.Namespace(**arguments, out=tmp_path / "gpu.json"))
    from lattice_bpd_conformance.cases import Case
    from lattice_bpd_conformance.check import Verdict

    monkeypatch.setattr(gpu, "list_quick_cases", lambda: [Case("tree"), Case("greedy")])
    output = check.check_lossless(torch.float32, "sdpa")
    assert (output["equal"], check.failures) == (2, [])
    verdict = Verdict(Case("tree"), "different", "token 1, expected 2")
    monkeypatch.setattr(gpu.Checker, "run", lambda *_: [verdict])
    check.check_lossless(torch.float32, "sdpa")
    assert check.failures == ["lossless, sdpa, float32, tree, 1 prompt: different: "
                              "token 1, expected 2"]  # fmt: skip
