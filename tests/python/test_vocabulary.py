"""Vocabularies of every kind by one function, and what takes them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.draft import KenlmScorer, NGramScorer
from lattice_bpd.lm import read_words, write_lm

WORDS = ["<unk>", "      {", "the", "é", "sat"]  # a word of white space, as code tokenizers have


@pytest.fixture
def tokenizer() -> Any:
    """Words of white space cannot be in ARPA text, so the second is left to read_words' test."""
    library = pytest.importorskip("tokenizers")
    ids = {word: token_id for token_id, word in enumerate(WORDS)}
    tokenizer = library.Tokenizer(library.models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


ALL = [*WORDS, "<|end|>"]


@pytest.fixture
def kinds(tokenizer: Any, tmp_path: Path) -> dict[str, Any]:
    """The same vocabulary in every format that needs no other package."""
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(tmp_path / "tokenizer.json", folder)
    shutil.copy(tmp_path / "tokenizer.json", tmp_path / "renamed")
    ids = {word: token_id for token_id, word in enumerate(ALL)}
    (tmp_path / "vocab.json").write_text(json.dumps(dict(reversed(ids.items()))))
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in ALL), encoding="utf-8")
    lines = "\r\n".join(ALL).encode("utf-8-sig")
    (tmp_path / "windows.txt").write_bytes(lines)
    names = ["tokenizer.json", "model", "renamed", "vocab.json", "words.txt", "windows.txt"]
    files: dict[str, Any] = {name: tmp_path / name for name in names}
    return {**files, "tokenizers": tokenizer, "list": ALL, "tuple": tuple(ALL)}


KINDS = [
    "tokenizer.json", "model", "renamed", "vocab.json", "words.txt", "windows.txt", "tokenizers",
    "list", "tuple",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_words(kind: str, kinds: dict[str, Any]) -> None:
    assert read_words(kinds[kind]) == ALL


BAD: dict[str, tuple[str, bytes, type[Exception], str]] = {
    "ids with a gap": ("v.json", b'{"a": 0, "b": 2}', ValueError, "none has token id 1; expected"),
    "an id twice": ("v.json", b'{"a": 0, "b": 0}', ValueError, "none has token id 1"),
    "ids that are none": ("v.json", b'{"a": "x"}', ValueError, "none has token id 0"),
    "no words": ("v.json", b"{}", ValueError, "0 words; expected words with the ids"),
    "no JSON": ("v.json", b"the\ncat\n", FormatError, r"v\.json: not JSON"),
    "a JSON list": ("v.json", b"[1]", FormatError, "a JSON list; expected an object"),
    "Latin-1": ("words.txt", b"caf\xe9\n", FormatError, r"byte 3 \(0xe9\) is not UTF-8"),
    "an empty file": ("words.txt", b"", FormatError, "the file is empty"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_vocabulary_is_refused(kind: str, tmp_path: Path) -> None:
    name, data, error, message = BAD[kind]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(error, match=message) as raised:
        read_words(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert str(tmp_path / name) in str(raised.value)


def test_other_things_that_are_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json in the folder"):
        read_words(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_words(tmp_path / "missing.json")
    with pytest.raises(TypeError, match="vocab is a int; expected words, a tokenizer"):
        read_words(7)  # type: ignore[arg-type]


@pytest.fixture
def trained(rng: np.random.Generator) -> tuple[NGramLM, list[str]]:
    """An LM over words without white space."""
    words = ["the", "cat", "é", "sat", "on"]
    texts = [rng.integers(0, 5, 12) for _ in range(40)]
    return NGramLM.train(texts, 3, vocab_size=5, smoothing="witten_bell"), words


def save_tokenizer(words: list[str], path: Path) -> None:
    ids = {word: token_id for token_id, word in enumerate(words)}
    path.write_text(json.dumps({"model": {"type": "WordLevel", "vocab": ids}}), encoding="utf-8")


def test_kenlm_scorer_takes_a_tokenizer_file(trained: Any, tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    lm, words = trained
    save_tokenizer(words, tmp_path / "tokenizer.json")
    write_lm(lm, tmp_path / "a.arpa", vocab=words)
    scorer = KenlmScorer(tmp_path / "a.arpa", tmp_path / "tokenizer.json")
    assert scorer.vocab_size == 5
    candidates = np.tile(np.arange(5, dtype=np.int32), (2, 1))
    contexts = [[], [1, 2]]
    expected = NGramScorer(lm).score(NGramScorer(lm).start(contexts), candidates)
    np.testing.assert_allclose(
        scorer.score(scorer.start(contexts), candidates), expected, atol=1e-4
    )
    larger = KenlmScorer(tmp_path / "a.arpa", words, vocab_size=8)  # an embedding with spare rows
    assert larger.vocab_size == 8
    spare = larger.score(larger.start([[]]), np.array([[5, 7]], np.int32))
    assert spare[0, 0] == spare[0, 1]
    with pytest.raises(ValueError, match=r"vocab has 5 words, vocab_size is 4; expected as many"):
        KenlmScorer(tmp_path / "a.arpa", words, vocab_size=4)
    with pytest.raises(ValueError, match="vocab_size is -3"):
        KenlmScorer(tmp_path / "a.arpa", vocab_size=-3)
    with pytest.raises(ValueError, match=r"has none of the vocab's 2 words \(such as 'y'\)"):
        KenlmScorer(tmp_path / "a.arpa", ["x", "y"])
