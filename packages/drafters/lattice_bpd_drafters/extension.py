"""How folders hold block drafters; see `lattice_bpd.models.checkpoint.HeadFormat`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.models.checkpoint import HeadFormat
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.formats import find_format, is_block_drafter

DRAFTER_FOLDER = "block_drafter"


class BlockDrafterFormat(HeadFormat):
    """A BlockDrafter in block_drafter/ beside its target, or a folder as others publish it."""

    name, kind = f"{DRAFTER_FOLDER}/", BlockDrafter

    def find_loader(self, directory: Path) -> Callable[[Path], BlockDrafter] | None:
        """See HeadFormat."""
        if (directory / DRAFTER_FOLDER).is_dir():
            return lambda folder: BlockDrafter.from_pretrained(folder / DRAFTER_FOLDER)
        return BlockDrafter.from_pretrained if is_block_drafter(directory) else None

    def write(self, heads: Any, directory: Path) -> Any:
        """See HeadFormat."""
        folder = directory / DRAFTER_FOLDER
        if isinstance(heads, BlockDrafter):
            heads.save_pretrained(folder)
            return None
        if folder.is_dir():
            shutil.rmtree(folder)
        return heads

    def owns_config(self, directory: Path) -> bool:
        """See HeadFormat."""
        return is_block_drafter(directory)

    def explain(self, directory: Path) -> str:
        """See HeadFormat."""
        try:
            find_format(directory)
        except FormatError as error:
            return f". As a block drafter: {error}"
        return ""


BLOCK_DRAFTER = BlockDrafterFormat()
