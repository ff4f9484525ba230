"""Loading of texts, tokenizers and models for commands."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import text_input
from lattice_bpd.atomic_files import is_special
from lattice_bpd.cli.threads import limit_threads
from lattice_bpd.extensions import require
from lattice_bpd.pretrained import Pretrained, find_pretrained

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_is_hub_name = re.compile(r"[\w.-]+/[\w.-]+").fullmatch


def read_filled(path: Path) -> str:
    """The text of a UTF-8 file that is not empty; see `lattice_bpd.text_input`.

    Raises:
        ValueError: another format, not UTF-8, or empty.
        OSError: it cannot be read.
    """
    text = text_input.read_text(path)
    if not text.strip():
        raise ValueError(f"{path}: no text in the file; expected some")
    return text


def check_argument(text: str, option: str) -> str:
    """A text of the command line.

    Raises:
        ValueError: its bytes are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{option}: {text[:40]!r} is not UTF-8; expected UTF-8 text, or a file of it"
        ) from None
    return text


def require_model(path: Path, option: str = "") -> None:
    """Refuses a folder that has no model of transformers, without loading torch.

    Raises:
        FileNotFoundError: it is missing, a file, or without config.json.
    """
    if not path.is_dir():
        advice = "" if option or path.name != str(path) else ", or OWNER/NAME of the hub"
        if not path.exists() and _is_hub_name(str(path)):
            advice = (
                f"; download a model of the hub first: hf download {path} --local-dir {path.name}"
            )
        raise FileNotFoundError(
            f"{option}{path}: {'is a file' if path.exists() else 'no such folder'}; expected the "
            f"folder of a causal LM of transformers{advice}"
        )
    if not any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise FileNotFoundError(
            f"{option}{path}: no config.json in this folder; expected that of a model, or the "
            "adapter_config.json of an adapter"
        )


def check_output(path: Path, *, takes_devices: bool = False) -> None:
    """Refuses an output file that cannot be written, before the work whose result it is.

    Args:
        path: the file.
        takes_devices: whether the file may be a device or pipe.

    Raises:
        OSError: it is a folder or device, or its folder is missing or not writable.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; expected a file to write")
    if is_special(path):
        if takes_devices:
            return
        raise OSError(f"{path} is not a regular file; expected a file to write")
    folder = Path(os.path.realpath(path)).parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise type(error)(
            f"{path}: cannot write into {folder} ({error.strerror}); create that folder, change "
            "its permissions, or give another output"
        ) from None


def load_causal_lm(model: Path | Pretrained) -> PreTrainedModel:
    """A causal LM in evaluation mode: of `transformers`, also in a folder with heads.

    Args:
        model: its folder, or OWNER/NAME on the hub; or what was found.

    Raises:
        ImportError: torch or `transformers` is not installed (extra `torch`).
        OSError: no such folder, and the hub does not provide it.
        FormatError: it is not such a model.
        ValueError: it needs code of its own that may not run.
    """
    found = find_pretrained(model)
    require_model(found.folder)
    require("torch", "torch")
    require("transformers", "torch")
    from lattice_bpd.cli.progress import quiet_transformers

    quiet_transformers()
    from lattice_bpd.models.checkpoint import load_target

    return load_target(found).eval()  # type: ignore[no-untyped-call, no-any-return]


def to_device(model: Any) -> Any:
    """A model that is to decode: on the GPU if CUDA finds one, else with the core's kernels."""
    from lattice_bpd.verify import use_cpu_kernels
    from lattice_bpd.verify.memory import describe_lack_of_memory

    torch = require("torch", "torch")
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a plan for each new shape
        with describe_lack_of_memory("put the model on the GPU", "use a smaller one, or free it"):
            return model.to("cuda")
    limit_threads()
    use_cpu_kernels(model)
    return model


def read_sequences(path: Path, tokenizer: Path | None) -> list[npt.NDArray[Any]]:
    """The sequences of a text, (T_i,) integers each.

    Args:
        path: token ids, or text with a sequence on each line.
        tokenizer: of text, see `load_encoder`; None: the file has token ids.

    Raises:
        OSError: a file cannot be read.
        ValueError: no text, a line that does not consist of token ids, or another format.
    """
    from lattice_bpd.train.corpus import load_encoder
    from lattice_bpd.train.id_files import map_npy

    if path.suffix == ".npy":
        ids = map_npy(str(path))
        return list(ids) if ids.ndim == 2 else [ids]
    lines = [line for line in read_filled(path).split("\n") if line.strip()]
    if tokenizer is not None:
        return load_encoder(str(tokenizer)).encode(lines)
    sequences: list[npt.NDArray[Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            sequences.append(np.array(line.split(), dtype=np.int64))
        except ValueError:
            raise ValueError(
                f"{path}: non-empty line {number} is {line[:40]!r}; expected decimal token ids "
                "(plain text needs --tokenizer)"
            ) from None
    return sequences


def check_model(folder: Path) -> None:
    """Refuses a folder without a model, such as one that holds draft heads only.

    Raises:
        ImportError: torch is not installed.
        FileNotFoundError: no such folder, or one with neither.
        ValueError: a folder of draft heads.
    """
    if not any(folder.glob("*heads.json")):
        require_model(folder)  # before torch loads
    require("torch", "torch")
    from lattice_bpd.models.checkpoint import has_heads, has_target

    if not has_target(folder) and has_heads(folder):
        raise ValueError(
            f"{folder} holds draft heads only; give the model's folder as the model, and this one "
            "as --heads"
        )


def has_encoder_decoder(model: Path | Pretrained) -> bool:
    """Whether a model is an encoder-decoder, by its config.json."""
    try:
        return bool(find_pretrained(model).config.get("is_encoder_decoder"))
    except (OSError, ValueError):
        return False  # whoever loads the model says what is wrong
