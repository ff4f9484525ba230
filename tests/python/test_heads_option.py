"""--heads of generate, record, evaluate and tune: draft heads beside the folder of the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("rich")
pytest.importorskip("tokenizers")

import tokenizers
import torch

from blockwise_models import VOCAB, looping_text, trained_model
from lattice_bpd.cli import main
from lattice_bpd.models import BlockwiseHeads, load_heads
from lattice_bpd_drafters.medusa import save_medusa
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_kim2024.record.files import load_manifest


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """`full`: model and heads; `plain`: model only; `heads`: heads only; `other`: random heads.

    `medusa`: heads only, as others publish them.
    """
    path = tmp_path_factory.mktemp("beside")
    model = trained_model()
    model.save_pretrained(path / "full")
    model.base.save_pretrained(path / "plain")
    model.heads.save_pretrained(path / "heads")
    torch.manual_seed(3)
    other = BlockwiseHeads(model.heads.hidden_size, 3, vocab_size=VOCAB)
    torch.nn.init.normal_(other.outer_weight)
    other.save_pretrained(path / "other")
    save_medusa(MedusaHeads.from_target(model.base, 3), path / "medusa")
    words = {f"t{number}": number for number in range(VOCAB)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    for name in ("full", "plain"):
        tokenizer.save(str(path / name / "tokenizer.json"))
    ids = looping_text(900, seed=9).tolist()
    lines = [" ".join(f"t{i}" for i in ids[40 * n : 40 * n + 8]) for n in range(9)]
    (path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": line}) for line in lines))
    return path


def record(folder: Path, out: Path, model: str, *options: object) -> Path:
    arguments = [
        "record", "--model", folder / model, "--task", "jsonl", "--data", folder / "rows.jsonl",
        "--out", out, "--top-k", "6", "--max-new-tokens", "10", *options,
    ]  # fmt: skip
    assert main([str(argument) for argument in arguments]) == 0
    return out


def test_a_record_with_heads_from_beside_is_that_of_one_folder(folder, tmp_path):
    full = record(folder, tmp_path / "full", "full")
    beside = record(folder, tmp_path / "beside", "plain", "--heads", folder / "heads")
    replaced = record(folder, tmp_path / "replaced", "full", "--heads", folder / "other")
    shard = "shard-00000.parquet"
    assert (beside / shard).read_bytes() == (full / shard).read_bytes()
    slots = [load_manifest(run).num_slots for run in (full, beside, replaced)]
    assert slots == [4, 4, 2]  # --heads before the model's own


def test_tune_measures_and_copies_heads_from_beside(folder, tmp_path, monkeypatch):
    run = record(folder, tmp_path / "run", "plain", "--heads", folder / "heads")
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    timed = []

    def measure(model, **_):
        timed.append(model.num_slots)
        return {0: 1.0, 200: 1.0}

    monkeypatch.setattr("lattice_bpd_kim2024.record.heads.time_calls", measure)
    tune = ["tune", str(run), "--measure", str(folder / "plain"), "--chain-only", "--heads"]
    assert main([*tune, str(folder / "heads"), "-o", str(drafter)]) == 0
    assert timed == [4]
    assert torch.equal(load_heads(drafter).outer_weight, trained_model().heads.outer_weight)
    assert json.loads((drafter / "drafter.json").read_text())["num_slots"] == 4


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("heads", [], "heads holds draft heads only; give the model's folder as the model, and "
         "this one as --heads"),
        ("medusa", [], "medusa holds draft heads only; give the model's folder"),
        ("plain", ["--heads", "{0}/plain"], "plain: no draft heads in this folder ("),
        ("plain", ["--heads", "{0}/nowhere"], "nowhere: no such folder; expected one with draft "
         "heads"),
        ("nowhere", [], "nowhere: no such folder; expected the folder of a causal LM"),
    ],
)  # fmt: skip
def test_folders_without_heads_or_model_say_so(folder, capsys, model, options, message):
    options = [option.format(folder) for option in options]
    assert main(["generate", str(folder / model), "--prompt", "t1", *options]) == 2
    assert message in capsys.readouterr().err


def test_load_heads_says_what_is_wrong_with_a_path(folder):
    with pytest.raises(FileNotFoundError, match=r"expected one with draft heads$"):
        load_heads(folder / "nowhere")
    with pytest.raises(FileNotFoundError, match="hf download someone/medusa --local-dir DIR"):
        load_heads("someone/medusa")
    with pytest.raises(NotADirectoryError, match="is a file; expected the folder of the heads"):
        load_heads(folder / "rows.jsonl")


@pytest.mark.parametrize(
    ("part", "distribution"),
    [
        ("block_drafter/", "lattice-bpd-drafters"),
        ("spec_drafter.json", "lattice-bpd-translation"),
        ("medusa_num_heads", "lattice-bpd-drafters"),
    ],
)
def test_heads_of_a_distribution_that_is_missing_name_it(
    folder, tmp_path, monkeypatch, capsys, part, distribution
):
    shutil.copytree(folder / "full", tmp_path, dirs_exist_ok=True)  # with heads of the core
    if part.endswith("/"):
        (tmp_path / part).mkdir()
    elif "." not in part:  # of config.json
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, part: 3}))
    else:
        (tmp_path / part).write_text("{}")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    with pytest.raises(ImportError, match=f"a format of heads of {distribution}; pip install"):
        load_heads(tmp_path)
    assert main(["generate", str(tmp_path), "--prompt", "t1"]) == 2
    assert f"pip install {distribution}" in capsys.readouterr().err
