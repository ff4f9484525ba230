"""The demo: comparison of strategies, its model folder, what it prints, and whole runs."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import inspect
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("rich")

import torch

import demo as demo_script
import lattice_bpd
from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli import main
from lattice_bpd.decode import DecodeResult, DecodeStats
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.demo import library_text as corpora
from lattice_bpd_kim2024.demo import recipe as recipes
from lattice_bpd_kim2024.demo.library_text import draw_passages, draw_prompts, read_library_sources
from lattice_bpd_kim2024.demo.model_folder import find_demo_model, load_demo_model
from lattice_bpd_kim2024.demo.training import train_demo_model
from lattice_bpd_kim2024.evaluate import compare_strategies
from lattice_bpd_kim2024.live import compare as comparing
from lattice_bpd_kim2024.live.call_tokens import split_by_call
from lattice_bpd_kim2024.live.compare import (
    Comparison,
    Difference,
    StrategyResult,
    find_difference,
)
from lattice_bpd_kim2024.live.greedy_check import check_greedy
from lattice_bpd_kim2024.live.repairs import find_repairs
from lattice_bpd_kim2024.live.table import table_rows
from lattice_bpd_kim2024.replay.strategies import DEMO_SETTINGS

pytestmark = pytest.mark.filterwarnings("ignore:Katz")

NAMES = ["greedy", "bpd", "p_best_0gram", "ngram_1best", "p_best_ngram", "oracle"]
DEMO_NAMES = [*NAMES[:-1], "tree_0gram", "tree", "mixture", "oracle"]
TINY = recipes.Recipe(
    name="model-tiny", max_files=12, vocab_size=300, num_heads=4, steps=12, batch_size=2,
    sequence_length=96, order=3, min_counts=(1, 1, 1), prompt_length=16, max_new_tokens=12,
    tune_prompts=1, test_prompts=3, alphas=(0.1, 0.3), temperatures=(1.0, 2.0), top_k=4,
    num_drafts=3, max_nodes=6,
)  # fmt: skip


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
    (tmp_path / "m0.py").write_text("x = -1\n")
    assert read_library_sources(tmp_path).fingerprint != corpus.fingerprint
    with pytest.raises(ValueError, match="expected one or more of each"):
        read_library_sources(tmp_path / "tests")


def test_prompts_leave_tokens_and_do_not_cross_documents():
    documents = [np.arange(100, 110), np.arange(3), np.arange(200, 207)]
    prompts = draw_prompts(documents, 100, length=4, room=2, seed=0)
    assert len(prompts) == 5 + 2  # every position
    assert all(prompt == list(range(prompt[0], prompt[0] + 4)) for prompt in prompts)
    passages = draw_passages(documents, 100, length=4, room=2, seed=0)
    assert passages == [(prompt, [prompt[-1] + 1, prompt[-1] + 2]) for prompt in prompts]
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
    assert greedy["block_efficiency"] == 1.0
    assert bpd["gain_over_bpd"] == 0.0
    assert bpd["block_efficiency"] == bpd["tokens"] / bpd["target_calls"]
    assert oracle["target_calls"] == min(line["target_calls"] for line in lines)
    assert (greedy["relative_speed"], oracle["relative_speed"]) == (1.0, None)
    assert json.loads(json.dumps(lines)) == lines


def fake_result(seconds, tokens=(1, 2), calls=1):
    stats = DecodeStats(calls, len(tokens), seconds={"total": seconds})
    return DecodeResult(list(tokens), "length", stats)


def test_relative_speed_is_of_the_timed_prompts():
    by_name = {setting.name: setting for setting in DEMO_SETTINGS}

    def result(name, *seconds):
        stats = [fake_result(value).stats for value in seconds]
        return StrategyResult(by_name[name], stats, [[1, 2]] * len(stats))

    results = [
        result("greedy", 2.0, 4.0, 9.0), result("tree", 1.0, 3.0, 90.0),
        result("bpd", 3.0, 9.0, 1.0), result("oracle", 1.0, 1.0, 1.0),
    ]  # fmt: skip
    lines = Comparison(results, [0, 0, 0], timed=[0, 1]).to_json()
    speeds = [line["relative_speed"] for line in lines]
    assert speeds[:3] == pytest.approx([1.0, 6.0 / 4.0, 0.5])
    assert (speeds[3], lines[1]["tokens_per_second"]) == (None, 1.0)
    whole = Comparison(results, [0, 0, 0])  # no prompt named: all are timed
    assert whole.relative_speed(results[1]) == pytest.approx(15.0 / 94.0)


def test_a_difference_in_a_later_round_is_reported(monkeypatch):
    runs = []

    def fake(model, prompt, drafter, **_):
        runs.append(type(drafter).__name__)
        third = runs.count("ArgmaxDrafter") == 3 and runs[-1] == "ArgmaxDrafter"
        return fake_result(1.0, (1, 2, 4) if third else (1, 2, 3))

    monkeypatch.setattr(comparing, "decode", fake)
    settings = [s for s in DEMO_SETTINGS if s.name in ("greedy", "bpd")]
    comparison = compare_strategies(model_of("gpt2"), None, [[5]], settings=settings, rounds=3)
    assert [(d.prompt, d.position) for d in comparison.results[1].differing] == [(0, 2)]
    assert [line["lossless"] for line in comparison.to_json()] == [True, False]


def test_greedy_is_checked_against_generate():
    model = model_of("trained")
    prompts = draw_prompts([looping_text(500, seed=2)], 4, length=10, room=20, seed=0)
    outputs = [plain_greedy(model, prompt, 20) for prompt in prompts]
    assert check_greedy(model, prompts, outputs, max_new_tokens=20) == []
    broken = [*outputs[:2], [*outputs[2][:6], (outputs[2][6] + 1) % VOCAB, *outputs[2][7:]]]
    (difference,) = check_greedy(model, prompts[:3], broken, max_new_tokens=20)
    assert (difference.prompt, difference.position) == (2, 6)
    stop = outputs[0][4]
    cut = outputs[0][: outputs[0].index(stop) + 1]
    ends = {"max_new_tokens": 20, "stop_token_ids": [stop]}
    assert check_greedy(model, prompts[:1], [cut], **ends) == []
    assert len(check_greedy(model, prompts[:1], [outputs[0]], **ends)) == (cut != outputs[0])


def test_a_difference_from_greedy_is_seen(comparison):
    wrong, tie = Difference(3, 5, 1e-7), Difference(4, 5, 0.5, 0.5)
    for differing, cell in (([wrong, tie], "NO (1 of 12)"), ([tie], "but 1 near-ties of 12")):
        broken = dataclasses.replace(comparison.results[1], differing=differing)
        changed = dataclasses.replace(comparison, results=[comparison.results[0], broken])
        assert table_rows(changed, {"p": 4, "k": 6, "n": 3})[1][-1] == cell
        assert [line["near_ties"] for line in changed.to_json()] == [0, 1]
    model = model_of("trained")
    output = plain_greedy(model, [1], 8)
    other = (output[4] + 1) % VOCAB
    difference = find_difference(model, 0, [1], output, [*output[:4], other])
    row = model.base(torch.tensor([[1, *output[:4]]])).logits[0, -1].detach()
    assert (difference.prompt, difference.position) == (0, 4)
    assert difference.margin == pytest.approx(float(row.max() - row[other]), rel=1e-4)
    assert not difference.is_tie


def test_differences_at_near_ties_are_counted_apart():
    model = copy.deepcopy(model_of("trained"))
    with torch.no_grad():  # tokens 2 i and 2 i + 1 have equal logits
        model.base.lm_head.weight[1::2] = model.base.lm_head.weight[::2]
    output = plain_greedy(model, [1], 8)
    twin = [1, *output[:4], output[4] ^ 1]
    tie = find_difference(model, 0, [1], output, [*twin[1:], *plain_greedy(model, twin, 3)])
    assert (tie.position, tie.is_tie) == (4, True)
    wrong = [*twin[1:], (plain_greedy(model, twin, 1)[0] + 2) % VOCAB]  # after a tie
    assert not find_difference(model, 0, [1], output, wrong).is_tie


def test_repairs_are_real(comparison, lm):
    prompts = draw_prompts([looping_text(500, seed=2)], 12, length=10, room=20, seed=0)
    outputs = comparison.results[0].outputs
    repairs = find_repairs(model_of("trained"), lm, prompts, outputs, top_k=6, alpha=0.2)
    assert len(repairs) == 2
    for repair in repairs:
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


def test_tokens_are_split_by_call():
    calls = split_by_call([1, 2, 3, 4, 5, 6], [2, 0, 1])
    assert [(call.accepted, call.own) for call in calls] == [
        ([], [1]), ([2, 3], [4]), ([], [5]), ([6], []),
    ]  # fmt: skip
    for output, lengths in (([1, 2], [2, 0]), ([1, 2, 3], [0]), ([1], [1])):
        with pytest.raises(ValueError, match="expected output and accept_lengths of one"):
            split_by_call(output, lengths)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Small files of Python, as a library to train on."""
    path = tmp_path_factory.mktemp("library")
    lines = inspect.getsource(argparse).splitlines()
    for number in range(85):
        text = "\n".join(lines[30 * number : 30 * number + 60])
        (path / f"piece{number}.py").write_text(text)
    return path


@pytest.fixture(scope="module")
def folder(pieces, tmp_path_factory):
    """A tiny demo model in bfloat16."""
    path = tmp_path_factory.mktemp("demo") / "model"
    corpus = read_library_sources(pieces, max_files=TINY.max_files)
    demo, _ = train_demo_model(path, TINY, corpus, Watcher())
    demo.model.to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture
def library(pieces, monkeypatch):
    sources = functools.partial(read_library_sources, pieces)
    monkeypatch.setattr(corpora, "read_library_sources", sources)


def test_demo_model_is_found_in_the_source_tree_or_here(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(lattice_bpd, "__file__", str(tmp_path / "a" / "python" / "x" / "y.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"in a clone, give --model DIR, or train a model"):
        find_demo_model()
    (tmp_path / "examples").mkdir()
    shutil.copytree(folder, tmp_path / "examples" / "demo_model")
    assert find_demo_model() == tmp_path / "examples" / "demo_model"  # of a parent of the package
    monkeypatch.setattr(lattice_bpd, "__file__", str(tmp_path.parent / "elsewhere" / "y.py"))
    assert find_demo_model() == tmp_path / "examples" / "demo_model"  # of the current folder


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json"),
        ("ngram.lm", "no LM", "ngram.lm"),
        ("model.safetensors", None, "the model cannot be read"),
        ("blockwise_heads.json", None, "blockwise_heads.json"),
        ("demo.json", "{", "demo.json"),
        ("demo.json", {"version": 2}, "expected an object of version 1"),
        ("demo.json", {"top_k": 0}, "top_k is 0; expected an integer of 1 or more"),
        ("demo.json", {"alpha": {"tree": 0.5}}, "alpha has no value for p_best_ngram"),
        ("demo.json", {"order": 4}, "ngram.lm is of order 3, demo.json says 4"),
        ("demo.json", {"end_of_text": 300}, "beyond the vocabulary of 300"),
    ],
)
def test_a_damaged_demo_model_is_one_clear_error(folder, tmp_path, file, change, message):
    broken = tmp_path / "model"
    shutil.copytree(folder, broken)
    if change is None:
        (broken / file).unlink()
    elif isinstance(change, str):
        (broken / file).write_text(change)
    else:
        content = {**json.loads((broken / file).read_text()), **change}
        (broken / file).write_text(json.dumps(content))
    with pytest.raises(FormatError, match=r"damaged demo model .* restore the folder") as error:
        load_demo_model(broken)
    assert message in str(error.value)


def test_the_smoke_test_of_a_demo_model(folder, library, tmp_path, capsys):
    arguments = ["--quick", "--model", str(folder), "--out", str(tmp_path / "out")]
    assert demo_script.main(arguments) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (results["smoke_test"], results["reused"], results["model"]) == (True, True, str(folder))
    assert all(line["lossless"] for line in results["strategies"])
    assert results["greedy_equals_generate"]
    text = capsys.readouterr().out
    assert "one continuation call by call" in text
    assert "\x1b[" not in text  # no terminal: no colors
    assert demo_script.main(["--retrain", "--out", str(tmp_path)]) == 2
    assert "--retrain without --train" in capsys.readouterr().err
    assert demo_script.main(["--model", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "has no demo.json" in capsys.readouterr().err
    command = ["generate", str(folder), "--strategy", "tree", "--prompt", "def main(", "--json"]
    assert main([*command, "--top-k", "4", "--max-new-tokens", "5"]) == 0


def test_the_whole_demo_trained_twice(library, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recipes, "QUICK", TINY)
    arguments = ["--train", "--quick", "--out", str(tmp_path / "out")]
    assert demo_script.main(arguments) == 0
    first = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [line["name"] for line in first["strategies"]] == DEMO_NAMES
    assert all(line["lossless"] for line in first["strategies"])
    assert (first["top_k"], first["num_drafts"], first["reused"]) == (4, 3, False)
    assert "drafts before and after rescoring" in capsys.readouterr().out
    assert demo_script.main(arguments) == 0
    second = json.loads((tmp_path / "out" / "results.json").read_text())
    assert second["reused"]
    assert "reusing the model" in capsys.readouterr().out
    for line, again in zip(first["strategies"], second["strategies"], strict=True):
        if line["name"] != "mixture":  # depends on measured times
            assert line["target_calls"] == again["target_calls"]
    (tmp_path / "out" / "model-tiny" / "ngram.lm").write_bytes(b"no LM")
    assert demo_script.main(arguments) == 2
    assert "ngram.lm" in capsys.readouterr().err
