"""The option --heads, and checks of the folders of a model and its heads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lattice_bpd.extras import require


def add_heads_option(parser: argparse.ArgumentParser) -> None:
    """Add --heads."""
    parser.add_argument(
        "--heads", type=Path, metavar="DIR",
        help="folder of the draft heads, if they are not in the model's folder",
    )  # fmt: skip


def check_folders(model: Path, heads: Path | None, *, needs_heads: bool = True) -> None:
    """Refuse a model's folder that is missing, or has no heads where they are needed.

    Args:
        model: the folder of the model.
        heads: the folder of its heads; None: the model's.
        needs_heads: whether the command runs with heads only.

    Raises:
        ImportError: torch is not installed.
        FileNotFoundError: no such folder.
        ValueError: a folder without heads, or one with heads only instead of a model.
    """
    require("torch", "torch")
    for option, folder in (("", model), ("--heads ", heads)):
        if folder is not None and not folder.is_dir():
            expected = "the draft heads" if option else "a causal LM of transformers"
            raise FileNotFoundError(
                f"{option}{folder}: no such folder; expected the folder of {expected}"
            )
    if not (model / "config.json").is_file() and _holds_heads(model):
        raise ValueError(
            f"{model} holds draft heads only; give the model's folder as the model, and this one "
            "as --heads"
        )
    if heads is not None and not _holds_heads(heads):
        raise ValueError(
            f"--heads {heads}: the folder has no draft heads ({', '.join(_names())}); expected one "
            "that `lattice-bpd heads train` wrote"
        )
    if heads is None and needs_heads and not has_encoder_decoder(model) and not _holds_heads(model):
        raise ValueError(
            f"{model} has no draft heads ({', '.join(_names())}); give --heads DIR, or a folder "
            "that `lattice-bpd heads train` wrote without --heads-only"
        )


def has_encoder_decoder(directory: Path) -> bool:
    """Whether a folder's model is an encoder-decoder, by its config.json."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return bool(config.get("is_encoder_decoder"))
    except (OSError, ValueError, AttributeError):
        return False  # whoever loads the model says what is wrong


def _holds_heads(directory: Path) -> bool:
    """Whether a folder has files of heads, or of a SpecDrafter."""
    from lattice_bpd.models.checkpoint import has_heads
    from lattice_bpd.models.spec_config import SPEC_DRAFTER_FILES

    return has_heads(directory) or (directory / SPEC_DRAFTER_FILES.config_name).is_file()


def _names() -> tuple[str, ...]:
    """What marks a folder with heads."""
    from lattice_bpd.models.checkpoint import HEAD_NAMES

    return HEAD_NAMES
