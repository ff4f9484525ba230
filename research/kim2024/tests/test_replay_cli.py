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
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.demo import library_text as corpora
from lattice_bpd_kim2024.demo import quick
from lattice_bpd_kim2024.demo import recipe as recipes
from lattice_bpd_kim2024.demo.library_tasks import (
    QUICK_TASKS,
    library_domain,
    library_passages,
)
from lattice_bpd_kim2024.demo.library_text import Corpus
from lattice_bpd_kim2024.demo.training import train_demo_model
from lattice_bpd_kim2024.lab.lab import HELD_OUT, split_texts
from lattice_bpd_kim2024.record.files import read_record
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
    for _ in range(2):  # the second time nothing is to do
        assert main(record_arguments(folder, out, "--texts-per-shard", "5")) == 0
        assert f"{SENTENCES} texts, {12 * SENTENCES} steps, 4 slots x 8" in capsys.readouterr().out
    table = tmp_path / "sweep.csv"
    arguments = [
        "replay", str(out), "--lm", f"two={folder / '2gram.lm'}", "--lm", str(folder / "3gram.lm"),
        "--strategies", "bpd,oracle,p_best_ngram", "--top-k", "2,4", "--alpha", "0.2,0.5",
        "--num-drafts", "3", "--csv", str(table),
    ]  # fmt: skip
    assert main(arguments) == 0
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


def test_replay_of_an_evaluation_of_own_files(folder, tmp_path):
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
    results = json.loads((out / "results.json").read_text())
    assert list(results["tasks"]) == ["jsonl", "cnndm"]
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
        neural = [point for point in task["by_lm"] if point["strategy"] == "neural"]
        assert [point["scorer"] for point in neural] == ["small", "same"]
        assert neural[0]["block_efficiency"] == neural[1]["block_efficiency"]
        assert neural[0]["block_efficiency"] == lines["neural"]["block_efficiency"]
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
    assert {"table_1_tasks.csv", "table_5_wins.csv", "figure_2_relative.csv"} <= tables
    assert len(read_csv(out / "acceptance_rules.csv")) == 6
    assert {path.stem for path in out.glob("*.tex")} == {path.stem for path in out.glob("*.csv")}
    main_rows = read_csv(out / "table_4_strategies.csv")
    assert len(main_rows) == 2 * len(results["tasks"]["jsonl"]["strategies"])


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
    for name, task in results["tasks"].items():
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


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("record", "--task jsnl", "unknown task 'jsnl'; did you mean 'jsonl'?"),
        ("record", "--field text", "line 1: no field 'text'"),
        ("replay", "--strategies treee", "unknown strategy 'treee'; did you mean 'tree'?"),
        ("replay", "--strategies tree", "strategy tree needs an n-gram LM; give --lm FILE"),
        ("replay", "--strategies neural", "needs a rescorer; give --rescorer DIR"),
        ("replay", "--rescorer other", "other: the LM has a vocabulary of 5, the target one of 48"),
        ("replay", "--csv no/x.csv", "cannot write into"),
        ("replay", "--top-k 9", "top_k is 9; expected 1..8, the candidates that were recorded"),
        ("evaluate", "--domain-lm xsum=2gram.lm", "xsum is not one of the tasks jsonl, cnndm"),
        ("evaluate", "--domain-rescorer jsonl=rescorer", "--domain-rescorer without --rescorer"),
        ("quick", "", "expected --quick, or --model DIR with --task NAME and --data FILE"),
        ("quick", "--quick --domain-lm a=b", "remove --task, --data, --lm, --domain-lm and"),
        ("quick", "--model m --task squad", "1 --task and 0 --data; expected a file for each"),
        ("quick", "--quick --live -1", "--live is -1; expected 0 or more"),
        ("quick", "--quick --model nowhere", "nowhere has no demo.json; expected the folder of"),
    ],
)
def test_commands_say_what_is_wrong(
    folder, tmp_path, monkeypatch, capsys, command, arguments, message
):
    monkeypatch.chdir(folder)
    out = tmp_path / "run"
    if command == "replay":
        assert main(record_arguments(folder, out, "--limit", "3")) == 0
    words = {
        "record": record_arguments(folder, out), "replay": ["replay", str(out)],
        "evaluate": evaluate_arguments(folder, out), "quick": ["evaluate", "--out", str(out)],
    }[command]  # fmt: skip
    assert main([*words, *arguments.split()]) == 2
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


def test_replay_quick_evaluation_end_to_end(tmp_path, monkeypatch):
    texts = [PIECE.format(n=n) * 2 for n in range(60)]
    corpus = Corpus(texts[:40], texts[40:45], texts[45:], "made-up")
    monkeypatch.setattr(corpora, "read_library_sources", lambda **_: corpus)
    tiny = replace(
        recipes.QUICK, name="model-tiny", vocab_size=300, num_heads=4, steps=30,
        sequence_length=64, prompt_length=16, max_new_tokens=12, batch_size=4, order=3,
        min_counts=(1, 1, 1), alphas=(0.2,), temperatures=(1.0,),
    )  # fmt: skip
    demo, _ = train_demo_model(tmp_path / "model", tiny, corpus, Watcher())
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
        domains = {row.get("lm") for row in task["by_lm"]} - {*results["lms"], None}
        assert domains == {
            "in-domain", "in-domain Katz", "in-domain Katz + general unigrams"
        }  # fmt: skip
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


def test_a_library_prompt_ends_where_its_continuation_begins(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "model" / "tokenizer.json"))
    words = " ".join(f"t{number}" for number in range(40))
    texts = [f"{words}\n{words}\n{words}\n{words}\n{words}\n{words}\nt7 t8 t9 t1\n"]
    ((prompt, after),) = library_passages(
        "beginnings", texts, tokenizer, count=3, length=6, room=3, seed=0
    )
    assert (prompt.token_ids, after) == ([34, 35, 36, 37, 38, 39], [7, 8, 9])
