"""The manifest of a record: its model, prompts, options and shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_json

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel

MANIFEST_FILE = "manifest.json"
_FORMAT, _VERSION = "lattice-bpd record", 2  # 2: transitions of the heads


@dataclass(frozen=True)
class Shard:
    """One file of a record.

    Attributes:
        file: its name.
        texts: texts in it.
        steps: recorded positions in it.
        num_bytes: its size.
        sha256: its checksum.
    """

    file: str
    texts: int
    steps: int
    num_bytes: int
    sha256: str


@dataclass
class Manifest:
    """Contents and origin of a record.

    Attributes:
        task: name of the task.
        model: the model's folder, as given.
        model_fingerprint: changes with any weight of target or heads.
        prompts_fingerprint: changes with any token of any prompt.
        vocab_size: V.
        num_slots: H.
        max_positions: of the target; None if its config has no limit.
        top_k: k, the most; heads that give candidates may give fewer.
        max_new_tokens: maximum number of tokens decoded after each prompt.
        stop_token_ids: decoding ends after these.
        num_texts: texts of the finished record.
        texts_per_shard: of all shards but the last.
        tokenizer: the tokenizer's file, as given; None if prompts were token ids.
        shards: in order; None for one that is not written yet.
    """

    task: str
    model: str
    model_fingerprint: str
    prompts_fingerprint: str
    vocab_size: int
    num_slots: int
    max_positions: int | None
    top_k: int
    max_new_tokens: int
    stop_token_ids: list[int]
    num_texts: int
    texts_per_shard: int
    tokenizer: str | None = None
    shards: list[Shard | None] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all shards were written."""
        return all(shard is not None for shard in self.shards)

    @property
    def bytes_per_step(self) -> float:
        """Bytes on disk per recorded position; 0 without any."""
        written = [shard for shard in self.shards if shard is not None]
        steps = sum(shard.steps for shard in written)
        return sum(shard.num_bytes for shard in written) / steps if steps else 0.0

    def differences(self, other: Manifest) -> list[str]:
        """What another record does not share, such as "top_k: 16 there, 8 now"."""
        mine, its = asdict(self), asdict(other)
        names = [name for name in mine if name not in ("shards", "model", "tokenizer")]
        return [f"{n}: {mine[n]} there, {its[n]} now" for n in names if mine[n] != its[n]]

    def save(self, directory: Path) -> None:
        """Write the manifest; an existing one is replaced only when the new one is complete."""
        value = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        value.update(complete=self.complete, bytes_per_step=round(self.bytes_per_step, 1))
        write_json(directory / MANIFEST_FILE, value)


def load_manifest(directory: Path) -> Manifest:
    """The manifest of a record.

    Raises:
        FileNotFoundError: there is none.
        FormatError: another format or version.
    """
    path = directory / MANIFEST_FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; expected the folder of a record; make one with lattice-bpd "
            "record"
        )
    try:
        value = check_header(json.loads(path.read_text(encoding="utf-8")), _FORMAT, _VERSION)
        value.pop("complete"), value.pop("bytes_per_step")
        shards = [None if shard is None else Shard(**shard) for shard in value.pop("shards")]
        return Manifest(**value, shards=shards)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(
            f"{path}: not the manifest of a record ({error!r}); record again into an empty folder"
        ) from error


def fingerprint_prompts(prompts: Sequence[Sequence[int]]) -> str:
    """A hash that changes with any token of any prompt."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(f"{len(prompt)} ".encode())
        digest.update(np.array(prompt, np.int64).tobytes())
    return digest.hexdigest()[:16]


def fingerprint_model(model: DraftingModel) -> str:
    """A hash that changes with any weight of the target, or of heads that are or have modules."""
    import torch

    base: Any = model.target.base
    owner = model.heads_owner
    modules = [base]
    if isinstance(owner, torch.nn.Module):
        modules = [owner] if any(module is base for module in owner.modules()) else [base, owner]
    elif isinstance(drafter := getattr(owner, "drafter", None), torch.nn.Module):
        modules = [base, drafter]
    digest = hashlib.sha256()
    for module in modules:
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
