"""Vocabularies: the word of each token id, from tokenizers and files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from lattice_bpd import _core
from lattice_bpd.extensions import require
from lattice_bpd.text_input import parse_json, read_text, refuse_foreign

StrPath = str | os.PathLike[str]


class HasVocab(Protocol):
    """A tokenizer of transformers or of the tokenizers library."""

    def get_vocab(self) -> dict[str, int]:
        """The id of each word."""
        ...


Vocab = Sequence[str] | StrPath | HasVocab


def read_words(vocab: Vocab) -> list[str]:
    """Reads a vocabulary.

    Args:
        vocab: One of:

            - the words in the order of their token ids;
            - a tokenizer of transformers or of the tokenizers library;
            - a ``tokenizer.json``, or a folder with one;
            - JSON ``{word: id}``, such as GPT-2's vocab.json or encoder.json;
            - a SentencePiece ``.model`` (extra ``train``);
            - a text file in UTF-8 with one word per line, line 0 for token id 0.

    Returns:
        The word of each token id; V of them.

    Raises:
        ImportError: A SentencePiece model without the package sentencepiece.
        OSError: The file cannot be opened, or a folder without a tokenizer.json.
        FormatError: A file whose content does not fit its name.
        TypeError: Not a vocabulary, or words that are not strings.
        ValueError: No words, or token ids that are not 0..V-1, each once.
    """
    if isinstance(vocab, (str, os.PathLike)):
        return _read_file(Path(vocab))
    if hasattr(vocab, "get_vocab"):
        return _by_id(vocab.get_vocab(), f"the tokenizer ({type(vocab).__name__})")
    try:
        words = list(vocab)
    except TypeError:
        raise TypeError(
            f"vocab is a {type(vocab).__name__}; expected words, a tokenizer, or the path of one"
        ) from None
    for token_id, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"vocab: the word of token id {token_id} is {word!r}; expected a str")
    if not words:
        raise ValueError("vocab has no words; leave it out if words are decimal token ids")
    return words


def read_ids(path: StrPath) -> dict[str, int]:
    """The id of each word of a ``tokenizer.json``, in which ids may be missing.

    Raises:
        OSError: The file cannot be opened.
        FormatError: It is no JSON object.
    """
    file = Path(path)
    table = _json_table(file, read_text(file))
    ids = _word_ids(table or {})
    return {word: token_id for word, token_id in ids.items() if type(token_id) is int}


def may_share_ids(size: int, other: int) -> bool:
    """Whether two numbers of token ids may be those of one tokenizer, padded differently.

    Models of one tokenizer may have embeddings of different sizes, such as 151,936 and 152,064
    rows: the ids that both have are the same tokens. More than twice as many is no padding.
    """
    return max(size, other) <= 2 * min(size, other)


def check_same_ids(where: str, name: str, size: int, wanted: int) -> None:
    """Refuses vocabularies that cannot be those of one tokenizer; see `may_share_ids`.

    Args:
        where: Name of the caller, for the message.
        name: What has the vocabulary, such as "draft model".
        size: Its number of token ids.
        wanted: The target's.

    Raises:
        ValueError: They cannot.
    """
    if not may_share_ids(size, wanted):
        raise ValueError(
            f"{where}: the {name} has a vocabulary of {size}, the target one of {wanted}; expected "
            "the same tokenizer, and about as many token ids; use one with the target's tokenizer"
        )


def encode_words(words: Sequence[str]) -> list[bytes]:
    """The UTF-8 bytes of each word; those of an unpaired surrogate match no text."""
    return [word.encode("utf-8", "surrogatepass") for word in words]


def _read_file(path: Path) -> list[str]:
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise FileNotFoundError(
                f"{path}: no tokenizer.json in the folder; expected one, or load the tokenizer "
                "with transformers and pass it as vocab"
            )
        path = path / "tokenizer.json"
    if path.suffix == ".model":
        return _sentencepiece_words(path)
    text = read_text(path)
    table = _json_table(path, text)
    if table is not None:
        return _by_id(_word_ids(table), str(path))
    lines = text.replace("\r\n", "\n").split("\n")  # a word may hold U+2028
    words = lines[:-1] if lines[-1] == "" else lines
    if not words:
        raise _core.FormatError(f"{path}: the file is empty; expected one word a line")
    return words


def _json_table(path: Path, text: str) -> dict[str, Any] | None:
    """The JSON object in a file; None if the file is a list of words."""
    is_json = path.suffix == ".json"
    if not is_json and not text.startswith("{"):
        return None
    try:
        table = parse_json(text, str(path), "an object {word: id} or a tokenizer.json")
    except _core.FormatError:
        if not is_json:
            return None
        raise
    if isinstance(table, dict):
        return table
    if not is_json:
        return None
    raise _core.FormatError(
        f"{path}: a JSON {type(table).__name__}; expected an object {{word: id}} or a "
        "tokenizer.json"
    )


def _word_ids(table: dict[str, Any]) -> dict[str, Any]:
    """{word: id} of a tokenizer.json, or of JSON that is already such a mapping."""
    if not isinstance(table.get("model"), dict):
        return table
    vocab = table["model"].get("vocab", {})
    if isinstance(vocab, list):  # Unigram: pairs of piece and score
        vocab = {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
    added = {entry["content"]: entry["id"] for entry in table.get("added_tokens") or ()}
    return {**vocab, **added}


def _by_id(ids: dict[str, Any], name: str) -> list[str]:
    """The words in the order of their ids."""
    by_id = {token_id: word for word, token_id in ids.items() if type(token_id) is int}
    missing = next((i for i in range(len(ids)) if i not in by_id), None)
    if missing is not None or not ids:
        raise ValueError(
            f"{name}: {len(ids)} words"
            + ("" if missing is None else f", but none has token id {missing}")
            + "; expected words with the ids 0, 1, .. each once"
        )
    return [by_id[token_id] for token_id in range(len(ids))]


def _sentencepiece_words(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a SentencePiece model")
    refuse_foreign(path, expected="a SentencePiece model")
    library = require("sentencepiece", "train")
    try:
        processor = library.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise _core.FormatError(f"{path}: not a SentencePiece model ({error})") from None
    return [processor.id_to_piece(token_id) for token_id in range(processor.vocab_size())]
