"""Which format a folder is in."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd_drafters import (
    format_deepspec,
    format_muse_glimmer,
    format_speculators,
    format_z_lab,
)
from lattice_bpd_drafters.format_files import (
    CONFIG_NAME,
    SUPPORTED,
    read_config_json,
    refuse_other_drafters,
)

FORMATS: dict[str, ModuleType] = {
    "z-lab": format_z_lab,
    "speculators": format_speculators,
    "muse-glimmer": format_muse_glimmer,
    "deepspec": format_deepspec,
}
"""Name -> module with `recognizes`, `read` and `save`."""


def is_block_drafter(directory: Path) -> bool:
    """Whether a folder has the config.json of a supported format, or of one that is refused."""
    try:
        content = read_config_json(directory)
    except FormatError:
        return False
    try:
        return _recognize(directory / CONFIG_NAME, content) is not None
    except FormatError:
        return True


def find_format(directory: str | Path) -> str:
    """The name of a checkpoint's format, one of FORMATS.

    Raises:
        FormatError: config.json is missing or damaged, or of no supported format.
    """
    directory = Path(directory)
    content, path = read_config_json(directory), directory / CONFIG_NAME
    name = _recognize(path, content)
    if name is not None:
        return name
    keys = ("architectures", "model_type", "speculators_model_type")
    present = ", ".join(f"{key} {content[key]!r}" for key in keys if key in content)
    raise FormatError(
        f"{path}: has {present or 'no architectures'}; expected {SUPPORTED}; give the directory "
        "of such a drafter"
    )


def _recognize(path: Path, content: dict[str, Any]) -> str | None:
    """The format of a config.json with this content; None: not a block drafter's.

    Raises:
        FormatError: it is of a family of drafters that is refused.
    """
    refuse_other_drafters(path, content)
    return next((name for name, one in FORMATS.items() if one.recognizes(content)), None)
