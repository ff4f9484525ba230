"""The option --heads, and checks of the folders of a model and its heads."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lattice_bpd.cli.files import require_folder
from lattice_bpd.extras import require


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
    from lattice_bpd.models.checkpoint import describe_published, has_target

    for option, folder in (("", model), ("--heads ", heads)):
        if folder is not None:
            expected = "the draft heads" if option else "a causal LM of transformers"
            require_folder(folder, expected, option)
    folders = ModelFolders(model, heads, has_encoder_decoder(model))
    kinds = _causal_heads(), _encoder_decoder_heads()
    if not has_target(model) and any(kind.are_in(model) for kind in kinds):
        raise ValueError(
            f"{model} holds draft heads only; give the model's folder as the model, and this one "
            "as --heads"
        )
    kind = kinds[folders.is_encoder_decoder]
    if heads is not None and not kind.are_in(heads):
        raise ValueError(
            f"--heads {heads}: the folder has no draft heads {kind.names}; expected one that "
            f"{kind.written_by}{'' if folders.is_encoder_decoder else describe_published(heads)}"
        )
    if heads is None and needs_heads and not kind.are_in(model):
        raise ValueError(
            f"{model} has no draft heads {kind.names}; give --heads DIR, or a folder that "
            f"{kind.written_with_model_by}"
        )
    return folders


def has_encoder_decoder(directory: Path) -> bool:
    """Whether a folder's model is an encoder-decoder, by its config.json."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("is_encoder_decoder"))
    except (OSError, ValueError, AttributeError):
        return False  # whoever loads the model says what is wrong


class _HeadKind(NamedTuple):
    """Heads that one kind of model takes: whether a folder has some, their files and writers."""

    are_in: Callable[[Path], bool]
    files: tuple[str, ...]
    written_by: str
    written_with_model_by: str

    @property
    def names(self) -> str:
        return f"({', '.join(self.files)})"


def _causal_heads() -> _HeadKind:
    from lattice_bpd.models.checkpoint import HEAD_NAMES, HEAD_SOURCES, has_heads

    with_model = "`lattice-bpd heads train` wrote without --heads-only"
    return _HeadKind(has_heads, HEAD_NAMES, HEAD_SOURCES, with_model)


def _encoder_decoder_heads() -> _HeadKind:
    from lattice_bpd.models.heads import BLOCKWISE_FILES
    from lattice_bpd.models.spec_config import SPEC_DRAFTER_FILES

    writer = "save_pretrained of a SpecDrafter or BlockwiseHeads wrote"
    names = SPEC_DRAFTER_FILES.config_name, BLOCKWISE_FILES.config_name

    def are_in(directory: Path) -> bool:
        return any((directory / name).is_file() for name in names)

    return _HeadKind(are_in, names, writer, f"{writer} beside the model")
