"""The option --heads, and checks of the folders of a model and its heads."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from lattice_bpd.cli.files import require_folder
from lattice_bpd.extensions import require


def add_heads_option(parser: argparse.ArgumentParser) -> None:
    """Add --heads."""
    parser.add_argument(
        "--heads", type=Path, metavar="DIR",
        help="folder of the draft heads, if they are not in the model's folder; also a Medusa "
        "checkpoint or a block drafter as published",
    )  # fmt: skip


@dataclass(frozen=True)
class ModelFolders:
    """The folders of a model and its heads, as `check_folders` found them.

    Attributes:
        model: of the model.
        heads: of the heads; None: the model's.
        is_encoder_decoder: of the model.
    """

    model: Path
    heads: Path | None
    is_encoder_decoder: bool


def check_folders(model: Path, heads: Path | None, *, needs_heads: bool = True) -> ModelFolders:
    """Refuse a model's folder that is missing, or has no heads where they are needed.

    Args:
        model: the folder of the model.
        heads: the folder of its heads; None: the model's.
        needs_heads: whether the command runs with heads only.

    Raises:
        ImportError: torch is not installed.
        FileNotFoundError: no such folder.
        ValueError: a folder without heads of this kind of model, or one with heads only instead of
            a model.
    """
    require("torch", "torch")
    from lattice_bpd.models.checkpoint import (
        HEAD_SOURCES,
        describe_published,
        has_heads,
        has_target,
        head_names,
    )

    for option, folder in (("", model), ("--heads ", heads)):
        if folder is not None:
            expected = "the draft heads" if option else "a causal LM of transformers"
            require_folder(folder, expected, option)
    folders = ModelFolders(model, heads, has_encoder_decoder(model))
    if not has_target(model) and has_heads(model):
        raise ValueError(
            f"{model} holds draft heads only; give the model's folder as the model, and this one "
            "as --heads"
        )
    names = f"({', '.join(head_names())})"
    if heads is not None and not has_heads(heads):
        raise ValueError(
            f"--heads {heads}: the folder has no draft heads {names}; expected one that "
            f"{HEAD_SOURCES}{describe_published(heads)}"
        )
    if heads is None and needs_heads and not has_heads(model):
        raise ValueError(
            f"{model} has no draft heads {names}; give --heads DIR, or a folder that "
            "`lattice-bpd heads train` wrote without --heads-only"
        )
    return folders


def has_encoder_decoder(directory: Path) -> bool:
    """Whether a folder's model is an encoder-decoder, by its config.json."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("is_encoder_decoder"))
    except (OSError, ValueError, AttributeError):
        return False  # whoever loads the model says what is wrong
