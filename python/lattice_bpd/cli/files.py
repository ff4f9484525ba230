"""Loading of texts, tokenizers and models for commands."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from lattice_bpd.atomic_files import is_special
from lattice_bpd.extras import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel

_MODEL_FILES = ("*.json", "*.safetensors", "*.model", "*.lm", "block_drafter/*")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        ValueError: not UTF-8, or empty.
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


def check_output(
    path: Path,
    *,
    expected: str = "a file",
    creates_folder: bool = False,
    takes_devices: bool = False,
) -> None:
    """Refuses an output file that cannot be written, before the work whose result it is.

    Args:
        path: the file.
        expected: what the option takes, for messages.
        creates_folder: whether the command creates missing folders.
        takes_devices: whether the file may be a device or pipe.

    Raises:
        OSError: it is a folder or device, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected {expected} to write")
    if is_special(path):
        if takes_devices:
            return
        raise OSError(f"{path} is not a regular file; expected {expected} to write")
    folder = missing = Path(os.path.realpath(path)).parent
    while creates_folder and not folder.exists():
        folder = folder.parent
    if not folder.exists():
        raise FileNotFoundError(
            f"{path}: there is no folder {missing} to write it in; create that folder, or give "
            "another output"
        )
    if not folder.is_dir():
        raise NotADirectoryError(
            f"{folder} is a file, {path} would be written into it; expected a folder, or "
            f"{expected} in another one"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(
            f"{path}: folder {folder} is not writable; change its permissions, or give an output "
            "in another folder"
        )


def find_model(name: str) -> Path:
    """The directory of a model: a path, or a hub name, whose files are then downloaded.

    Raises:
        OSError: neither a directory nor the name of a model on the hub, or no network.
    """
    path = Path(name)
    if path.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return path
    hub = require("huggingface_hub", "torch")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_MODEL_FILES))
    except (OSError, ValueError) as error:  # requests and the hub's errors are OSError
        raise FileNotFoundError(
            f"{name}: no such directory, and the hub does not provide it ({error}); expected the "
            "directory or the hub name of a causal LM of transformers"
        ) from error


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer of the `tokenizers` library.

    Raises:
        ImportError: `tokenizers` is not installed (extra `train`).
        OSError: no such file.
        ValueError: the file is not a tokenizer.
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


def load_causal_lm(path: Path) -> PreTrainedModel:
    """A causal LM: a folder of `transformers` (a blockwise model too), or a .bin of llama2.c.

    Raises:
        ImportError: torch or `transformers` is not installed (extra `torch`).
        OSError: no such file or folder.
        FormatError: it is not such a model.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; expected a model")
    require("torch", "torch")
    require("transformers", "torch")
    from lattice_bpd.cli.progress import quiet_transformers

    quiet_transformers()
    if path.is_dir():
        from lattice_bpd.models.checkpoint import load_target

        model = load_target(path)
        model.eval()  # type: ignore[no-untyped-call]
        return model
    from lattice_bpd.models import load_llama2c

    return load_llama2c(path)
