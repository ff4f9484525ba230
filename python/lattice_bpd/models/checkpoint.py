"""Reading and writing of blockwise models.

The directory is a plain `transformers` checkpoint of the target, plus those of the heads:

    config.json, model.safetensors, ...          the target, as `PreTrainedModel` writes it
    blockwise_heads.safetensors, ..heads.json    BlockwiseHeads (`head_files`), or
    medusa_heads.safetensors, ..heads.json       MedusaHeads (`head_files`), or
    heads.safetensors, heads.json                VocabularyHeads (`head_files`), or
    block_drafter/                               a BlockDrafter, in the z-lab format
    selector/                                    optional: the CandidateSelector of the heads
    first_head.safetensors, first_head.json      head 1's own network, if any (`first_head`)

A folder that others published, a Medusa checkpoint or a block drafter, is a folder with heads too.

The target is written first, then the selector, and the heads' JSON last, each renamed from a
temporary name, so a directory with that JSON is complete. A block drafter's selector is part of its
own checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import HEAD_FORMATS, find_extensions, load_extension
from lattice_bpd.models.block_drafter.formats.recognize import find_format, is_block_drafter
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd.models.first_head import (
    load_first_head,
    plain_output_embedding,
    save_first_head,
)
from lattice_bpd.models.head_files import HeadFiles, staged_folder
from lattice_bpd.models.heads import BLOCKWISE_FILES, BlockwiseHeads
from lattice_bpd.models.medusa import MEDUSA_FILES, MedusaHeads
from lattice_bpd.models.medusa_checkpoint import (
    HEADS_ALONE,
    is_medusa_checkpoint,
    load_medusa_heads,
)
from lattice_bpd.models.vocabulary_heads import VOCABULARY_FILES, VocabularyHeads

DRAFTER_FOLDER = "block_drafter"
SELECTOR_FOLDER = "selector"
_HEAD_FILES: dict[Any, HeadFiles] = {
    BlockwiseHeads: BLOCKWISE_FILES,
    MedusaHeads: MEDUSA_FILES,
    VocabularyHeads: VOCABULARY_FILES,
}
HEAD_SOURCES = "`lattice-bpd heads train` wrote, a Medusa checkpoint or a block drafter"
"""Where folders with heads come from, for messages."""

SavedHeads = BlockwiseHeads | MedusaHeads | VocabularyHeads | BlockDrafter


class HeadFormat(Protocol):
    """Heads that another distribution reads, by the entry points `lattice_bpd.head_formats`.

    Attributes:
        name: of the file that a folder with such heads has, for messages.
    """

    name: str

    def find_loader(self, directory: Path) -> Callable[[Path], Any] | None:
        """What reads the heads in a folder, on the CPU; None: there are none of this format."""
        ...


def head_names() -> tuple[str, ...]:
    """The files by which folders with heads are known, for messages."""
    own = (*(files.config_name for files in _HEAD_FILES.values()), f"{DRAFTER_FOLDER}/")
    return (*own, *(extension.name for extension in _head_formats()))


def _head_formats() -> list[HeadFormat]:
    return [load_extension(HEAD_FORMATS, name) for name in find_extensions(HEAD_FORMATS)]


def save_checkpoint(
    base: PreTrainedModel,
    heads: object,
    directory: Path,
    selector: CandidateSelector | None = None,
) -> None:
    """Write target, heads and their selector into `directory`, which is created if missing.

    Raises:
        TypeError: heads without a file format.
        OSError: the directory cannot be written.
    """
    if not isinstance(heads, SavedHeads):
        raise TypeError(
            f"save_pretrained: the heads are {type(heads).__name__}, which have no file format; "
            "expected BlockwiseHeads, MedusaHeads, VocabularyHeads or a BlockDrafter; save the "
            "target with model.base.save_pretrained(directory) and attach the heads again after "
            "loading"
        )
    with staged_folder(directory) as folder, plain_output_embedding(base):
        base.save_pretrained(folder)
    if selector is not None:
        selector.save_pretrained(directory / SELECTOR_FOLDER)
    elif (directory / SELECTOR_FOLDER).is_dir():
        shutil.rmtree(directory / SELECTOR_FOLDER)
    save_first_head(base, directory)
    _save_heads(heads, directory, base)
    drafter = directory / DRAFTER_FOLDER
    for kind, files in _HEAD_FILES.items():
        if not isinstance(heads, kind):
            for stale in (files.config_name, files.weights_name):
                (directory / stale).unlink(missing_ok=True)
    if not isinstance(heads, BlockDrafter) and drafter.is_dir():
        shutil.rmtree(drafter)


def load_checkpoint(
    directory: Path, heads_directory: Path | None = None, **options: Any
) -> tuple[PreTrainedModel, SavedHeads, CandidateSelector | None]:
    """Target, heads and their selector.

    Args:
        directory: of the target.
        heads_directory: of heads and selector; None: `directory`.
        options: passed to `transformers`.

    Raises:
        FormatError: a file is missing, cut, altered or of another format version.
    """
    heads_directory = heads_directory or directory
    heads = load_heads(heads_directory)
    selector = load_selector(heads_directory, heads)
    base = load_target(directory, **options)
    if selector is not None:
        weight = base.get_output_embeddings().weight  # type: ignore[no-untyped-call]
        vocab_size, hidden_size = map(int, weight.shape)
        try:
            selector.check_fit(
                vocab_size, hidden_size, heads.num_slots, str(heads_directory / SELECTOR_FOLDER)
            )
        except ValueError as error:
            raise FormatError(f"{error}, or remove this folder") from error
    return base, heads, selector


def load_selector(directory: Path, heads: object) -> CandidateSelector | None:
    """The selector in `directory` of the heads there, on the CPU; None if there is none.

    Raises:
        FormatError: a file is missing, cut, altered or of another format version, or the heads are
            a BlockDrafter.
    """
    folder = directory / SELECTOR_FOLDER
    if not folder.is_dir():
        return None
    if isinstance(heads, BlockDrafter):
        raise FormatError(
            f"{folder}: a selector beside a block drafter; expected one for heads on one hidden "
            f"state, since a block drafter's is part of {DRAFTER_FOLDER}/; remove this folder"
        )
    return CandidateSelector.from_pretrained(folder)


def load_heads(directory: str | Path) -> Any:
    """The heads in a folder, of any kind, on the CPU: for `heads=` of everything that decodes.

    Args:
        directory: one that `save_pretrained` of a model with heads or of heads, or `lattice-bpd
            heads train` wrote, a Medusa checkpoint, a block drafter in any format of
            `BlockDrafter.from_pretrained`, or heads of an installed extension (`HeadFormat`).

    Raises:
        FileNotFoundError: no such folder, such as a hub name that is not downloaded.
        NotADirectoryError: a file.
        FormatError: no heads, or a file is missing, cut, altered or of another format version.
    """
    directory = Path(directory)
    if not directory.is_dir():
        if directory.exists():
            raise NotADirectoryError(
                f"load_heads: {directory} is a file; expected the folder of the heads; give "
                f"{directory.parent}"
            )
        is_hub_name = len(directory.parts) == 2 and not directory.is_absolute()
        download = f"; to download it from the hub: hf download {directory} --local-dir DIR"
        raise FileNotFoundError(
            f"load_heads: {directory}: no such folder; expected one with draft heads"
            f"{download if is_hub_name else ''}"
        )
    load = _find_loader(directory)
    if load is None:
        raise FormatError(
            f"{directory}: no draft heads in this folder ({', '.join(head_names())}); expected one "
            f"that save_pretrained of a model with heads or {HEAD_SOURCES}"
            f"{describe_published(directory)}"
        )
    return load(directory)


def describe_published(directory: Path) -> str:
    """Why a folder without heads is no block drafter, for messages; empty without config.json."""
    if not (directory / "config.json").is_file():
        return ""
    try:
        find_format(directory)
    except FormatError as error:
        return f". As a block drafter: {error}"
    return ""


def has_heads(directory: Path) -> bool:
    """Whether `directory` has files of heads, complete or not."""
    return _find_loader(directory) is not None


def has_target(directory: Path) -> bool:
    """Whether `directory` has the config.json of a model, and not that of heads alone."""
    if not (directory / "config.json").is_file() or is_block_drafter(directory):
        return False
    return not any((directory / name).is_file() for name in HEADS_ALONE)


def _find_loader(directory: Path) -> Callable[[Path], Any] | None:
    for extension in _head_formats():
        loader = extension.find_loader(directory)
        if loader is not None:
            return loader
    if (directory / DRAFTER_FOLDER).is_dir():
        return lambda folder: BlockDrafter.from_pretrained(folder / DRAFTER_FOLDER)
    for kind, files in _HEAD_FILES.items():
        if (directory / files.config_name).is_file():
            load: Callable[[Path], SavedHeads] = kind.from_pretrained
            return load
    if is_medusa_checkpoint(directory):
        return load_medusa_heads
    return BlockDrafter.from_pretrained if is_block_drafter(directory) else None


def copy_heads(source: Path, directory: Path) -> None:
    """Writes heads and selector of one folder into another one; heads that are there already stay.

    Raises:
        FormatError: see `load_heads`.
        OSError: the directory cannot be written.
    """
    if has_heads(directory):
        return
    heads = load_heads(source)
    selector = load_selector(source, heads)
    if selector is not None:
        selector.save_pretrained(directory / SELECTOR_FOLDER)
    _save_heads(heads, directory)


def _save_heads(
    heads: SavedHeads,
    directory: Path,
    base: PreTrainedModel | None = None,
) -> None:
    if isinstance(heads, BlockDrafter):
        heads.save_pretrained(directory / DRAFTER_FOLDER)
    else:
        heads.save_pretrained(directory, base)


def load_target(directory: Path, **options: Any) -> PreTrainedModel:
    """A causal LM from local files, with head 1's network if the directory has one.

    Options are passed to `transformers`.

    Raises:
        FormatError: a file is missing, cut or altered.
    """
    try:
        base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            directory, local_files_only=True, **options
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise FormatError(
            f"{directory}: the target model cannot be read ({error}); expected the files that "
            "save_pretrained wrote; save or train the model again"
        ) from error
    load_first_head(base, directory)
    return base
