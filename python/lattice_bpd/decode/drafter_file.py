"""A drafter.json, which `build` and `tune` write, and its drafter."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.atomic_files import check_header, write_json
from lattice_bpd.decode.drafters.drafter import Drafter, ModelSizes
from lattice_bpd.decode.drafters.neural_scorer import NeuralScorer
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import STRATEGIES, DraftConfig, find_drafter_file
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.scorers.mixture import MixtureScorer
from lattice_bpd.draft.scorers.protocol import TransitionScorer, vocab_size_of
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.vocabulary import check_same_ids

_FORMAT, _VERSION = "lattice-bpd drafter", 1
_HINT = "make one with lattice-bpd build"
_NGRAM, _RESCORER = "an n-gram LM", "a rescorer"
_OPTIONS = tuple(one.name for one in fields(DraftConfig))


@dataclass(frozen=True)
class DrafterFile:
    """The content of drafter.json; in the file the fields of `config` are on the top level.

    Attributes:
        config: strategy and options.
        vocab_size: V of the target.
        num_slots: H of the heads; 0 for "mixture" without heads.
        lm: None, or the LM's "file", "order" and "vocab_size"; of "neural" no order, and the folder
            of a causal LM as "file".
        predicted: the figures that tuning predicted, for information only.
        ngram_lm: None, or for "neural" an n-gram LM that is added to `lm`: its "file", "order",
            "vocab_size" and "weight" w; drafts are scored by ln P of `lm` + w ln P of this one.
        lms: the n-gram LMs of "mixture": "file", "order" and "vocab_size" of each.
        gates: `Gates.to_dict` of "mixture", for several lists of sources; none: the defaults.
    """

    config: DraftConfig
    vocab_size: int
    num_slots: int
    lm: dict[str, Any] | None = None
    predicted: dict[str, Any] = field(default_factory=dict)
    ngram_lm: dict[str, Any] | None = None
    lms: Sequence[dict[str, Any]] = ()
    gates: Any = None

    def __post_init__(self) -> None:
        """Raise ValueError for invalid values."""
        known = [name for name in STRATEGIES if name != "draft_model"]
        if self.config.strategy not in known:
            raise ValueError(
                f"strategy is {self.config.strategy!r}; expected one of {', '.join(known)}"
            )
        is_mixture = self.config.strategy == "mixture"
        for name in ("vocab_size", "num_slots"):
            least = 0 if is_mixture and name == "num_slots" else 1
            check_int(name, getattr(self, name), least)
        if not isinstance(self.lms, (list, tuple)) or not all(
            isinstance(one, dict) for one in self.lms
        ):
            raise ValueError(f"lms is {self.lms!r}; expected a list of objects")
        for name in ("lms", "gates"):
            if getattr(self, name) and not is_mixture:
                raise ValueError(
                    f"{name} with strategy {self.config.strategy!r}; expected 'mixture'"
                )
        Gates.read(self.gates)
        for name in ("lm", "ngram_lm"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"{name} is {value!r}; expected null or an object")
        if self.ngram_lm is not None:
            self._check_mixture(self.ngram_lm)

    def _check_mixture(self, ngram_lm: Mapping[str, Any]) -> None:
        if self.config.strategy != "neural" or self.lm is None:
            found = f"strategy {self.config.strategy!r}" if self.lm is not None else "no lm"
            raise ValueError(
                f"ngram_lm with {found}; expected strategy 'neural' and its rescorer as lm, to "
                "which ngram_lm is added"
            )
        check_number("weight of ngram_lm", ngram_lm.get("weight"))

    def save(self, path: str | Path) -> None:
        """Write the file atomically.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        config = {name: value for name, value in asdict(self.config).items() if value is not None}
        other_fields = asdict(self)
        del other_fields["config"]
        value = {"format": _FORMAT, "version": _VERSION, **config, **other_fields}
        if self.config.strategy != "mixture":
            del value["lms"], value["gates"]
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
        if isinstance(value.get("lms"), list):
            value["lms"] = tuple(value["lms"])
        options = {name: value.pop(name) for name in _OPTIONS if name in value}
        return DrafterFile(DraftConfig(**options), **value)
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: not a drafter.json ({error}); {_HINT}") from error


def load_drafter(
    path: str | Path, lm: NGramLM | TransitionScorer | Sequence[NGramLM] | None = None
) -> Drafter:
    """The drafter of a drafter.json, for `generate(..., drafter=)`.

    The heads of a "mixture", where it has some, are those of the model or of `heads=`:
    `generate(model, ids, load_drafter(folder), heads=load_heads(folder))`.

    Decoding raises a ValueError if the target has another vocabulary than the tuned model, or more
    slots; strategy "greedy" works with any target.

    Args:
        path: of the file, or of the folder that `lattice-bpd build` or `tune -o FOLDER` wrote.
        lm: n-gram LM that it was tuned with, or NeuralScorer(model) for "neural", or for a file
            with an `ngram_lm` the mixture of both, MixtureScorer([(NeuralScorer(model), 1),
            (NGramLM.load(path), weight)]), or the list of LMs of a "mixture"; None: read from the
            recorded paths, if one is needed.

    Returns:
        Drafter.

    Raises:
        OSError: the file cannot be read.
        FormatError: it is no drafter.json.
        ValueError: its LM cannot be found, or has another vocabulary.
    """
    path = find_drafter_file(path)
    file = read_drafter_file(path)
    if file.config.strategy == "mixture":
        sources = _mixture_sources(file, path, lm)
    else:
        if file.lm is None:
            lm = None
        elif lm is None:
            lm = find_lm(file, path)
        sources = DraftSources(lm)
    for one in sources.lm if isinstance(sources.lm, list) else [sources.lm]:
        size = vocab_size_of(one)
        if size is not None:
            check_same_ids(f"load_drafter: {path}", "LM", size, file.vocab_size)
    drafter: Any = make_drafter(file.config, sources)
    if file.config.strategy != "greedy":
        slots = file.num_slots or sys.maxsize  # without heads those of the model are not used
        drafter.model_sizes = ModelSizes(file.vocab_size, slots, str(path))
    return cast(Drafter, drafter)


def _mixture_sources(file: DrafterFile, path: Path, lm: Any) -> DraftSources:
    """The LMs, gates and heads of a mixture."""
    if lm is None:
        hint = "[NGramLM.load(path), ..]"
        lms = [NGramLM.load(_find_file(about, path, _NGRAM, hint)) for about in file.lms]
    else:
        lms = list(lm) if isinstance(lm, (list, tuple)) else [lm]
    if len(lms) != len(file.lms):
        raise ValueError(
            f"load_drafter: found {len(lms)} LMs; {path} is for {len(file.lms)}; give those that "
            "it was built with"
        )
    return DraftSources(lms, has_heads=file.num_slots > 0, gates=Gates.read(file.gates))


def find_lm(file: DrafterFile, path: Path) -> NGramLM | TransitionScorer:
    """What a drafter was tuned with: at its recorded path, or next to drafter.json.

    Args:
        file: contents of drafter.json, with an LM.
        path: of drafter.json.

    Returns:
        NGramLM; for "neural" a NeuralScorer, or with an `ngram_lm` the MixtureScorer of both.

    Raises:
        FormatError: a file is damaged.
        ValueError: a file is missing, or the parts of a mixture have other vocabularies.
    """
    if file.config.strategy != "neural":
        return NGramLM.load(_find_file(file.lm, path, _NGRAM, "NGramLM.load(path)"))
    lm, hint = None, "NeuralScorer(model)"
    if file.ngram_lm is not None:
        weight = float(file.ngram_lm["weight"])
        hint = f"MixtureScorer([({hint}, 1), (NGramLM.load(path), {weight:g})])"
        lm = NGramLM.load(_find_file(file.ngram_lm, path, _NGRAM, hint))
    folder = _find_file(file.lm, path, _RESCORER, hint)
    scorer = NeuralScorer(load_target(folder, dtype=torch.float32))
    return scorer if lm is None else MixtureScorer([(scorer, 1.0), (lm, weight)])


def _find_file(about: dict[str, Any] | None, path: Path, kind: str, hint: str) -> Path:
    """The file of an n-gram LM or the folder of a rescorer."""
    name = str((about or {}).get("file") or "")
    is_there = Path.is_dir if kind == _RESCORER else Path.is_file
    for candidate in (Path(name), path.parent / name, path.parent / Path(name).name):
        if name and is_there(candidate):
            return candidate
    raise ValueError(
        f"load_drafter: {path} needs {kind} and {name or 'its file'} is not there; give lm={hint}"
    )
