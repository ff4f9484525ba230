"""The demo's parts, and the whole of it with a recipe made small."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("rich")

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd.evaluate import (
    compare_strategies,
    draw_prompts,
    loop_share,
    read_library_sources,
    tune_alpha,
)
from lattice_bpd.evaluate import corpus as corpora
from lattice_bpd.evaluate import recipe as recipes
from lattice_bpd.evaluate.compare import Difference, _difference
from lattice_bpd.evaluate.loops import count_looping
from lattice_bpd.evaluate.repairs import find_repairs
from lattice_bpd.evaluate.table import COLUMNS, footnotes, table_rows

pytestmark = pytest.mark.filterwarnings("ignore:Katz")

NAMES = ["greedy", "bpd", "p_best_0gram", "ngram_1best", "p_best_ngram", "oracle"]
TINY = recipes.Recipe(
    name="model-tiny", max_files=12, vocab_size=300, num_heads=4, steps=12, batch_size=2,
    sequence_length=96, order=3, min_counts=(1, 1, 1), prompt_length=16, max_new_tokens=12,
    tune_prompts=1, test_prompts=3, alphas=(0.1, 0.3), top_k=4, num_drafts=3,
)  # fmt: skip


def test_loops_by_hand():
    # window 2, text 1 2 | 3 1 2 3: the pairs 1 2 and 2 3 come again at the last two positions
    assert count_looping([1, 2], [3, 1, 2, 3], window=2) == 2
    assert count_looping([1, 2, 1, 2], [5, 6], window=2) == 0  # a loop of the prompt's own
    assert count_looping([], [7] * 12) == 4  # window 8: first full window ends at position 8
    assert loop_share([[], []], [[7] * 12, list(range(12))]) == 4 / 24
    assert loop_share([], []) == 0.0


def test_corpus_is_split_by_file_and_fingerprinted(tmp_path):
    for number in range(200):
        (tmp_path / f"m{number}.py").write_text(f"x = {number}\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("skipped = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe4\n")
    corpus = read_library_sources(tmp_path)
    texts = corpus.train + corpus.tune + corpus.test
    assert len(texts) == len(set(texts)) == 200
    assert len(corpus.train) > 150
    assert read_library_sources(tmp_path) == corpus
    few = read_library_sources(tmp_path, max_files=5)
    assert (len(few.train), few.test) == (5, corpus.test)
    (tmp_path / "m0.py").write_text("x = -1\n")
    assert read_library_sources(tmp_path).fingerprint != corpus.fingerprint
    with pytest.raises(ValueError, match="expected one or more of each"):
        read_library_sources(tmp_path / "tests")


def test_prompts_leave_room_and_do_not_cross_documents():
    documents = [np.arange(100, 110), np.arange(3), np.arange(200, 207)]
    found = draw_prompts(documents, 100, length=4, room=2, seed=0)
    assert len(found) == 5 + 2  # every place there is
    assert all(prompt == list(range(prompt[0], prompt[0] + 4)) for prompt in found)
    assert max(prompt[-1] for prompt in found if prompt[0] < 200) == 107
    assert draw_prompts(documents, 3, 4, 2, seed=0) == found[:3]
    with pytest.raises(ValueError, match="no document has 50 tokens"):
        draw_prompts(documents, 1, 48, 2, seed=0)


@pytest.fixture(scope="module")
def lm():
    return NGramLM.train([looping_text(2000, seed=1)], 3, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def comparison(lm):
    prompts = draw_prompts([looping_text(500, seed=2)], 12, length=10, room=20, seed=0)
    return compare_strategies(
        model_of("trained"), lm, prompts, top_k=6, num_drafts=4, alpha=0.2, max_new_tokens=20
    )


def test_comparison(comparison):
    lines = comparison.to_json()
    assert [line["name"] for line in lines] == NAMES
    assert all(line["lossless"] for line in lines)
    assert all(line["tokens"] == 12 * 20 for line in lines)
    greedy, bpd, *_, oracle = lines
    assert (greedy["block_efficiency"], greedy["repeat_share"]) == (1.0, None)
    assert bpd["gain_over_bpd"] == 0.0
    assert bpd["block_efficiency"] == bpd["tokens"] / bpd["target_calls"]
    assert oracle["target_calls"] == min(line["target_calls"] for line in lines)
    assert json.loads(json.dumps(lines)) == lines


def test_table(comparison):
    rows = table_rows(comparison, {"p": 4, "k": 6, "n": 3})
    assert [row[0] for row in rows][2:4] == ["4-best 0-gram BPD", "3-gram BPD (1-best)"]
    assert all(len(row) == len(COLUMNS) and row[-1] == "yes" for row in rows)
    assert any("exact token" in line for line in footnotes(comparison))


def test_a_difference_from_greedy_is_seen(comparison):
    broken = dataclasses.replace(comparison.results[1], differing=[Difference(3, 5, 1e-7)])
    changed = dataclasses.replace(comparison, results=[comparison.results[0], broken])
    assert [line["lossless"] for line in changed.to_json()] == [True, False]
    assert table_rows(changed, {"p": 4, "k": 6, "n": 3})[1][-1] == "NO (1 of 12)"
    output = comparison.results[0].outputs[0]
    found = _difference(model_of("trained"), 0, [1], output, [*output[:4], -1])
    assert (found.prompt, found.position) == (0, 4)
    assert found.margin >= 0.0


def test_alpha_is_tuned_for_block_efficiency(lm):
    prompts = draw_prompts([looping_text(500, seed=3)], 4, length=10, room=20, seed=0)
    options = {"top_k": 6, "num_drafts": 4, "max_new_tokens": 20}
    found = tune_alpha(model_of("trained"), lm, prompts, alphas=[0.1, 50.0], **options)
    assert list(found) == [0.1, 50.0]
    assert all(value >= 1.0 for value in found.values())
    with pytest.raises(ValueError, match="one prompt and one alpha"):
        tune_alpha(model_of("trained"), lm, [], alphas=[0.1])


def test_repairs_are_real(comparison, lm):
    prompts = draw_prompts([looping_text(500, seed=2)], 12, length=10, room=20, seed=0)
    outputs = comparison.results[0].outputs
    found = find_repairs(model_of("trained"), lm, prompts, outputs, top_k=6, alpha=0.2)
    assert len(found) == 2
    for repair in found:
        whole = next(
            prompt + output
            for prompt, output in zip(prompts, outputs, strict=True)
            if (prompt + output)[: len(repair.context)] == repair.context
        )
        wanted = whole[len(repair.context) :]
        for draft, accepted in (
            (repair.before, repair.accepted_before),
            (repair.after, repair.accepted_after),
        ):
            assert draft[:accepted] == wanted[:accepted]
            assert accepted == len(draft) or draft[accepted] != wanted[accepted]


def test_the_whole_demo_twice(tmp_path, monkeypatch, capsys):
    lines = inspect.getsource(argparse).splitlines()
    for number in range(85):
        text = "\n".join(lines[30 * number : 30 * number + 60])
        (tmp_path / f"piece{number}.py").write_text(text)
    sources = functools.partial(read_library_sources, tmp_path)
    monkeypatch.setattr(corpora, "read_library_sources", sources)
    monkeypatch.setattr(recipes, "QUICK", TINY)
    arguments = ["demo", "--quick", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    first = json.loads((tmp_path / "out" / "results.json").read_text())
    printed = capsys.readouterr().out
    assert [line["name"] for line in first["strategies"]] == NAMES
    assert all(line["lossless"] for line in first["strategies"])
    assert {"alpha", "top_k", "num_drafts", "seconds"} <= set(first)
    assert (first["top_k"], first["num_drafts"], first["reused"]) == (4, 3, False)
    assert "before" in printed
    assert "results.json" in printed
    assert "\x1b[" not in printed  # no terminal: no colours
    assert main(arguments) == 0
    second = json.loads((tmp_path / "out" / "results.json").read_text())
    assert second["reused"]
    assert "reusing the trained parts" in capsys.readouterr().out
    for line, again in zip(first["strategies"], second["strategies"], strict=True):
        assert line["target_calls"] == again["target_calls"]
    # A damaged part is an error that names it, not a traceback.
    (tmp_path / "out" / "model-tiny" / "ngram.lm").write_bytes(b"no LM")
    assert main(arguments) == 2
    assert "ngram.lm" in capsys.readouterr().err
