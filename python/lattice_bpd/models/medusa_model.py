"""The target of a Medusa checkpoint with its heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.models.medusa_checkpoint import HEADS_ALONE, load_medusa_heads, read_config


def load_medusa(
    directory: str | Path,
    base: PreTrainedModel | None = None,
    *,
    num_slots: int | None = None,
    **options: Any,
) -> BlockwiseLM:
    """A target with Medusa heads, ready for decoding.

    Args:
        directory: a Medusa checkpoint.
        base: the target; None: read from the directory (v1.0), or from the local folder that
            base_model_name_or_path names (v0.1). Nothing is downloaded.
        num_slots: heads to use, at most those of the checkpoint; None: medusa_num_heads.
        options: passed to `AutoModelForCausalLM.from_pretrained`, such as dtype.

    Returns:
        BlockwiseLM in evaluation mode.

    Raises:
        FormatError: files that are missing, cut, altered, or do not fit each other.
        ValueError: no target, or heads of another hidden size or vocabulary than the target's.

    Warns:
        SharedBlocksWarning: see `load_medusa_heads`.
    """
    directory = Path(directory)
    heads = load_medusa_heads(directory, num_slots=num_slots)
    if base is None:
        base = load_target(_target_folder(directory), **options)
    model = BlockwiseLM(base, heads=heads)
    model.eval()
    return model


def _target_folder(directory: Path) -> Path:
    """The local folder of a checkpoint's target."""
    if not any((directory / name).is_file() for name in HEADS_ALONE):
        return directory
    name = read_config(directory).get("base_model_name_or_path")
    if isinstance(name, str) and name and Path(name).is_dir():
        return Path(name)
    raise ValueError(
        f"load_medusa: {directory} has heads only, for the target {name!r}, which is not a local "
        "folder; load that model and give it as base="
    )
