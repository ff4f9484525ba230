"""Tokenizers of several libraries with one interface: texts in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.extras import require
from lattice_bpd.text_input import read_bytes, refuse_foreign
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.vocabulary import read_words


class Encoder(Protocol):
    """The tokenizer interface of a corpus; it adds no special tokens."""

    vocab_size: int
    name: str

    def encode(self, texts: Sequence[str]) -> list[Int32Array]:
        """The (T_i,) int32 token ids of each text.

        Raises:
            UnknownWordError: a word is not in the vocabulary.
        """


class UnknownWordError(ValueError):
    """A word outside a vocabulary without an unknown token.

    Attributes:
        text_index: index of its text.
        line: number of line ends before it.
        word: the word.
    """

    def __init__(self, text_index: int, line: int, word: str) -> None:
        super().__init__(f"unknown word {word!r}")
        self.text_index, self.line, self.word = text_index, line, word


def load_encoder(tokenizer: str, *, merges: str | None = None, threads: int = 0) -> Encoder:
    """Loads a tokenizer from a file whose name determines its kind.

    Args:
        tokenizer: one of: a tokenizer.json of the tokenizers library; with `merges`, a GPT-2 style
            vocab.json (encoder.json); a SentencePiece .model; a vocabulary .txt with one word a
            line, line 0 for token id 0, for text that is split at white space. Or a folder with a
            tokenizer.json, or with vocab.json and merges.txt.
        merges: the merges.txt (vocab.bpe) of a vocab.json; default: the one in the same folder.
        threads: for SentencePiece; 0 for every core. The tokenizers library takes every core, or
            RAYON_NUM_THREADS.

    Raises:
        ImportError: tokenizers or sentencepiece is not installed (extra ``train``).
        OSError: a file is missing.
        FormatError: a file is not a tokenizer.
        ValueError: the name does not determine the kind.
    """
    path = Path(tokenizer)
    if path.is_dir():
        path = _find_in_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a tokenizer")
    if path.suffix == ".model":
        return SentencePieceEncoder(path, threads)
    if path.suffix == ".txt":
        return WordEncoder(path)
    if path.suffix != ".json":
        raise ValueError(
            f"{path}: expected a tokenizer.json, a vocab.json with merges, a SentencePiece .model "
            "or a vocabulary .txt"
        )
    return BpeEncoder(path, Path(merges) if merges is not None else _find_merges(path))


def _find_in_folder(folder: Path) -> Path:
    for name in ("tokenizer.json", "vocab.json", "encoder.json"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder}: no tokenizer.json, vocab.json or encoder.json in it")


def _find_merges(path: Path) -> Path | None:
    if path.name not in ("vocab.json", "encoder.json"):
        return None
    for name in ("merges.txt", "vocab.bpe"):
        if (path.parent / name).is_file():
            return path.parent / name
    raise FileNotFoundError(
        f"{path}: no merges.txt or vocab.bpe next to it; give the file with the merges (--merges)"
    )


class BpeEncoder:
    """A tokenizer of the `tokenizers` library, multithreaded.

    Args:
        path: a tokenizer.json; or a vocab.json, if merges are given.
        merges: GPT-2's byte-level BPE: the file with the merges.
    """

    def __init__(self, path: Path, merges: Path | None) -> None:
        library = require("tokenizers", "train")
        self.name = str(path)
        data = read_bytes(path)
        if merges is not None:
            refuse_foreign(merges)
        try:
            if merges is None:
                self._tokenizer = library.Tokenizer.from_buffer(data)
                self._tokenizer.no_padding()
                self._tokenizer.no_truncation()
            else:
                self._tokenizer = library.ByteLevelBPETokenizer(str(path), str(merges))
        except Exception as error:  # tokenizers raises bare Exception
            raise FormatError(
                f"{path}: not a tokenizer ({error}); expected a tokenizer.json of the tokenizers "
                "library, or a vocab.json and its merges"
            ) from error
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self._encode_batch: Callable[..., list[Any]] = getattr(
            self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch
        )

    def encode(self, texts: Sequence[str]) -> list[Int32Array]:
        """See Encoder."""
        encodings = self._encode_batch(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]


class SentencePieceEncoder:
    """A SentencePiece .model.

    Args:
        path: the file.
        threads: 0 for every core.
    """

    def __init__(self, path: Path, threads: int) -> None:
        library = require("sentencepiece", "train")
        self.name = str(path)
        self._threads = threads if threads > 0 else -1
        refuse_foreign(path, expected="a SentencePiece model")
        try:
            self._processor = library.SentencePieceProcessor(model_file=str(path))
        except RuntimeError as error:
            raise FormatError(f"{path}: not a SentencePiece model ({error})") from error
        self.vocab_size: int = self._processor.vocab_size()

    def encode(self, texts: Sequence[str]) -> list[Int32Array]:
        """See Encoder."""
        encoded = self._processor.encode(list(texts), num_threads=self._threads)
        return [np.array(ids, np.int32) for ids in encoded]


class WordEncoder:
    """Words separated by white space; unknown words are the vocabulary's ``<unk>``.

    Args:
        path: a UTF-8 file with one word a line.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        words = read_words(path)
        self._ids: dict[str, int] = {}
        for number, word in enumerate(words):
            if word in self._ids or not word or word.split() != [word]:
                problem = "is a duplicate" if word in self._ids else "is not a word"
                raise FormatError(
                    f"{path}, line {number + 1}: {word!r} {problem}; expected distinct words"
                )
            self._ids[word] = number
        self.vocab_size = len(words)
        self._unknown = self._ids.get("<unk>")

    def encode(self, texts: Sequence[str]) -> list[Int32Array]:
        """See Encoder."""
        return [self._encode_one(i, text) for i, text in enumerate(texts)]

    def _encode_one(self, index: int, text: str) -> Int32Array:
        words = text.split()
        ids = [self._ids.get(word, self._unknown) for word in words]
        if self._unknown is None and None in ids:
            word = words[ids.index(None)]
            lines = text.split("\n")
            line = next(i for i, part in enumerate(lines) if word in part.split())
            raise UnknownWordError(index, line, word)
        return np.array(ids, np.int32)
