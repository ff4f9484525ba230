"""drafter.json: how to draft for one model, as `lattice-bpd tune` found it, and its drafter."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd._core import FormatError
from lattice_bpd.decode.drafters.basic import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
)
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.decode.drafters.tree import TreeDrafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.lm.ngram import NGramLM

_FORMAT, _VERSION = "lattice-bpd drafter", 1
_STRATEGIES = ("greedy", "bpd", "p_best", "tree")
_HINT = "make one with lattice-bpd tune"

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DrafterFile:
    """What drafter.json holds.

    Attributes:
        strategy: "greedy", "bpd", "p_best" or "tree"; see `generate`.
        vocab_size: V of the target.
        num_slots: H of the heads.
        lm: None, or the LM's "file", "order" and "vocab_size".
        top_k: k.
        num_drafts: p of "p_best".
        max_nodes: N of "tree".
        alpha: weight of the LM.
        temperature: of "tree".
        head_scales: H factors of the heads' scores, above 0; None for none. alpha divided by a
            head's factor is that head's own weight of the LM.
        entropy_weight: see `weigh_heads`.
        predicted: what tuning expected of it, for people.
    """

    strategy: str
    vocab_size: int
    num_slots: int
    lm: dict[str, Any] | None = None
    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int = 36
    alpha: float = 0.5
    temperature: float = 1.0
    head_scales: tuple[float, ...] | None = None
    entropy_weight: float = 0.0
    predicted: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be drafted with."""
        if self.strategy not in _STRATEGIES:
            raise ValueError(
                f"strategy is {self.strategy!r}; expected one of {', '.join(_STRATEGIES)}"
            )
        for name in ("vocab_size", "num_slots", "top_k", "num_drafts", "max_nodes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; expected a whole number, 1 or more")
        for name in ("alpha", "entropy_weight"):
            _check_number(name, getattr(self, name), above=-math.inf)
        _check_number("temperature", self.temperature, above=0.0)
        if self.lm is not None and not isinstance(self.lm, dict):
            raise ValueError(f"lm is {self.lm!r}; expected null or an object")
        if self.head_scales is not None:
            if len(self.head_scales) != self.num_slots:
                raise ValueError(
                    f"{len(self.head_scales)} head_scales; expected {self.num_slots}, one a slot"
                )
            for scale in self.head_scales:
                _check_number("head_scales", scale, above=0.0)

    @property
    def weighs_heads(self) -> bool:
        """Whether the heads' scores are changed before the search."""
        return self.head_scales is not None or self.entropy_weight != 0.0

    def save(self, path: str | Path) -> None:
        """Write the file; an old one stays until the new one is complete.

        Raises:
            OSError: it cannot be written.
        """
        path = Path(path)
        value = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        temporary = path.with_name(f".{path.name}")
        try:
            temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def read_drafter_file(path: str | Path) -> DrafterFile:
    """The contents of a drafter.json.

    Raises:
        OSError: it cannot be read.
        FormatError: no such file's contents: an unknown or missing field, or a value out of range.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise TypeError("expected an object")
        found = (value.pop("format", None), value.pop("version", None))
        if found != (_FORMAT, _VERSION):
            raise ValueError(f"format and version are {found}; expected {(_FORMAT, _VERSION)}")
        known = [one.name for one in fields(DrafterFile)]
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise ValueError(f"unknown fields {', '.join(unknown)}; expected {', '.join(known)}")
        if value.get("head_scales") is not None:
            value["head_scales"] = tuple(value["head_scales"])
        return DrafterFile(**value)
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: not a drafter.json ({error}); {_HINT}") from error


def load_drafter(path: str | Path, lm: NGramLM | None = None) -> Drafter:
    """The drafter of a drafter.json, for `generate(..., drafter=)`.

    Args:
        path: of the file.
        lm: n-gram LM that it was tuned with; None: read from where it was then, if it needs one.

    Returns:
        Drafter.

    Raises:
        OSError: the file cannot be read.
        FormatError: it is no drafter.json.
        ValueError: its LM is not to be found, or has another vocabulary.
    """
    file = read_drafter_file(path)
    if file.lm is None:
        lm = None
    elif lm is None:
        lm = _find_lm(file, Path(path))
    if lm is not None and lm.vocab_size != file.vocab_size:
        raise ValueError(
            f"load_drafter: the LM has a vocabulary of {lm.vocab_size}, {path} is for one of "
            f"{file.vocab_size}; give the LM that it was tuned with"
        )
    if file.weighs_heads and file.strategy in ("p_best", "tree"):
        return WeighedDrafter(file, lm)
    if file.strategy == "tree":
        return TreeDrafter(
            lm, top_k=file.top_k, max_nodes=file.max_nodes, alpha=file.alpha,
            temperature=file.temperature,
        )  # fmt: skip
    if file.strategy == "p_best":
        return LatticeDrafter(
            lm, top_k=file.top_k, num_drafts=file.num_drafts, alpha=file.alpha
        )  # fmt: skip
    return BlockDrafter() if file.strategy == "bpd" else NoDrafter()


def weigh_heads(
    scores: Float32Array, head_scales: Sequence[float] | None, entropy_weight: float
) -> Float32Array:
    """Scores of heads that are trusted more or less than others.

    Args:
        scores: (.., H, k) float32, raw logits of the candidates; -inf masks.
        head_scales: H factors or more, above 0; None for ones.
        entropy_weight: w; a slot's scores are multiplied by exp(-w e), e being the entropy of the
            softmax over its candidates divided by ln k, 0..1. Above 0 unsure heads count less.

    Returns:
        (.., H, k) float32; the rank of a slot's candidates stays.
    """
    slots, top_k = scores.shape[-2:]
    scales = np.ones(slots) if head_scales is None else np.asarray(head_scales[:slots])
    factors = np.broadcast_to(scales, scores.shape[:-1])
    if entropy_weight != 0.0 and top_k > 1:
        best = scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores.astype(np.float64) - np.where(np.isfinite(best), best, 0.0))
        total = weights.sum(axis=-1, keepdims=True)
        shares = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
        factors = factors * np.exp(entropy_weight * (shares * logs).sum(axis=-1) / math.log(top_k))
    return np.asarray(scores * factors[..., None], np.float32)


class WeighedDrafter(Drafter):
    """Lists or trees over heads' scores that `weigh_heads` has changed.

    Args:
        file: strategy "p_best" or "tree" and its numbers.
        lm: n-gram LM, or None: heads alone.
    """

    def __init__(self, file: DrafterFile, lm: NGramLM | None) -> None:
        self.file, self.lm = file, lm

    def propose(self, state: DecodeState) -> Drafts | DraftTree:
        """(1, p, num_slots) token ids, or a tree of (1, N) nodes.

        Raises:
            ValueError: heads or a target of another shape than the file's.
        """
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> Drafts | DraftTree:
        """(B, p, H) token ids, or a tree of (B, N) nodes."""
        file, model = self.file, states[0].model
        logits = batch_head_logits(states)
        if model.vocab_size != file.vocab_size or logits.shape[1] > file.num_slots:
            raise ValueError(
                f"WeighedDrafter: the target has a vocabulary of {model.vocab_size} and "
                f"{logits.shape[1]} slots, drafter.json is for {file.vocab_size} and "
                f"{file.num_slots}; tune for this model: lattice-bpd tune"
            )
        with states[0].stats.stage("top_k"):
            found = select_top_k(logits, file.top_k, log_softmax=False, where="WeighedDrafter")
        reach = 1 if self.lm is None else self.lm.order
        contexts = [state.tokens[-reach:] for state in states]
        with states[0].stats.stage("rescore"):
            scores = weigh_heads(found.scores, file.head_scales, file.entropy_weight)
            found = Candidates(found.token_ids, scores)
            if file.strategy == "p_best":
                return rescore_lattice(
                    found, contexts, self.lm, num_drafts=file.num_drafts, alpha=file.alpha
                )
            found = found.at_temperature(file.temperature)
            return rescore_tree(
                found, contexts, self.lm, max_nodes=file.max_nodes,
                alpha=file.alpha / file.temperature,
            )  # fmt: skip


def _find_lm(file: DrafterFile, path: Path) -> NGramLM:
    """The LM where it was tuned with, or beside drafter.json."""
    name = str((file.lm or {}).get("file") or "")
    for place in (Path(name), path.parent / name, path.parent / Path(name).name):
        if name and place.is_file():
            return NGramLM.load(place)
    raise ValueError(
        f"load_drafter: {path} needs an n-gram LM and {name or 'its file'} is not there; give "
        "lm=NGramLM.load(path)"
    )


def _check_number(name: str, value: Any, *, above: float) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= above:
        more = " above 0" if above == 0.0 else ""
        raise ValueError(f"{name} is {value!r}; expected a finite number{more}")
