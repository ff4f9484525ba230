"""Files that commands read, with errors a user can act on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.extras import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        ValueError: not UTF-8, or no text in it.
        OSError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8; convert the file, for example with "
            "iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise ValueError(f"{path}: no text in the file; expected some")
    return text


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer of the `tokenizers` library.

    Raises:
        ImportError: `tokenizers` is missing (extra `train`).
        OSError: no such file.
        ValueError: the file is no tokenizer.
    """
    tokenizers = require("tokenizers", "train")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; expected a tokenizer.json")
    try:
        tokenizer: Tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(
            f"{path}: not a tokenizer ({error}); expected a tokenizer.json of the tokenizers "
            "library"
        ) from error
    return tokenizer
