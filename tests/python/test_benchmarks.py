"""The benchmarks at small sizes: prompts, LMs and answers, and the faults that they must report."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROMPTS = BENCHMARKS / "prompts"
ORDER = 3


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


def rows_of(text: Any) -> list[Any]:
    return np.split(text.token_ids, text.offsets[1:-1])


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.KatzWarning")
def test_lms_of_other_sizes_give_the_same_answers(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """bench_scale.py with Zipf text for all of its texts; then with an engine that errs."""
    from lattice_bpd import NGramLM

    pytest.importorskip("pynini")  # OpenFst answers, too
    scale, corpus, engines, lattices = map(load, ("bench_scale", "corpus", "engines", "lattices"))
    text = corpus.make_zipf_text(6000)
    dense = corpus.make_dense_text(text, 50_000, seed=1)
    settings = {
        "FOLDER": tmp_path, "ORDER": ORDER, "MEMORY": "100M", "PRUNED": "5k", "ROUNDS": 1,
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
    last = results["search_us"][-1]
    assert (last["slots"], last["top_k"], last["num_drafts"]) == (8, 16, 16)
    ratio = round(last["large_5gram"] / last["wikitext_4gram"], 2)
    assert results["summary"]["large_over_wikitext_8x16_p16"] == ratio
    # The commands' LMs are those of the texts: real is one part, large both.
    for name, rows in (("real", rows_of(text)), ("large", rows_of(text) + rows_of(dense))):
        here = NGramLM.train(rows, ORDER, vocab_size=scale.END_ID + 1)
        saved = NGramLM.load(tmp_path / f"scale-{name}.lm")
        np.testing.assert_array_equal(saved.score(text.token_ids[:200]),
                                      here.score(text.token_ids[:200]))  # fmt: skip

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


def test_a_slower_search_is_reported(load: Any) -> None:
    guard = load("instruction_baseline")
    compared = guard.compare_counts({"list": 1050, "tree": 1019}, {"list": 1000, "tree": 1000})
    slower, within = (one.complaint for one in compared)
    assert within is None
    assert slower.startswith("list: 1,050 instructions for a lattice, +5.0% against 1,000")
    assert set(guard.read_baseline()) == {search.name for search in guard.SEARCHES}


@pytest.fixture
def gpu(load: Any) -> Any:
    pytest.importorskip("torch")
    return load("check_gpu")


@pytest.fixture
def check(gpu: Any, tmp_path: Path) -> Any:
    arguments = {"device": "cpu", "size": "tiny", "minutes": 9.0, "backend": None}
    return gpu.Check(argparse.Namespace(**arguments, out=tmp_path / "gpu.json"))


def test_a_wrong_selection_is_a_failure(gpu: Any, check: Any, monkeypatch: Any) -> None:
    assert all(line["equal"] for line in check.check_top_k())
    assert check.failures == []
    select = gpu.select_top_k

    def off_by_one(*args: Any, **options: Any) -> Any:
        output = select(*args, **options)
        output.token_ids[0, 0, 0] += 1
        return output

    monkeypatch.setattr(gpu, "select_top_k", off_by_one)
    check.check_top_k()
    assert len(check.failures) == 9
    assert check.failures[0] == "top_k, float32, k = 1: not that of a stable sort"


def test_other_output_is_a_failure(gpu: Any, check: Any, monkeypatch: Any) -> None:
    import torch

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


def test_parts_are_written_and_skipped_without_time(check: Any) -> None:
    check.run("one", lambda: 1, 0.0)
    check.run("broken", lambda: 1 / 0, 0.0)
    check.deadline = time.monotonic() + 1.0
    check.run("two", lambda: 2, 0.5)
    results = json.loads(check.out.read_text())
    assert (results["one"], results["skipped"]) == (1, ["two"])
    assert results["failures"] == ["broken: ZeroDivisionError: division by zero"]


def test_without_a_gpu_it_says_so(gpu: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["check_gpu.py"])
    with pytest.raises(SystemExit, match=r"finds no CUDA device; expected one.*DEVICE=cpu"):
        gpu.main()
