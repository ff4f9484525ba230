"""`lattice-bpd record | replay | evaluate`: runs on a tiny model, and user errors."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("rich")
pytest.importorskip("tokenizers")

import tokenizers
import torch
from safetensors.torch import load_file

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd.cli.files import load_causal_lm
from lattice_bpd.decode.drafters import NeuralScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.watcher import SilentWatcher
from lattice_bpd_kim2024.demo import library_text as corpora
from lattice_bpd_kim2024.demo import quick
from lattice_bpd_kim2024.demo import recipe as recipes
from lattice_bpd_kim2024.demo.library_tasks import (
    LIBRARY_TASKS,
    QUICK_TASKS,
    library_domain,
    library_passages,
)
from lattice_bpd_kim2024.demo.library_text import Corpus
from lattice_bpd_kim2024.demo.training import train_demo_model
from lattice_bpd_kim2024.lab.lab import HELD_OUT, split_texts
from lattice_bpd_kim2024.record.files import read_record
from lattice_bpd_kim2024.record.write import Prompt, RecordOptions, write_record
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.rescorer import train_rescorer
from lattice_bpd_kim2024.small_models import build_rescorer
from lattice_bpd_kim2024.statistics import loop_share

SENTENCES = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model with a tokenizer of the words t0 .. t47, two LMs, and files of three kinds."""
    path = tmp_path_factory.mktemp("lab")
    model_of("trained").save_pretrained(path / "model")
    model_of("trained").base.save_pretrained(path / "rescorer")
    build_rescorer("tiny", 5, hidden_size=8, num_layers=1).save_pretrained(path / "other")
    words = {f"t{number}": number for number in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "model" / "tokenizer.json"))
    for order in (2, 3):
        text = looping_text(2000, seed=order)
        lm = NGramLM.train([text], order, vocab_size=VOCAB, smoothing="witten_bell")
        lm.save(path / f"{order}gram.lm")
    ids = looping_text(900, seed=9).tolist()
    lines = [" ".join(f"t{i}" for i in ids[40 * n : 40 * n + 8 + n % 3]) for n in range(SENTENCES)]
    (path / "text.txt").write_text("\n\n".join(lines))
    rows = [{"prompt": line, "id": f"n{n}"} for n, line in enumerate(lines)]
    (path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answers = [{"document": line, "summary": "t1 t2"} for line in lines[:6]]
    (path / "news.jsonl").write_text("\n".join(map(json.dumps, answers)))
    return path


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def record_arguments(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        "record", "--model", str(folder / "model"), "--task", "jsonl", "--data",
        str(folder / "rows.jsonl"), "--out", str(out), "--top-k", "8", "--max-new-tokens", "12",
        *more,
    ]  # fmt: skip


def test_record_and_replay_by_command_line(folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(record_arguments(folder, out, "--texts-per-shard", "5")) == 0
    printed = capsys.readouterr().out
    assert f"{SENTENCES} texts, {12 * SENTENCES} steps, 4 slots x 8" in printed
    assert main(record_arguments(folder, out, "--texts-per-shard", "5")) == 0  # nothing to do
    table = tmp_path / "sweep.csv"
    arguments = [
        "replay", str(out), "--lm", f"two={folder / '2gram.lm'}", "--lm", str(folder / "3gram.lm"),
        "--strategies", "bpd,oracle,p_best_ngram", "--top-k", "2,4", "--alpha", "0.2,0.5",
        "--num-drafts", "3", "--csv", str(table),
    ]  # fmt: skip
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "steps/s" in printed
    assert "┃ block_efficiency ┃" in printed  # whole, though it is no terminal
    rows = read_csv(table)
    assert [row["strategy"] for row in rows] == ["bpd"] + ["oracle"] * 2 + ["p_best_ngram"] * 8
    assert {row["lm"] for row in rows if row["strategy"] == "p_best_ngram"} == {"two", "3gram"}
    assert all(float(r["low"]) <= float(r["block_efficiency"]) <= float(r["high"]) for r in rows)
    neural = ["replay", str(out), "--rescorer", f"small={folder / 'rescorer'}", "--csv", str(table)]
    lm = ["--lm", f"two={folder / '2gram.lm'}"]
    assert main([*neural, *lm, "--strategies", "neural,mixture", "--alpha", "0.5,1"]) == 0
    assert [(row["strategy"], row["scorer"], row["lm"]) for row in read_csv(table)] == [
        *[("neural", "small", "")] * 2,
        *(("mixture", f"small + {w} two", "two") for w in ("0.25", "0.5", "1") for _ in range(2)),
    ]
    assert main([*neural, "--limit", "2"]) == 0  # all that can run
    assert {"neural", "bpd"} <= {row["strategy"] for row in read_csv(table)}
    assert "mixture" not in table.read_text()
    assert main(["replay", str(out), "--limit", "3", "--strategies", "prompt_lookup"]) == 0
    assert "prompt_lookup" in capsys.readouterr().out
    assert main(["replay", str(out), "--csv", str(tmp_path / "no" / "x.csv")]) == 2
    printed = capsys.readouterr()
    assert "there is no folder" in printed.err
    assert "replaying" not in printed.out


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        (["", ""], {"jsonl": 2}),
        (["qa", "qa"], {"jsonl/qa": 2}),
        (["qa", "", "sum/1", "qa"], {"jsonl/qa": 2, "jsonl (no category)": 1, "jsonl/sum/1": 1}),
    ],
)
def test_replay_names_rows_by_category(tmp_path, kinds, names):
    out, table = tmp_path / "run", tmp_path / "rows.csv"
    prompts = [Prompt([3, 8, 13 + n], kind=kind) for n, kind in enumerate(kinds)]
    options = RecordOptions(top_k=8, max_new_tokens=6)
    write_record(out, model_of("trained"), prompts, options, task="jsonl")
    assert main(["replay", str(out), "--strategies", "greedy", "--csv", str(table)]) == 0
    # greedy: six tokens, each a call of its own
    calls = {row["task"]: int(row["target_calls"]) / 6 for row in read_csv(table)}
    assert calls == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--strategies", "treee"], "unknown strategy 'treee'; did you mean 'tree'?"),
        (["--strategies", "tree"], "strategy tree needs an n-gram LM; give --lm FILE"),
        (["--top-k", "9"], "top_k is 9; expected 1..8, the candidates that were recorded"),
        (["--top-k", "two"], "--top-k is 'two'; expected whole numbers between commas"),
        (["--limit", "0"], "--limit is 0; expected 1 or more"),
        (["--lm", "none.lm"], "none.lm"),
        (["--strategies", "neural"], "strategy neural needs a rescorer; give --rescorer DIR"),
        (["--rescorer", "nowhere"], "nowhere: no such folder; expected the folder of a causal"),
        (["--rescorer", "a=x", "--rescorer", "a=y"], "--rescorer: a twice; name one of them"),
    ],
)
def test_replay_says_what_is_wrong(folder, tmp_path_factory, capsys, arguments, message):
    out = tmp_path_factory.getbasetemp() / "lab-record"
    if not out.exists():
        assert main(record_arguments(folder, out)) == 0
    capsys.readouterr()
    assert main(["replay", str(out), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_replay_refuses_an_lm_of_another_vocabulary_and_a_folder_without_record(
    folder, tmp_path, capsys
):
    out = tmp_path / "run"
    assert main(record_arguments(folder, out, "--limit", "3")) == 0
    NGramLM.train([[0, 1, 2]], 2, vocab_size=5, smoothing="witten_bell").save(tmp_path / "other.lm")
    assert main(["replay", str(out), "--lm", str(tmp_path / "other.lm")]) == 2
    assert "has a vocabulary of 5, the record one of 48" in capsys.readouterr().err
    assert main(["replay", str(out), "--rescorer", str(folder / "other")]) == 2
    assert "--rescorer other has a vocabulary of 5, the record one" in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "expected the output folder of lattice-bpd record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "jsnl"], "unknown task 'jsnl'; did you mean 'jsonl'?"),
        (["--top-k", "65"], "top_k is 65; expected 1..64"),
        (["--field", "text"], "line 1: no field 'text'"),
        (["--model", "nowhere"], "nowhere"),
        (["--limit", "0"], "limit is 0; expected 1 or more"),
    ],
)
def test_record_says_what_is_wrong(folder, tmp_path, capsys, arguments, message):
    assert main(record_arguments(folder, tmp_path / "run", *arguments)) == 2
    assert message in capsys.readouterr().err


def test_replay_of_an_evaluation_of_own_files(folder, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = [
        "evaluate", "--out", str(out), "--model", str(folder / "model"),
        "--lm", f"two={folder / '2gram.lm'}", "--lm", f"three={folder / '3gram.lm'}",
        "--rescorer", f"small={folder / 'rescorer'}", "--rescorer", f"same={folder / 'rescorer'}",
        "--task", "jsonl", "--data", str(folder / "rows.jsonl"),
        "--task", "cnndm", "--data", str(folder / "news.jsonl"),
        "--max-new-tokens", "12", "--top-k", "8", "--num-drafts", "4", "--max-nodes", "9",
        "--alphas", "0.2,0.6", "--live", "2",
        "--accept", "top_k:9", "--accept", "top_k:1", "--accept-texts", "2",
    ]  # fmt: skip
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "4-best 2-gram BPD" in printed
    results = json.loads((out / "results.json").read_text())
    assert (results["format"], results["version"]) == ("lattice-bpd results", 2)
    assert list(results["tasks"]) == ["jsonl", "cnndm"]
    assert results["lms"]["two"] == {
        "file": str(folder / "2gram.lm"), "order": 2,
        "num_ngrams": results["lms"]["two"]["num_ngrams"],
    }  # fmt: skip
    parameters = sum(weight.numel() for weight in model_of("trained").base.parameters())
    folder_of = str(folder / "rescorer")
    assert results["scorers"] == {
        name: {"file": folder_of, "num_parameters": parameters} for name in ("small", "same")
    }
    costs = {line["strategy"]: line for line in results["costs"]}
    with_rescorer = costs["neural"]["parameter_gb"] * costs["neural"]["mean_block_efficiency"]
    assert with_rescorer == pytest.approx(3.0 + 0.122)  # a call reads the target and the rescorer
    for task in results["tasks"].values():
        assert all(check["holds"] and check["texts"] == 2 for check in task["live"])
        assert all(check["same_calls"] == 2 for check in task["live"])
        lines = {line["name"]: line for line in task["strategies"]}
        assert lines["bpd"]["over_bpd"]["gain"]["value"] == 0.0
        assert lines["oracle"]["block_efficiency"] >= lines["bpd"]["block_efficiency"]
        for line in lines.values():
            calls = sum(line["accept_histogram"])
            assert calls + task["texts"] == line["target_calls"] == sum(line["calls_by_text"])
        curve = [p for p in task["by_num_drafts"] if p["strategy"] == "p_best_ngram"]
        assert [point["num_drafts"] for point in curve] == [1, 2, 4, 8, 16]
        assert {point["num_heads"] for point in task["by_heads"]} == {3, 5}
        assert {point.get("lm") for point in task["by_lm"]} == {"two", "three", None}
        neural = [point for point in task["by_lm"] if point["strategy"] == "neural"]
        assert [point["scorer"] for point in neural] == ["small", "same"]
        assert neural[0]["block_efficiency"] == neural[1]["block_efficiency"]
        assert neural[0]["block_efficiency"] == lines["neural"]["block_efficiency"]
        assert {"neural", "mixture", "ngram_1best"} == set(task["wins_and_losses"])
        relative = {row["strategy"]: row for row in task["relative_to_bpd"]}
        gain = lines["neural"]["block_efficiency"] / lines["bpd"]["block_efficiency"] - 1.0
        assert relative["neural"]["block_efficiency"] == pytest.approx(gain)
        ratio = (3.0 + 0.122) / 3.0 / (1.0 + gain)
        assert relative["neural"]["parameter_gb"] == pytest.approx(ratio - 1.0)
        assert task["texts"] + task["texts_held_out"] in (SENTENCES, 6)
        exact, forced, strict = task["acceptance"]
        assert [line["rule"] for line in task["acceptance"]][1:] == ["top_k:9", "top_k:1"]
        assert (exact["texts"], exact["same_texts"], strict["same_texts"]) == (2, 2, 2)
        assert forced["relaxed_share"] >= exact["relaxed_share"] == exact["regret"] == 0.0
        assert forced["block_efficiency"] >= exact["block_efficiency"]
    assert results["tasks"]["cnndm"]["performance"]["metric"] == "rouge_l"
    assert results["tasks"]["jsonl"]["acceptance"][0]["quality"] is None
    assert all(line["quality"] >= 0.0 for line in results["tasks"]["cnndm"]["acceptance"])
    tables = {path.name for path in out.glob("*.csv")}
    assert {
        "table_1_tasks.csv", "table_3_repetition.csv", "table_4_strategies.csv", "table_5_wins.csv",
        "table_7_9_lms.csv", "table_8_weights.csv", "table_11_costs.csv", "figure_2_relative.csv",
    } <= tables  # fmt: skip
    for name in ("table_3_repetition", "table_5_wins"):
        assert {"neural", "mixture", "ngram_1best"} <= {
            row["strategy"] for row in read_csv(out / f"{name}.csv")
        }
    for name in ("table_4_strategies", "table_8_weights", "table_11_costs"):
        assert {"neural", "mixture"} <= {row["strategy"] for row in read_csv(out / f"{name}.csv")}
    assert len(read_csv(out / "acceptance_rules.csv")) == 6
    assert {path.stem for path in out.glob("*.tex")} == {path.stem for path in out.glob("*.csv")}
    main_rows = read_csv(out / "table_4_strategies.csv")
    assert len(main_rows) == 2 * len(results["tasks"]["jsonl"]["strategies"])
    assert main(["replay", str(out), "--strategies", "bpd"]) == 0  # the run has its records
    assert "cnndm" in capsys.readouterr().out


def test_lambada_has_the_perplexity_of_whole_passages(folder, tmp_path, capsys):
    """exp of the mean loss of all tokens but the first of each passage, its last word included."""
    rng = np.random.default_rng(3)
    passages = [rng.integers(0, VOCAB, size=size).tolist() for size in (5, 9, 7, 6)]
    rows = [
        {"context": " ".join(f"t{i}" for i in ids[:-1]), "continuation": f"t{ids[-1]}"}
        for ids in passages
    ]
    data = tmp_path / "lambada.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    arguments = [
        "evaluate", "--out", str(tmp_path / "run"), "--model", str(folder / "model"),
        "--task", "lambada", "--data", str(data), "--max-new-tokens", "6", "--top-k", "4",
        "--strategies", "bpd", "--live", "0",
    ]  # fmt: skip
    assert main(arguments) == 0
    losses: list[float] = []
    for ids in passages:
        with torch.inference_mode():
            logits = model_of("trained").base(input_ids=torch.tensor([ids])).logits[0]
        chances = logits.log_softmax(dim=-1)
        losses += [-float(chances[at, token]) for at, token in enumerate(ids[1:])]
    expected = np.exp(np.mean(losses))
    (row,) = read_csv(tmp_path / "run" / "table_1_tasks.csv")
    assert (row["task"], row["metric"]) == ("lambada", "perplexity")
    assert float(row["performance"]) == pytest.approx(expected, rel=1e-4)
    assert f"perplexity {expected:.2f}" in capsys.readouterr().out


def evaluate_arguments(folder: Path, out: Path, *more: str) -> list[str]:
    return [
        "evaluate", "--out", str(out), "--model", str(folder / "model"),
        "--task", "jsonl", "--data", str(folder / "rows.jsonl"),
        "--task", "cnndm", "--data", str(folder / "news.jsonl"),
        "--max-new-tokens", "12", "--top-k", "8", "--live", "0", *more,
    ]  # fmt: skip


def test_each_task_has_the_lm_and_the_rescorer_of_its_own_domain(folder, tmp_path):
    out, weak = tmp_path / "run", tmp_path / "weak"
    made = build_rescorer("tiny", VOCAB, hidden_size=8, num_layers=1)
    with torch.no_grad():
        made.get_input_embeddings().weight.mul_(100.0)  # wrong, and sure of it
    made.save_pretrained(weak)
    noise = np.random.default_rng(0).integers(0, VOCAB, 2000)
    NGramLM.train([noise], 2, vocab_size=VOCAB, smoothing="witten_bell").save(tmp_path / "noise.lm")
    lms = {"jsonl": folder / "2gram.lm", "cnndm": tmp_path / "noise.lm"}
    scorers = {"jsonl": folder / "rescorer", "cnndm": weak}
    arguments = evaluate_arguments(
        folder, out, "--lm", f"general={folder / '3gram.lm'}", "--rescorer", f"general={weak}",
        *(f"--domain-lm={task}={path}" for task, path in lms.items()),
        *(f"--domain-rescorer={task}={path}" for task, path in scorers.items()),
        "--strategies", "neural,ngram_1best", "--alphas", "10",
    )  # fmt: skip
    assert main(arguments) == 0
    results = json.loads((out / "results.json").read_text())
    assert (set(results["lms"]), set(results["scorers"])) == ({"general"}, {"general"})
    for name, task in results["tasks"].items():
        assert task["domain_lms"]["in-domain"]["file"] == str(lms[name])
        assert task["domain_scorers"]["in-domain"]["file"] == str(scorers[name])
        recorded = Recording(read_record(out / "record" / name).texts)
        reported = recorded.select(split_texts(len(recorded.texts), HELD_OUT, 0)[1])

        def replay(strategy, used, reported=reported):
            return reported.replay(STRATEGIES[strategy], used, DraftConfig(top_k=8, alpha=10.0))

        neural = {
            path: replay("neural", Rescorers(scorer=NeuralScorer(load_causal_lm(path))))
            for path in scorers.values()
        }
        ngram = {
            path: replay("ngram_1best", Rescorers(NGramLM.load(path))) for path in lms.values()
        }
        for replays in (neural, ngram):  # the other task's would be noticed
            assert len({replayed.block_efficiency for replayed in replays.values()}) == 2
        rows = {(row["strategy"], row.get("lm"), row.get("scorer")): row for row in task["by_lm"]}
        row = rows["neural", None, "in-domain"]
        assert row["block_efficiency"] == neural[scorers[name]].block_efficiency
        row = rows["ngram_1best", "in-domain", None]
        assert row["block_efficiency"] == ngram[lms[name]].block_efficiency
    table = read_csv(out / "table_7_9_lms.csv")
    assert [row["task"] for row in table if row["scorer"] == "in-domain"] == ["jsonl", "cnndm"]
    assert main(["report", str(out), "--steps", "1"]) == 0
    page = (out / "report.html").read_text()
    assert all(f"in-domain ({task})" in page for task in lms)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--domain-lm", "xsum=2gram.lm"], "xsum is not one of the tasks jsonl, cnndm; expected"),
        (["--domain-rescorer", "rescorer"], "expected --domain-rescorer TASK=PATH"),
        (["--domain-rescorer", "jsonl=rescorer"], "--domain-rescorer without --rescorer; give"),
        (["--lm", "in-domain=2gram.lm", "--domain-lm", "jsonl=2gram.lm"], "choose another"),
        (["--rescorer", "rescorer", "--domain-rescorer", "jsonl=other"],
         "--domain-rescorer jsonl has a vocabulary of 5, the model one of 48"),
        (["--domain-lm", "jsonl=2gram.lm", "--domain-lm", "jsonl=3gram.lm"], "jsonl twice"),
    ],
)  # fmt: skip
def test_domain_options_say_what_is_wrong(
    folder, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(folder)
    assert main(evaluate_arguments(folder, tmp_path / "run", *arguments)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --quick, or --model DIR with --task NAME and --data FILE"),
        (["--quick", "--task", "squad"], "--quick brings heads, LMs and tasks of its own"),
        (["--quick", "--domain-lm", "a=b"], "remove --task, --data, --lm, --domain-lm and"),
        (["--model", "m", "--task", "squad"], "1 --task and 0 --data; expected a file for each"),
        (["--quick", "--live", "-1"], "--live is -1; expected 0 or more"),
        (["--quick", "--speed", "-1"], "--speed is -1; expected 0 or more"),
        (["--quick", "--model", "nowhere"], "nowhere has no demo.json; expected the folder of"),
        (["--quick", "--model", "m"], "for another model leave out --quick and give --task and"),
        (["--quick", "--accept", "top_k:0"], "TopKMatch: k is 0; expected 1 or more"),
        (["--quick", "--num-drafts", "0"], "--num-drafts is 0; expected 1 or more"),
    ],
)
def test_replay_evaluate_says_what_is_wrong(tmp_path, capsys, arguments, message):
    assert main(["evaluate", "--out", str(tmp_path), *arguments]) == 2
    assert message in capsys.readouterr().err


PIECE = '''"""About {n}."""
import os
import sys
import json


def first_{n}(value):
    """Doubles."""
    return value + value + {n}


def second_{n}(path, name):
    """Joins what is given to {n}."""
    # a comment
    return os.path.join(path, name, str({n}))


class Third_{n}:
    """Keeps."""
'''


def test_replay_quick_evaluation_end_to_end(tmp_path, monkeypatch, capsys):
    texts = [PIECE.format(n=n) * 2 for n in range(60)]
    corpus = Corpus(texts[:40], texts[40:45], texts[45:], "made-up")
    monkeypatch.setattr(corpora, "read_library_sources", lambda **_: corpus)
    tiny = replace(
        recipes.QUICK, name="model-tiny", vocab_size=300, num_heads=4, steps=30,
        sequence_length=64, prompt_length=16, max_new_tokens=12, batch_size=4, order=3,
        min_counts=(1, 1, 1), alphas=(0.2,), temperatures=(1.0,),
    )  # fmt: skip
    demo, _ = train_demo_model(tmp_path / "model", tiny, corpus, SilentWatcher())
    rescorer = build_rescorer("tiny", 300, hidden_size=8, num_layers=1, max_positions=64)
    rescorer.save_pretrained(tmp_path / "model" / "rescorer")
    arguments = [
        "evaluate", "--quick", "--model", str(tmp_path / "model"), "--out", str(tmp_path),
        "--limit", "6", "--live", "1", "--speed", "2",
    ]  # fmt: skip
    steps = replace(quick.FINE_TUNING, steps=4)
    monkeypatch.setattr(quick, "FINE_TUNING", steps)
    assert main([*arguments, "--alphas", "0.2"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["tasks"]) == set(QUICK_TASKS)
    assert set(results["lms"]) == {"3-gram", "2-gram"}
    records = tmp_path / "record"
    for name, task in results["tasks"].items():
        assert all(check["holds"] for check in task["live"])
        assert {"prompt_lookup", "tree", "oracle", "neural", "mixture"} <= {
            line["name"] for line in task["strategies"]
        }
        assert task["performance"]["metric"] == "perplexity"
        assert {"bpd", "2gram_1best", "neural", "mixture"} <= set(task["repetition"])
        domains = {row.get("lm") for row in task["by_lm"]} - {*results["lms"], None}
        assert domains == {
            "in-domain", "in-domain Katz", "in-domain Katz + general unigrams"
        }  # fmt: skip
        neural = [row["scorer"] for row in task["by_lm"] if row["strategy"] == "neural"]
        assert neural == ["rescorer", "in-domain"]
        passages = library_passages(
            name, corpus.test, demo.tokenizer, count=6, length=16, room=12, seed=0
        )
        reported = split_texts(6, 8, 0)[1]
        outputs = [read_record(records / name).texts[number].output for number in reported]
        prompts = [passages[number][0].token_ids for number in reported]
        human = [passages[n][1][: len(out)] for n, out in zip(reported, outputs, strict=True)]
        assert task["human_loop_share"] == loop_share(prompts, human)
        assert task["loop_share"] == pytest.approx(loop_share(prompts, outputs))
        speed = {line["name"]: line for line in task["speed"]}
        assert list(speed) == [
            "greedy", "bpd", "neural", "p_best_ngram", "tree_0gram", "tree", "mixture",
        ]  # fmt: skip
        assert speed["greedy"]["relative_speed"] == 1.0
        assert all(line["lossless"] and line["texts"] == 2 for line in speed.values())
        ratio = speed["tree"]["tokens_per_second"] / speed["greedy"]["tokens_per_second"]
        assert speed["tree"]["relative_speed"] == pytest.approx(ratio)
    folders = {
        name: task["domain_scorers"]["in-domain"]["file"] for name, task in results["tasks"].items()
    }
    weights = {name: load_file(f"{path}/model.safetensors") for name, path in folders.items()}
    initial = dict(rescorer.state_dict())
    for name, tensors in weights.items():
        rows = quick._domain_rows(demo, library_domain(name, corpus.train))
        expected = load_causal_lm(tmp_path / "model" / "rescorer").to(torch.float32)
        train_rescorer(expected, np.concatenate(rows), replace(steps, sequence_length=64))
        for key, tensor in tensors.items():
            torch.testing.assert_close(tensor, expected.state_dict()[key])
        assert any(not torch.equal(tensor, initial[key]) for key, tensor in tensors.items())
    assert (records / "functions" / "manifest.json").is_file()
    printed = capsys.readouterr().out
    assert "decoded live" in printed
    assert "mixture (size at run time)" in printed
    assert "human text in loops" in printed


def test_tasks_of_the_library_begin_as_documented(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    texts = [PIECE.format(n=n) for n in range(3)]
    for name in LIBRARY_TASKS:
        passages = library_passages(name, texts, tokenizer, count=2, length=5, room=4, seed=0)
        assert len(passages) == 2
        assert all(1 <= len(prompt.token_ids) <= 5 for prompt, _ in passages)
        assert all(1 <= len(after) <= 4 for _, after in passages)
    assert all(text.startswith('    """') for text in library_domain("functions", texts))
    assert library_domain("docstrings", texts)[0].startswith("Doubles.")
    assert library_domain("returns", texts)[0].startswith(" value + value")
    assert library_domain("comments", texts)[0].startswith(" a comment")
    assert library_domain("classes", texts)[0].startswith('    """Keeps.')


def test_a_library_prompt_ends_where_its_continuation_begins(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    words = " ".join(f"t{number}" for number in range(40))
    texts = [f"{words}\n{words}\n{words}\n{words}\n{words}\n{words}\nt7 t8 t9 t1\n"]
    ((prompt, after),) = library_passages(
        "beginnings", texts, tokenizer, count=3, length=6, room=3, seed=0
    )
    assert (prompt.token_ids, after) == ([34, 35, 36, 37, 38, 39], [7, 8, 9])
