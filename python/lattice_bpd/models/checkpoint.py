"""Files of heads, in a folder of their own or in that of their target.

    config.json, model.safetensors, ...          the target, as `PreTrainedModel` writes it
    blockwise_heads.safetensors, ..heads.json    BlockwiseHeads (`head_files`), or
    heads.safetensors, heads.json                VocabularyHeads (`head_files`), or
    block_drafter/, ..                           heads of other distributions (`HeadFormat`)

The heads' JSON is written last, renamed from a temporary name, so heads with it are complete.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.extensions import HEAD_FORMATS, TARGET_PARTS, known_extensions, load_extension
from lattice_bpd.models.head_files import SavedHeads
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd.pretrained import Pretrained, find_pretrained

_OWN_HEADS: tuple[type[SavedHeads], ...] = (BlockwiseHeads, VocabularyHeads)


class HeadFormat:
    """Heads of another distribution in folders, by an entry point of `lattice_bpd.head_formats`.

    The entry point has the name of their file, without its suffix, or of their folder.

    Attributes:
        name: of that file, or of the folder with a slash, for messages.
        kind: class of the heads.
    """

    name: str
    kind: type

    def find_loader(self, directory: Path) -> Callable[[Path], Any] | None:
        """What reads the heads in a folder, on the CPU; None: there are none of this format."""
        raise NotImplementedError

    def write(self, heads: Any, directory: Path) -> Any:
        """Write heads of this kind into a folder; remove this format's files for other heads.

        Returns:
            What the core still has to write: the heads if they are of another kind or SavedHeads,
            or None.
        """
        raise NotImplementedError

    def owns_config(self, directory: Path) -> bool:  # noqa: ARG002
        """Whether a folder's config.json is that of such heads, not of a model."""
        return False

    def explain(self, directory: Path) -> str:  # noqa: ARG002
        """Why a folder with a config.json has no heads of this format, for messages; or empty."""
        return ""


def head_names() -> tuple[str, ...]:
    """The files by which folders with heads are known, for messages."""
    own = (kind.files.config_name for kind in _OWN_HEADS)
    return (*own, *(extension.name for extension in _head_formats()))


def _head_formats(directory: Path | None = None) -> list[HeadFormat]:
    """The formats of installed distributions.

    Raises:
        ImportError: `directory` has heads of a distribution that is not installed, or one that is
            cannot be imported.
    """
    known = known_extensions(HEAD_FORMATS)
    return [
        load_extension(HEAD_FORMATS, name)
        for name, is_installed in known.items()
        if is_installed or (directory is not None and _has_traces(directory, name))
    ]


def _has_traces(directory: Path, name: str) -> bool:
    """Whether names of files, or sizes in config.json, are those of a format of heads."""
    config = directory / "config.json"
    return any(directory.glob(f"{name}*")) or (
        config.is_file() and f'"{name}_num_' in config.read_text(errors="replace")
    )


def load_heads(directory: str | Path) -> Any:
    """The heads in a folder, of any kind, on the CPU: for `heads=` of everything that decodes.

    Args:
        directory: one that `save_pretrained` of a model with heads or of heads, or `lattice-bpd
            heads train` wrote, or heads of an installed distribution, such as the Medusa
            checkpoints and block drafters of lattice-bpd-drafters.

    Raises:
        FileNotFoundError: no such folder, such as a hub name that is not downloaded.
        NotADirectoryError: a file.
        FormatError: no heads, or a file is missing, cut, altered or of another format version.
        ImportError: heads of a distribution that is not installed.
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
            "that save_pretrained of a model with heads or `lattice-bpd build --heads` (or "
            "--keep-heads, if it left them out) or `heads train` wrote or, with "
            "lattice-bpd-drafters, a Medusa checkpoint or a block drafter" + _explain(directory)
        )
    return load(directory)


def _explain(directory: Path) -> str:
    """Why a folder with a config.json has no heads, for messages; empty without one."""
    if not (directory / "config.json").is_file():
        return ""
    return "".join(extension.explain(directory) for extension in _head_formats())


def has_heads(directory: Path) -> bool:
    """Whether `directory` has files of heads, complete or not."""
    return _find_loader(directory) is not None


def has_target(directory: Path) -> bool:
    """Whether `directory` has the config.json of a model, and not that of heads alone."""
    if not (directory / "config.json").is_file():
        return False
    return not any(extension.owns_config(directory) for extension in _head_formats())


def _find_loader(directory: Path) -> Callable[[Path], Any] | None:
    for extension in _head_formats(directory):
        loader = extension.find_loader(directory)
        if loader is not None:
            return loader
    return find_own_loader(directory)


def find_own_loader(directory: Path) -> Callable[[Path], Any] | None:
    """What reads the heads of the core's formats in a folder; None: there are none."""
    for kind in _OWN_HEADS:
        if (directory / kind.files.config_name).is_file():
            return kind.from_pretrained
    return None


def save_heads(heads: Any, directory: Path, base: PreTrainedModel | None = None) -> None:
    """Write heads, and remove the files of others."""
    for extension in _head_formats():
        heads = extension.write(heads, directory)
    for kind in _OWN_HEADS:
        for stale in (kind.files.config_name, kind.files.weights_name):
            if not isinstance(heads, kind):
                (directory / stale).unlink(missing_ok=True)
    if isinstance(heads, SavedHeads):
        heads.save_pretrained(directory, base)


def load_target(model: str | Path | Pretrained, **options: Any) -> PreTrainedModel:
    """A causal LM, with the parts of other distributions that its folder has (`TARGET_PARTS`).

    Args:
        model: as `find_pretrained` takes and returns it.
        options: of `AutoModelForCausalLM.from_pretrained`.

    Raises:
        ImportError: something that the model or a part needs is not installed.
        FormatError: a file is missing, cut or altered.
        OSError: the hub does not provide it.
        ValueError: it needs code of its own, without trust_remote_code.
    """
    found = find_pretrained(model, options.pop("trust_remote_code", False))
    base: PreTrainedModel = found.load_model(**options)
    for name in known_extensions(TARGET_PARTS):
        if (found.folder / f"{name}.json").is_file():
            load_extension(TARGET_PARTS, name)(base, found.folder)
    return base


def find_stop_tokens(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """The tokens that end a text: those of the first source that names any.

    The sources are the model's generation config, which `model.generate` reads; its config; and the
    tokenizer's EOS token. Ids that the model cannot generate, such as -1, end no text.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`.
        tokenizer: of transformers.

    Returns:
        Token ids, 0..V-1; none if no source names any.
    """
    config = getattr(model, "config", None)
    text_config = config.get_text_config(decoder=True) if config is not None else None
    for source in (getattr(model, "generation_config", None), config, text_config):
        ends = getattr(source, "eos_token_id", None)
        if ends is not None:
            break
    else:
        ends = getattr(tokenizer, "eos_token_id", None)
    if ends is None:
        return frozenset()
    limit = getattr(text_config, "vocab_size", None)
    ids = {int(token) for token in (ends if isinstance(ends, (list, tuple)) else [ends])}
    return frozenset(token for token in ids if token >= 0 and (limit is None or token < limit))
