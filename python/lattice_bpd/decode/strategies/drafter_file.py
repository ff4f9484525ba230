"""drafter.json: the drafting options that `lattice-bpd tune` chose for a model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_json
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.model_sizes import ModelSizes
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.strategies.registry import DraftSources, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.models.checkpoint import load_target

_FORMAT, _VERSION = "lattice-bpd drafter", 1
_STRATEGIES = ("greedy", "bpd", "neural", "p_best", "chain", "tree")
_HINT = "make one with lattice-bpd tune"
_OPTIONS = (
    "strategy", "top_k", "num_drafts", "max_nodes", "alpha", "temperature", "head_scales",
    "entropy_weight",
)  # fmt: skip


@dataclass(frozen=True)
class DrafterFile:
    """The content of drafter.json; in the file the fields of `config` are on the top level.

    Attributes:
        config: strategy and options.
        vocab_size: V of the target.
        num_slots: H of the heads.
        lm: None, or the LM's "file", "order" and "vocab_size"; of "neural" no order, and the folder
            of a causal LM as "file".
        predicted: the figures that tuning predicted, for information only.
    """

    config: DraftConfig
    vocab_size: int
    num_slots: int
    lm: dict[str, Any] | None = None
    predicted: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for invalid values."""
        if self.config.strategy not in _STRATEGIES:
            raise ValueError(
                f"strategy is {self.config.strategy!r}; expected one of {', '.join(_STRATEGIES)}"
            )
        for name in ("vocab_size", "num_slots"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; expected a whole number, 1 or more")
        if self.lm is not None and not isinstance(self.lm, dict):
            raise ValueError(f"lm is {self.lm!r}; expected null or an object")
        scales = self.config.head_scales
        if scales is not None and len(scales) != self.num_slots:
            raise ValueError(f"{len(scales)} head_scales; expected {self.num_slots}, one per slot")

    def save(self, path: str | Path) -> None:
        """Write the file atomically.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        config = {name: getattr(self.config, name) for name in _OPTIONS}
        other_fields = asdict(self)
        del other_fields["config"]
        value = {"format": _FORMAT, "version": _VERSION, **config, **other_fields}
        write_json(path, value)


def read_drafter_file(path: str | Path) -> DrafterFile:
    """The contents of a drafter.json.

    Raises:
        OSError: it cannot be read.
        FormatError: not a drafter.json: an unknown or missing field, or a value out of range.
    """
    path = Path(path)
    try:
        value = check_header(json.loads(path.read_text(encoding="utf-8")), _FORMAT, _VERSION)
        known = [*_OPTIONS, *(one.name for one in fields(DrafterFile) if one.name != "config")]
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise ValueError(f"unknown fields {', '.join(unknown)}; expected {', '.join(known)}")
        if value.get("head_scales") is not None:
            value["head_scales"] = tuple(value["head_scales"])
        options = {name: value.pop(name) for name in _OPTIONS if name in value}
        return DrafterFile(DraftConfig(**options), **value)
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: not a drafter.json ({error}); {_HINT}") from error


def load_drafter(path: str | Path, lm: NGramLM | NeuralScorer | None = None) -> Drafter:
    """The drafter of a drafter.json, for `generate(..., drafter=)`.

    Decoding raises a ValueError if the target has another vocabulary than the tuned model, or more
    slots; strategy "greedy" works with any target.

    Args:
        path: of the file.
        lm: n-gram LM that it was tuned with, or NeuralScorer(model) for "neural"; None: read from
            its recorded path, if one is needed.

    Returns:
        Drafter.

    Raises:
        OSError: the file cannot be read.
        FormatError: it is no drafter.json.
        ValueError: its LM cannot be found, or has another vocabulary.
    """
    file = read_drafter_file(path)
    if file.lm is None:
        lm = None
    elif lm is None:
        lm = find_lm(file, Path(path))
    if lm is not None and lm.vocab_size != file.vocab_size:
        raise ValueError(
            f"load_drafter: the LM has a vocabulary of {lm.vocab_size}, {path} is for one of "
            f"{file.vocab_size}; give the LM that it was tuned with"
        )
    drafter: Any = make_drafter(file.config, DraftSources(lm))
    if file.config.strategy != "greedy":
        drafter.model_sizes = ModelSizes(file.vocab_size, file.num_slots, str(path))
    return cast(Drafter, drafter)


def find_lm(file: DrafterFile, path: Path) -> NGramLM | NeuralScorer:
    """The LM that a drafter was tuned with: at its recorded path, or next to drafter.json.

    Args:
        file: contents of drafter.json, with an LM.
        path: of drafter.json.

    Raises:
        FormatError: the LM's file is damaged.
        ValueError: the LM's file is missing.
    """
    name, is_neural = str((file.lm or {}).get("file") or ""), file.config.strategy == "neural"
    for candidate in (Path(name), path.parent / name, path.parent / Path(name).name):
        if name and is_neural and candidate.is_dir():
            return NeuralScorer(load_target(candidate, dtype=torch.float32))
        if name and not is_neural and candidate.is_file():
            return NGramLM.load(candidate)
    needed = ("a rescorer", "NeuralScorer(model)") if is_neural else (
        "an n-gram LM", "NGramLM.load(path)"
    )  # fmt: skip
    raise ValueError(
        f"load_drafter: {path} needs {needed[0]} and {name or 'its file'} is not there; give "
        f"lm={needed[1]}"
    )
