"""benchmarks/bench_scale.py at a small size: its LMs, and answers that agree."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pynini")  # OpenFst answers, too
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("bench_scale", "corpus", "engines", "lattices", "machine", "ngram_files", "processes",
           "report", "timing")  # fmt: skip
ORDER = 3


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The benchmark with Zipf text for all of its texts."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    scale = importlib.import_module("bench_scale")
    corpus = importlib.import_module("corpus")
    text = corpus.make_zipf_text(6000)
    settings = {
        "FOLDER": tmp_path, "ORDER": ORDER, "MEMORY": "100M", "PRUNED": "5k", "ROUNDS": 1,
        "PAPER_BY_SHAPE": {(4, 2): 1.038, (8, 16): 1.63}, "PAPER_BY_DRAFTS": {16: 1.983},
        "load_all_text": lambda: text, "load_corpus": lambda *_: text,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(scale, name, value)
    monkeypatch.setattr(importlib.import_module("engines"), "CACHE", tmp_path)
    dense = corpus.make_dense_text(text, 50_000, seed=1)
    monkeypatch.setattr(scale, "make_dense_text", lambda *_: dense)
    yield SimpleNamespace(module=scale, text=text, dense=dense, folder=tmp_path)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.KatzWarning")
def test_small_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lattice_bpd import NGramLM

    path = bench.folder / "scale.json"
    monkeypatch.setattr(sys, "argv", ["bench_scale.py", "--json", str(path)])
    bench.module.main()
    results = json.loads(path.read_text())
    assert results["tokens"] == {"real": 6000, "synthetic": 50_000}
    sizes = {name: sum(lm["num_ngrams"]) for name, lm in results["lms"].items()}
    assert sizes["real"] < sizes["large"]
    assert sizes["pruned"] < sizes["large"]
    assert [(row["slots"], row["top_k"], row["num_drafts"]) for row in results["search_us"]] == [
        (4, 2, 1), (8, 16, 1), (8, 16, 16)
    ]  # fmt: skip
    last, summary = results["search_us"][-1], results["summary"]
    for name in ("real", "large", "pruned"):
        assert summary[f"{name}_over_wikitext_8x16_p16"] == round(
            last[f"{name}_5gram"] / last["wikitext_4gram"], 2
        )

    # The commands' LMs are those of the texts: real is one part, large both.
    lines = {
        "real": rows_of(bench.text), "large": [*rows_of(bench.text), *rows_of(bench.dense)]
    }  # fmt: skip
    for name, rows in lines.items():
        vocab = bench.module.END_ID + 1
        here = NGramLM.train(rows, ORDER, vocab_size=vocab)
        saved = NGramLM.load(bench.folder / f"scale-{name}.lm")
        assert list(saved.num_ngrams) == results["lms"][name]["num_ngrams"]
        sample = bench.text.token_ids[:200]
        np.testing.assert_array_equal(saved.score(sample), here.score(sample))


def rows_of(text: Any) -> list[Any]:
    pairs = zip(text.offsets[:-1], text.offsets[1:], strict=True)
    return [text.token_ids[first:last] for first, last in pairs]


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.KatzWarning")
def test_other_answers_end_the_run(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = importlib.import_module("engines")
    lattices = importlib.import_module("lattices")
    lm = engines.make_lm("small.lm", bench.text)
    bench.module.check_answers({"small": lm})
    plain = lattices.rescore

    def swapped(some: Any, lm: Any, drafts: int, engine: str, threads: int = 1) -> Any:
        token_ids, scores, counts = plain(some, lm, drafts, engine, threads)
        if engine == "openfst":
            token_ids[0, [0, 1]] = token_ids[0, [1, 0]]
        return token_ids, scores, counts

    monkeypatch.setattr(lattices, "rescore", swapped)
    with pytest.raises(AssertionError):
        bench.module.check_answers({"small": lm})
