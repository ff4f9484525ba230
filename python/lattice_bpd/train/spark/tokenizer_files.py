"""Tokenizers that are sent to executors."""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lattice_bpd.train.text.encoders import Encoder, load_encoder

_MERGES = ("merges.txt", "vocab.bpe")
_IN_FOLDER = ("tokenizer.json", "vocab.json", "encoder.json", *_MERGES)


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer, by name.

    Attributes:
        name: name for error messages.
        main: the file to load; empty for a folder.
        merges: the file with the merges, if given.
        files: names and contents.
    """

    name: str
    main: str
    merges: str | None
    files: tuple[tuple[str, bytes], ...]


def read_tokenizer(tokenizer: str, merges: str | None = None) -> tuple[TokenizerFiles, int]:
    """Reads the files of a tokenizer; also returns its number of token ids.

    Raises:
        OSError, FormatError, ValueError, ImportError: as load_encoder does.
    """
    vocab_size = load_encoder(tokenizer, merges=merges, threads=1).vocab_size
    path = Path(tokenizer)
    if path.is_dir():
        paths = [path / name for name in _IN_FOLDER if (path / name).is_file()]
    else:
        merges_names = _MERGES if path.suffix == ".json" and merges is None else ()
        paths = [
            path,
            *(path.parent / name for name in merges_names if (path.parent / name).is_file()),
        ]
    if merges is not None:
        paths.append(Path(merges))
    files = tuple((file.name, file.read_bytes()) for file in paths)
    main = "" if path.is_dir() else path.name
    return TokenizerFiles(str(path), main, merges and Path(merges).name, files), vocab_size


@functools.lru_cache(maxsize=1)
def load_here(tokenizer: TokenizerFiles) -> Encoder:
    """Loads the tokenizer once per worker, with one thread since each core has a worker.

    Raises:
        OSError: the worker cannot write a temporary file.
        ImportError: the tokenizer's library is not installed.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, data in tokenizer.files:
                (Path(folder) / name).write_bytes(data)
            merges = str(Path(folder) / tokenizer.merges) if tokenizer.merges else None
            encoder = load_encoder(str(Path(folder) / tokenizer.main), merges=merges, threads=1)
    except OSError as error:
        raise OSError(
            f"{tokenizer.name}: the tokenizer cannot be written on an executor ({error}); free "
            "space in its temporary folder (TMPDIR)"
        ) from error
    encoder.name = tokenizer.name
    return encoder
