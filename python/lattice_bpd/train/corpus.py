"""A corpus of files, read and tokenized batch by batch."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import require
from lattice_bpd.pretrained import Pretrained, find_pretrained
from lattice_bpd.text_input import STANDARD_INPUT, Meter, read_bytes, refuse_foreign
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd.train.id_files import is_id_file, read_ids
from lattice_bpd.train.text_files import Boundaries, Piece, read_pieces
from lattice_bpd.vocabulary import read_words
from lattice_bpd.watcher import Watcher

StrPath = str | os.PathLike[str]
_WORD = re.compile(r"[^ \t-\r]+")
_CHARACTERS_AT_ONCE = 1 << 20
_STEP = 1 << 20  # bytes of a step of progress
_TEXT_SUFFIXES = (".txt", ".text", ".md", ".jsonl", ".ndjson")
_SUFFIXES = (
    *(suffix + more for suffix in _TEXT_SUFFIXES for more in ("", ".gz", ".zst")),
    *(".npy", ".bin"),
)


class Encoder:
    """A tokenizer of text; it adds no special tokens.

    Args:
        name: for messages.
        vocab_size: number of token ids.
        tokenize: gives the token ids of each of several texts.
    """

    def __init__(
        self, name: str, vocab_size: int, tokenize: Callable[[list[str]], Iterable[Any]]
    ) -> None:
        self.name, self.vocab_size, self._tokenize = name, vocab_size, tokenize

    def encode(self, texts: Sequence[str]) -> list[Int32Array]:
        """The (T_i,) int32 token ids of each text.

        Raises:
            ValueError: a word is not in the vocabulary.
        """
        return [np.array(ids, np.int32) for ids in self._tokenize(list(texts))]


def load_encoder(tokenizer: str | Pretrained, *, threads: int = 0) -> Encoder:
    """Loads a tokenizer: a model's, or from a file whose name determines its kind.

    Args:
        tokenizer: one of: a tokenizer.json of the tokenizers library; a SentencePiece .model; a
            vocabulary .txt with one word a line, line 0 for token id 0, for text that is split at
            white space. Or a folder with a tokenizer.json, or with another tokenizer of
            transformers.
        threads: for SentencePiece; 0 for every core. The tokenizers library takes every core, or
            RAYON_NUM_THREADS.

    Raises:
        ImportError: tokenizers or sentencepiece is not installed (extra ``train``).
        OSError: a file is missing.
        FormatError: a file is not a tokenizer.
        ValueError: the name does not determine the kind.
    """
    if isinstance(tokenizer, Pretrained):
        return _load_model(tokenizer)
    path = Path(tokenizer)
    if path.is_dir():
        folder, path = path, path / "tokenizer.json"
        others = ("tokenizer_config.json", "config.json")
        if not path.is_file() and any((folder / name).is_file() for name in others):
            return _load_model(find_pretrained(folder))
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; expected a tokenizer, or a model's folder with its config.json"
        )
    if path.suffix == ".model":
        return _load_sentencepiece(path, threads)
    if path.suffix == ".txt":
        return WordEncoder(read_words(path), str(path))
    if path.suffix != ".json":
        raise ValueError(
            f"{path}: expected a tokenizer.json, a SentencePiece .model or a vocabulary .txt"
        )
    return _load_json(path)


def read_tokenizer(path: Path) -> Any:
    """A tokenizer of the `tokenizers` library, without padding and truncation.

    Args:
        path: a tokenizer.json.

    Raises:
        ImportError: `tokenizers` is not installed (extra `train`).
        OSError: no such file.
        FormatError: the file is not a tokenizer.
    """
    library = require("tokenizers", "train")
    data = read_bytes(path)
    try:
        tokenizer = library.Tokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises bare Exception
        raise FormatError(
            f"{path}: not a tokenizer ({error}); expected a tokenizer.json of the tokenizers "
            "library; for a vocab.json with merges give the folder of its model"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _load_json(path: Path) -> Encoder:
    """A tokenizer of the `tokenizers` library, multithreaded."""
    tokenizer = read_tokenizer(path)

    def tokenize(texts: list[str]) -> Iterator[list[int]]:
        return (one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    return Encoder(str(path), tokenizer.get_vocab_size(), tokenize)


def _load_model(model: Pretrained) -> Encoder:
    """The tokenizer of a model as transformers makes it, of any kind."""
    tokenizer = model.load_tokenizer()

    def tokenize(texts: list[str]) -> Any:
        return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

    return Encoder(model.name, len(tokenizer), tokenize)


def _load_sentencepiece(path: Path, threads: int) -> Encoder:
    """A SentencePiece .model; 0 threads for every core."""
    library = require("sentencepiece", "train")
    refuse_foreign(path, expected="a SentencePiece model")
    try:
        processor = library.SentencePieceProcessor(model_file=str(path))
    except RuntimeError as error:
        raise FormatError(f"{path}: not a SentencePiece model ({error})") from error
    tokenize = partial(processor.encode, num_threads=threads if threads > 0 else -1)
    return Encoder(str(path), processor.vocab_size(), tokenize)


def split_words(text: str) -> list[str]:
    """The words of a text, which ASCII white space separates."""
    return _WORD.findall(text)


class WordEncoder(Encoder):
    """Words separated by white space; unknown words are the vocabulary's ``<unk>``.

    Args:
        words: the word of each token id.
        name: of the vocabulary, for messages.
        normalize: what is done to text before.
        of_corpus: whether they are the words of the corpus itself, which its LM gets.
    """

    def __init__(
        self,
        words: Sequence[str],
        name: str,
        normalize: Callable[[str], str] = str,
        *,
        of_corpus: bool = False,
    ) -> None:
        super().__init__(name, len(words), self._find_ids)
        self.words, self.of_corpus, self._normalize = list(words), of_corpus, normalize
        self._ids: dict[str, int] = {}
        for number, word in enumerate(words):
            if word in self._ids or split_words(word) != [word]:
                problem = "is a duplicate" if word in self._ids else "is not a word"
                raise FormatError(
                    f"{name}, line {number + 1}: {word!r} {problem}; expected distinct words"
                )
            self._ids[word] = number
        self._unknown = self._ids.get("<unk>")

    def _find_ids(self, texts: list[str]) -> Iterator[list[int | None]]:
        for text in texts:
            words = split_words(self._normalize(text))
            ids = [self._ids.get(word, self._unknown) for word in words]
            if self._unknown is None and None in ids:
                raise ValueError(
                    f"the word {words[ids.index(None)]!r} is not in {self.name}; add it, or <unk> "
                    "for all such words"
                )
            yield ids


class TokenBatch(NamedTuple):
    """Token ids of some sequences of a corpus.

    Attributes:
        token_ids: (N,) int32.
        offsets: (number of sequences + 1,) int64, from 0 to N.
        continues_previous: whether the first sequence started in the previous batch.
        continues_next: whether the last sequence continues in the next batch.
        source: the file, on its last batch only; else None.
    """

    token_ids: Int32Array
    offsets: Int64Array
    continues_previous: bool
    continues_next: bool
    source: str | None


@dataclass
class Corpus:
    """Files of text or token ids, with their tokenizer.

    Attributes:
        inputs: files and folders, or "-" for standard input. Text: any name, .gz and .zst are
            decompressed, .jsonl has an object on each line. Token ids: .npy and .bin. From
            folders, also below them: .txt, .text, .md, .jsonl, .ndjson (.gz, .zst), .npy, .bin.
        tokenizer: tokenizer.json, a SentencePiece .model, or a vocabulary .txt for text that is
            split at white space; a model, or its folder; or a WordEncoder. Token ids need none.
        vocab_size: number of token ids. None: the tokenizer's.
        boundaries: unit of text between <s> and </s>: "line", "paragraph" or "document".
        field: the .jsonl field with the text.
        bos_id: token id that is ``<s>``, if any.
        eos_id: token id that is ``</s>``, if any; it also ends the sequences in files of ids.
        unk_id: token id that is ``<unk>``, if any.
        id_type: "uint16" or "uint32", of .bin files. None: the smallest that fits.
        threads: for SentencePiece; 0 for every core.
    """

    inputs: Sequence[StrPath]
    tokenizer: StrPath | Pretrained | WordEncoder | None = None
    vocab_size: int | None = None
    boundaries: Boundaries = "document"
    field: str = "text"
    bos_id: int | None = None
    eos_id: int | None = None
    unk_id: int | None = None
    id_type: str | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        """Finds the files and loads the tokenizer.

        Raises:
            OSError: a file is missing.
            ValueError: no files, or a missing vocab_size or one too small for the tokenizer.
        """
        if self.boundaries not in ("line", "paragraph", "document"):
            raise ValueError(
                f"boundaries is {self.boundaries!r}; expected line, paragraph or document"
            )
        self.meter = Meter()
        self.files = _find_files([os.fspath(name) for name in self.inputs])
        self.encoder: Encoder | None = None
        if isinstance(self.tokenizer, Pretrained):
            if not all(map(is_id_file, self.files)):
                self.encoder = load_encoder(self.tokenizer)
        elif isinstance(self.tokenizer, WordEncoder):
            self.encoder = self.tokenizer
        elif self.tokenizer is not None:
            self.encoder = load_encoder(os.fspath(self.tokenizer), threads=self.threads)
        self.size_of_vocabulary = _vocab_size(self.vocab_size, self.encoder, self.files)

    @property
    def total_bytes(self) -> int | None:
        """The size of all files; None if standard input is among them."""
        if STANDARD_INPUT in self.files:
            return None
        return sum(Path(file).stat().st_size for file in self.files)

    def batches(
        self,
        skip: Sequence[str] = (),
        watcher: Watcher | None = None,
        note: Callable[[], str] = str,
    ) -> Iterator[TokenBatch]:
        """Reads all files except those in `skip`.

        Args:
            skip: names of files.
            watcher: receives progress: stage "text", a step for each MiB read.
            note: the note of a step, made once the batch before it was used.

        Raises:
            OSError: a file cannot be read.
            FormatError: the content does not fit the file name; the message says where.
            ValueError: it is empty, or has a word that is not in the vocabulary.
        """
        watcher, total, done = watcher or Watcher(), self.total_bytes, 0
        watcher.begin("text", None if total is None else total // _STEP)
        for file in self.files:
            before = self.meter.bytes_read
            for batch in () if file in skip else self._read(file):
                yield batch
                done, last = self.meter.bytes_read // _STEP, done
                for _ in range(last, done):
                    watcher.advance(note=note())
            if file != STANDARD_INPUT:
                self.meter.bytes_read = before + Path(file).stat().st_size
        watcher.end()

    def _read(self, file: str) -> Iterator[TokenBatch]:
        parts = self._encode(file)
        if is_id_file(file):
            parts = read_ids(file, self.size_of_vocabulary, self.eos_id, self.id_type, self.meter)
        continued = False
        for token_ids, offsets, continues_next in parts:
            yield TokenBatch(token_ids, offsets, continued, continues_next, None)
            continued = continues_next
        yield TokenBatch(np.zeros(0, np.int32), np.zeros(1, np.int64), False, False, file)

    def _encode(self, file: str) -> Iterator[tuple[Int32Array, Int64Array, bool]]:
        """The sequences of a text file, as `read_ids` gives them."""
        assert self.encoder is not None  # checked by _vocab_size
        pieces = read_pieces(file, self.boundaries, self.field, self.meter)
        for group in group_pieces(pieces):
            ids, offsets = encode_pieces(self.encoder, group, self.size_of_vocabulary)
            yield ids, offsets, not group[-1].ends


def encode_pieces(
    encoder: Encoder, pieces: Sequence[Piece], vocab_size: int
) -> tuple[Int32Array, Int64Array]:
    """(N,) token ids and the (number of sequences + 1,) offsets of their sequences.

    Args:
        encoder: the tokenizer.
        pieces: one or more; the last is assumed to end a sequence.
        vocab_size: V.

    Raises:
        ValueError: a word that is not in the vocabulary.
        FormatError: a token id of vocab_size or above.
    """
    try:
        encoded = encoder.encode([piece.text for piece in pieces])
    except ValueError as error:
        raise ValueError(f"{pieces[0].location.file}: {error}") from error
    token_ids = np.concatenate(encoded)
    if len(token_ids) and int(token_ids.max()) >= vocab_size:
        raise FormatError(
            f"{encoder.name}: gives token id {int(token_ids.max())} for text of "
            f"{pieces[0].location}; expected ids below vocab_size {vocab_size}"
        )
    ends = np.cumsum([len(ids) for ids in encoded])
    keep = np.array([piece.ends for piece in pieces])
    keep[-1] = True
    return token_ids, np.concatenate([[0], ends[keep]]).astype(np.int64)


def group_pieces(
    pieces: Iterator[Piece], *, whole_sequences: bool = False
) -> Iterator[list[Piece]]:
    """Groups pieces of about a million characters, optionally only whole sequences."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text) + 1
        if size >= _CHARACTERS_AT_ONCE and (piece.ends or not whole_sequences):
            yield group
            group, size = [], 0
    if group:
        yield group


def _find_files(inputs: Sequence[str]) -> list[str]:
    files: list[str] = []
    for name in inputs:
        path = Path(name)
        if name == STANDARD_INPUT or path.is_file() or path.is_fifo():
            files.append(name)
        elif path.is_dir():
            names = sorted(str(file) for file in path.rglob("*") if file.is_file())
            known = [file for file in names if file.endswith(_SUFFIXES)]
            if not known:
                raise FileNotFoundError(
                    f"{name}: no file in it ends in one of {', '.join(_SUFFIXES)}"
                )
            files.extend(known)
        else:
            raise FileNotFoundError(f"{name}: no such file or folder")
    if not files:
        raise ValueError("no input; expected files, folders, or - for standard input")
    repeated = [file for file, count in Counter(files).items() if count > 1]
    if repeated:
        raise ValueError(f"{repeated[0]}: given more than once; its text would count twice")
    return files


def _vocab_size(stated: int | None, encoder: Encoder | None, files: Sequence[str]) -> int:
    text = [file for file in files if not is_id_file(file)]
    if encoder is None and text:
        raise ValueError(
            f"{text[0]}: text needs a tokenizer; give that of the model, --tokenizer "
            "MODEL/tokenizer.json (tokenizer= in Python)"
        )
    if encoder is None and stated is None:
        raise ValueError("token ids need the size of the vocabulary (vocab_size, --vocab-size)")
    if encoder is not None and stated is not None and encoder.vocab_size > stated:
        raise ValueError(
            f"{encoder.name}: the tokenizer has {encoder.vocab_size} token ids, vocab_size is "
            f"{stated}; expected at least as many; use the tokenizer of the model"
        )
    return stated if stated is not None else encoder.vocab_size if encoder is not None else 0
