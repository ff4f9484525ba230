"""`ngram train --model`: LMs of models with more token ids than their tokenizer; and messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

import tokenizers

from lattice_bpd import NGramLM
from lattice_bpd.cli import main

WORDS, PADDED = 10, 16


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """`model`: a tokenizer of 10 words and a config of 16 token ids; `other.json`, `corpus.txt`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"vocab_size": PADDED}))
    for name, count in (("model/tokenizer.json", WORDS), ("other.json", WORDS - 1)):
        words = {f"t{number}": number for number in range(count)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="t0"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(tmp_path / name))
    (tmp_path / "corpus.txt").write_text("t1 t2 t3 t9\n\nt1 t2 t3 t4\n" * 20)
    return tmp_path


def train(*options: str, output: str = "out.lm") -> int:
    fixed = ["--order", "2", "--smoothing", "witten_bell"]
    return main(["ngram", "train", *options, "-o", output, *fixed])


@pytest.mark.parametrize(
    "config",
    [
        {"vocab_size": PADDED},
        {"text_config": {"vocab_size": PADDED}},
        {"text_config": {"vocab_size": PADDED}, "vocab_size": 99},
        {"text_config": {}, "vocab_size": PADDED},
    ],
)
def test_an_lm_has_the_vocabulary_of_the_model(folder, config):
    (folder / "model/config.json").write_text(json.dumps(config))
    assert train("corpus.txt", "--model", "model") == 0
    lm = NGramLM.load("out.lm")
    assert lm.vocab_size == PADDED
    same = ["--tokenizer", "model/tokenizer.json", "--vocab-size", str(PADDED)]
    assert train("corpus.txt", *same, output="same.lm") == 0
    assert Path("out.lm").read_bytes() == Path("same.lm").read_bytes()
    assert train("corpus.txt", "--tokenizer", "model/tokenizer.json", output="small.lm") == 0
    assert NGramLM.load("small.lm").vocab_size == WORDS


def test_token_ids_need_no_tokenizer_in_the_folder(folder):
    np.save("ids.npy", np.arange(WORDS))
    (folder / "model/tokenizer.json").unlink()
    assert train("ids.npy", "--model", "model") == 0
    assert NGramLM.load("out.lm").vocab_size == PADDED


@pytest.mark.parametrize(
    ("options", "config", "message"),
    [
        ("--model model --vocab-size 10", None, "--vocab-size with --model, which has both; leave "
         "out --vocab-size, or"),
        ("--model model --tokenizer other.json", None, "--tokenizer with --model"),
        ("--model nowhere", None, "--model nowhere: no such folder; expected the folder"),
        ("--model .", None, "config.json"),
        ("", None, "corpus.txt: text needs a tokenizer; give that of the model, --tokenizer "
         "MODEL/tokenizer.json"),
        ("--model model", "{", "not JSON"),
        ("--model model", "[]", "model/config.json: a JSON list; expected an object"),
        ("--model model", '{"vocab_size": true}', "no vocab_size; give --tokenizer"),
        ("--model model", '{"text_config": {"vocab_size": 0}}', "has no vocab_size"),
        ("--model model", '{"vocab_size": 9}', "the tokenizer has 10 token ids, vocab_size is 9"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(folder, capsys, options, config, message):
    if config is not None:
        (folder / "model/config.json").write_text(config)
    assert train("corpus.txt", *options.split()) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.lm").exists()
