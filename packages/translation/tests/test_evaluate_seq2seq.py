"""`lattice-bpd record | replay | evaluate | report | tune` with an encoder-decoder's folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("rich")
pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

import tokenizers
import torch

from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd.decode import generate, load_drafter
from lattice_bpd_kim2024.cli.evaluate_options import is_encoder_decoder, load_model
from lattice_bpd_kim2024.record.files import read_record
from lattice_bpd_translation.drafter import SpecDrafter, SpecDrafterConfig
from seq2seq_models import STOP, VOCAB, model_of, plain_greedy, sources

TEXTS, LIMIT, SLOTS = 9, 12, 3


def make_drafter(target, seed: int = 0) -> SpecDrafter:
    """Untrained but for slot 0, which drafts as the target."""
    torch.manual_seed(seed)
    config = SpecDrafterConfig(
        VOCAB, num_slots=SLOTS, hidden_size=32, inner_size=64, decoder_layers=2,
        source_size=32, state_size=32,
    )  # fmt: skip
    drafter = SpecDrafter(config)
    drafter.start_from(target)
    return drafter.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A Marian with a SpecDrafter and a tokenizer, an LM of its outputs, and sources."""
    path = tmp_path_factory.mktemp("translator")
    target = model_of("marian")
    target.save_pretrained(path / "model")
    make_drafter(target).save_pretrained(path / "model")
    words = {f"t{number}": number for number in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "model" / "tokenizer.json"))
    rows = sources(TEXTS, seed=4)
    outputs = [plain_greedy(target, row, LIMIT) for row in rows]
    NGramLM.train(outputs, 2, vocab_size=VOCAB, smoothing="witten_bell").save(path / "two.lm")
    lines = [json.dumps({"text": " ".join(f"t{i}" for i in row)}) for row in rows]
    (path / "sources.jsonl").write_text("\n".join(lines))
    return path


def arguments(folder: Path, command: str, out: Path, *more: str) -> list[str]:
    return [
        command, "--model", str(folder / "model"), "--task", "jsonl", "--data",
        str(folder / "sources.jsonl"), "--out", str(out), "--top-k", "6", "--max-new-tokens",
        str(LIMIT), *more,
    ]  # fmt: skip


def test_an_encoder_decoder_is_recorded_replayed_and_tuned_by_commands(folder, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(arguments(folder, "record", run)) == 0
    record = read_record(run)
    assert (record.manifest.num_slots, record.manifest.stop_token_ids) == (SLOTS, [STOP])
    for text, source in zip(record.texts, sources(TEXTS, seed=4), strict=True):
        greedy = plain_greedy(model_of("marian"), source, LIMIT)
        end = greedy.index(STOP) + 1 if STOP in greedy else LIMIT
        assert text.output.tolist() == greedy[:end]
        assert text.model_input == source
    lm = ["--lm", f"two={folder / 'two.lm'}"]
    table = tmp_path / "table.csv"
    strategies = ["--strategies", "bpd,p_best_ngram,tree", "--csv", str(table)]
    assert main(["replay", str(run), *lm, *strategies]) == 0
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["strategy"] for row in rows] == ["bpd", "p_best_ngram", "tree"]
    assert all(float(row["block_efficiency"]) > 1.0 for row in rows)
    cost = tmp_path / "cost.json"
    cost.write_text(json.dumps({"0": 1.0, "72": 1.01}))
    assert main(["tune", str(run), *lm, "--cost", str(cost), "-o", str(run / "drafter.json")]) == 0
    drafter = load_drafter(run / "drafter.json")
    model = load_model(folder / "model")
    assert is_encoder_decoder(model)
    calls = []
    for text in record.texts[:3]:
        result = generate(
            model.target, text.model_input, drafter=drafter, heads=model.heads,
            max_new_tokens=LIMIT,
        )  # fmt: skip
        assert result.token_ids == text.output.tolist()
        calls.append(result.stats.target_calls)
    assert sum(calls) < 3 * LIMIT
    model.target.base.save_pretrained(tmp_path / "other")
    make_drafter(model.target.base, seed=1).save_pretrained(tmp_path / "other")
    other = arguments(folder, "record", run, "--tokenizer", str(folder / "model/tokenizer.json"))
    other[2] = str(tmp_path / "other")
    assert main(other) == 2
    assert "has the record of something else (model_fingerprint" in capsys.readouterr().err


def test_an_encoder_decoder_is_evaluated_by_the_command(folder, tmp_path, capsys):
    run = tmp_path / "run"
    more = ["--lm", str(folder / "two.lm"), "--live", "3", "--speed", "1", "--accept", "top_k:2"]
    assert main(arguments(folder, "evaluate", run, *more)) == 0
    task = json.loads((run / "results.json").read_text())["tasks"]["jsonl"]
    assert {"bpd", "tree", "chain", "prompt_lookup", "oracle"} <= {
        line["name"] for line in task["strategies"]
    }
    for check in task["live"]:
        assert check["lossless"] == check["same_calls"] == check["texts"] == 3
    assert all(line["lossless"] for line in task["speed"])
    exact, lossy = task["acceptance"]
    assert exact["relaxed_tokens"] == 0
    assert lossy["block_efficiency"] >= exact["block_efficiency"]
    assert lossy["nats_per_token"] > exact["nats_per_token"] > 0
    assert "decoded live" in capsys.readouterr().out
    assert main(["report", str(run), "--steps", "3"]) == 0
    assert (run / "report.html").is_file()


def test_an_encoder_decoder_takes_a_drafter_from_beside(folder, tmp_path):
    model_of("marian").save_pretrained(tmp_path / "plain")
    make_drafter(model_of("marian"), seed=1).save_pretrained(tmp_path / "drafter")
    beside = load_model(tmp_path / "plain", tmp_path / "drafter")
    expected = make_drafter(model_of("marian"), seed=1).state_dict()
    loaded = beside.heads.drafter.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert is_encoder_decoder(beside)
