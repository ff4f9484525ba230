"""Files of a blockwise model.

A directory that is a plain `transformers` checkpoint of the target, with two files beside it:

    config.json, model.safetensors, ...   the target, as `PreTrainedModel.save_pretrained` writes it
    blockwise_heads.safetensors           float tensors of BlockwiseHeads
    blockwise_heads.json                  format, version, num_heads, hidden_size, inner_size

Everything is written to a temporary directory beside it and renamed file by file, the JSON last,
so that a directory with `blockwise_heads.json` is whole.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from lattice_bpd import FormatError
from lattice_bpd.models.heads import BlockwiseHeads

if TYPE_CHECKING:
    from lattice_bpd.models.blockwise import BlockwiseLM

HEADS_CONFIG = "blockwise_heads.json"
HEADS_WEIGHTS = "blockwise_heads.safetensors"
_FORMAT = "lattice_bpd.blockwise_heads"
_VERSION = 1


def save_blockwise(model: BlockwiseLM, directory: Path) -> None:
    """Write target and heads into `directory`, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
    """
    heads = model.heads
    config = {
        "format": _FORMAT,
        "version": _VERSION,
        "num_heads": heads.num_heads,
        "hidden_size": heads.hidden_size,
        "inner_size": heads.inner_size,
    }
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".saving-") as name:
        temporary = Path(name)
        model.base.save_pretrained(temporary)
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in heads.state_dict().items()},
            temporary / HEADS_WEIGHTS,
        )
        for path in sorted(temporary.iterdir()):
            path.replace(directory / path.name)
        (temporary / HEADS_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        (temporary / HEADS_CONFIG).replace(directory / HEADS_CONFIG)


def load_blockwise(directory: Path, **options: Any) -> tuple[PreTrainedModel, BlockwiseHeads]:
    """Target and heads from `directory`, on the CPU; options go to `transformers`.

    Raises:
        FormatError: a file is missing, cut, altered or of another format version.
    """
    heads = _load_heads(directory)
    try:
        base = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, **options)
    except (OSError, ValueError, SafetensorError) as error:
        raise FormatError(
            f"{directory}: the target model cannot be read ({error}); expected the files that "
            "BlockwiseLM.save_pretrained wrote; save or train the model again"
        ) from error
    return base, heads


def _load_heads(directory: Path) -> BlockwiseHeads:
    config = _read_config(directory / HEADS_CONFIG)
    heads = BlockwiseHeads(config["hidden_size"], config["num_heads"], config["inner_size"])
    path = directory / HEADS_WEIGHTS
    try:
        heads.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise FormatError(
            f"{path}: the heads' weights cannot be read ({error}); expected the tensors that "
            f"{HEADS_CONFIG} beside it describes; save or train the model again"
        ) from error
    return heads


def _read_config(path: Path) -> dict[str, Any]:
    cure = "give a directory that BlockwiseLM.save_pretrained wrote"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read ({error}); {cure}") from error
    if not isinstance(config, dict) or config.get("format") != _FORMAT:
        raise FormatError(f"{path}: is not a {_FORMAT!r} file; {cure}")
    if config.get("version") != _VERSION:
        raise FormatError(
            f"{path}: format version {config.get('version')!r}, expected {_VERSION}; "
            "install the version of lattice-bpd that wrote it"
        )
    for key, least in (("num_heads", 2), ("hidden_size", 1), ("inner_size", 1)):
        value = config.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise FormatError(f"{path}: {key} is {value!r}, expected an integer of {least} or more")
    return config
