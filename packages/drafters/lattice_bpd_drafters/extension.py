"""How folders hold block drafters and selectors; see `lattice_bpd.models.checkpoint.HeadFormat`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.models.checkpoint import HeadFormat, find_own_loader
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.formats import find_format, is_block_drafter
from lattice_bpd_drafters.medusa import MEDUSA
from lattice_bpd_drafters.selector import CandidateSelector, SelectorHeads

DRAFTER_FOLDER = "block_drafter"
SELECTOR_FOLDER = "selector"


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


class SelectorFormat(HeadFormat):
    """A CandidateSelector in selector/, beside the heads that it was trained on."""

    name, kind = f"{SELECTOR_FOLDER}/", SelectorHeads

    def find_loader(self, directory: Path) -> Callable[[Path], SelectorHeads] | None:
        """See HeadFormat."""
        return _load_selector_heads if (directory / SELECTOR_FOLDER).is_dir() else None

    def write(self, heads: Any, directory: Path) -> Any:
        """See HeadFormat."""
        folder = directory / SELECTOR_FOLDER
        if isinstance(heads, SelectorHeads):
            heads.selector.save_pretrained(folder)
            return heads.heads
        if folder.is_dir():
            shutil.rmtree(folder)
        return heads


def _load_selector_heads(directory: Path) -> SelectorHeads:
    folder = directory / SELECTOR_FOLDER
    load = find_own_loader(directory) or MEDUSA.find_loader(directory)
    if load is None:
        raise FormatError(
            f"{folder}: a selector without heads on one hidden state beside it; expected some, "
            f"since a block drafter has its own in {DRAFTER_FOLDER}/; remove this folder"
        )
    heads = load(directory)
    selector = CandidateSelector.from_pretrained(folder)
    try:
        return SelectorHeads(heads, selector)
    except ValueError as error:
        raise FormatError(f"{folder}: {error}, or remove this folder") from error


BLOCK_DRAFTER, SELECTOR = BlockDrafterFormat(), SelectorFormat()
