"""Candidates of each slot with their scores, and scores of transitions between adjacent slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.lattice.logits import is_torch_tensor, use_torch_threads
from lattice_bpd.token_ids import check_has_values

UnaryScores = Literal["added", "included", "replaced"]
Normalization = Literal["global", "local"]
Float32Array = npt.NDArray[np.float32]

_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class LatticeInput:
    """Candidates of B lattices, with optional transition scores between adjacent slots.

    The score of a path w is

        start(w_1) + sum_j transitions_j(w_{j-1}, w_j) + alpha sum_j ln P(w_j | history)

    plus, where `unary` is "added", sum_j score_j(w_j). Arrays are numpy or torch, all of one kind
    and on one device, float32, float16 or bfloat16.

    Attributes:
        token_ids: (B, H, k) ints, the candidates of each slot, each token once.
        scores: (B, H, k) float, their unary scores; -inf masks a candidate, whose start and
            transitions are not read then.
        start: (B, k) float, scores of slot 0 after the exact token; None together with transitions.
        transitions: (B, H-1, k, k) float; entry [b, j, a, c] scores candidate c of slot j+1 after
            candidate a of slot j. None: the slots are independent.
        unary: "added": the unary scores are added to start and transitions (always so without
            transitions); "included": they are parts of them already; "replaced": the transitions
            were trained without them. In the last two cases `scores` only mask.
        normalization: "global": the score ranks whole paths, as in Kim et al. 2024. "local": each
            row, the LM's term included, is made a distribution over the k candidates by softmax, as
            drafters with transition scores are trained.
        are_log_probs: whether scores are natural logs of probabilities over the whole vocabulary,
            so that those of the candidates of a slot sum to less than 1.
    """

    token_ids: Any
    scores: Any
    start: Any = None
    transitions: Any = None
    unary: UnaryScores = "added"
    normalization: Normalization = "global"
    are_log_probs: bool = False

    def __post_init__(self) -> None:
        """Widens unsigned token ids of torch, for which it has few functions."""
        ids = self.token_ids
        if is_torch_tensor(ids) and str(ids.dtype).startswith("torch.uint"):
            object.__setattr__(self, "token_ids", ids.long())

    @property
    def num_slots(self) -> int:
        """H."""
        return int(self.token_ids.shape[1])

    def fit(self, rows: int, vocab_size: int) -> LatticeInput:
        """The lattices for a target of V tokens: candidates that only the heads have are masked.

        Raises:
            ValueError: not `rows` lattices, negative token ids, or ids of 2 V or above, which no
                padding of the heads' vocabulary explains.
        """
        shape, expected = tuple(self.token_ids.shape), f"({rows}, H, k)"
        if len(shape) != 3 or shape[0] != rows or 0 in shape or tuple(self.scores.shape) != shape:
            raise ValueError(
                f"LatticeInput: token_ids {shape} and scores {tuple(self.scores.shape)}; expected "
                f"both {expected} with one slot and one candidate or more"
            )
        low, high = int(self.token_ids.min()), int(self.token_ids.max())
        if low < 0 or high >= 2 * vocab_size:
            raise ValueError(
                f"LatticeInput: found token id {low if low < 0 else high}; expected 0.."
                f"{vocab_size - 1}; use heads that were trained on this target"
            )
        if high < vocab_size:
            return self
        scores = self.scores + 0
        scores[self.token_ids >= vocab_size] = -math.inf
        return replace(self, scores=scores)

    def to_logits(self, vocab_size: int) -> Any:
        """The unary scores as a tensor (B, H, V) of torch, -inf for all other tokens."""
        import torch

        scores, ids = (
            one if is_torch_tensor(one) else torch.from_numpy(one)
            for one in (self.scores, self.token_ids)
        )
        # the last column is for ids beyond
        logits = scores.new_full((*ids.shape[:2], vocab_size + 1), -math.inf)
        return logits.scatter_(2, ids.long().clamp(max=vocab_size), scores)[..., :vocab_size]

    def cut(self, num_slots: int, top_k: int | None = None) -> LatticeInput:
        """The first slots, and of each the candidates of greatest unary score.

        Args:
            num_slots: slots to keep, 1 or more.
            top_k: candidates to keep of each slot; equal scores: the earlier one. None: all.
        """
        lattice = self
        if num_slots < self.num_slots:
            transitions = None if self.transitions is None else self.transitions[:, : num_slots - 1]
            lattice = replace(
                self, token_ids=self.token_ids[:, :num_slots], scores=self.scores[:, :num_slots],
                transitions=transitions,
            )  # fmt: skip
        is_cut = top_k is not None and top_k < self.token_ids.shape[2]
        return lattice.best_first(top_k) if is_cut else lattice

    def end_after(self, lengths: Sequence[int]) -> LatticeInput:
        """The same lattices with all slots after the first `lengths` of each masked.

        Args:
            lengths: (B,) ints, 0 or more.

        Raises:
            ValueError: not B lengths.
        """
        batch, slots = len(self.token_ids), self.num_slots
        if len(lengths) != batch:
            raise ValueError(
                f"found {len(lengths)} maximum lengths for {batch} lattices; expected one for each"
            )
        if min(lengths, default=slots) >= slots:
            return self
        beyond = np.arange(slots) >= np.asarray(lengths)[:, None]  # (B, H)
        if is_torch_tensor(self.scores):
            mask = self.token_ids.new_tensor(beyond).bool().unsqueeze(-1)
            return replace(self, scores=self.scores.masked_fill(mask, -math.inf))
        masked = self.scores.dtype.type(-math.inf)
        return replace(self, scores=np.where(beyond[..., None], masked, self.scores))

    def best_first(self, top_k: int | None = None) -> LatticeInput:
        """The candidates of each slot by descending unary score.

        Args:
            top_k: candidates to keep of each slot; None: all. Equal scores: the earlier one first.
        """
        if self.transitions is None and bool((self.scores[..., :-1] >= self.scores[..., 1:]).all()):
            return replace(
                self, token_ids=self.token_ids[..., :top_k], scores=self.scores[..., :top_k]
            )
        order = _best(self.scores)[:, :, :top_k]
        start, transitions = self.start, self.transitions
        if transitions is not None:
            start = _take(start, order[:, 0], 1)
            transitions = _take(transitions, order[:, :-1, :, None], 2)
            transitions = _take(transitions, order[:, 1:, None, :], 3)
        token_ids, scores = _take(self.token_ids, order, 2), _take(self.scores, order, 2)
        return replace(
            self, token_ids=token_ids, scores=scores, start=start, transitions=transitions
        )

    def at_temperature(self, temperature: float) -> LatticeInput:
        """The same candidates with scores and transitions divided by a temperature above 0."""
        if temperature == 1.0:
            return self
        divided = {
            name: _to_float32(array) / temperature
            for name, array in self._floats().items()
            if array is not None
        }
        return replace(self, **divided)

    def to_sausages(self, where: str) -> list[_core.Sausage]:
        """The core's lattice of each row; `where` is the caller's name, for error messages.

        Raises:
            TypeError: Arrays of different kinds or devices, or of another element type.
            ValueError: Wrong shapes, a name that is none of the documented ones, NaN or +inf, a
                transition between unmasked candidates that is not finite, or a token id that is
                negative or occurs twice in a slot.
        """
        token_ids, unary, transitions = self._host_arrays(where)
        try:
            return _core.sausages_of(token_ids, np.ascontiguousarray(unary), transitions)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def to_source_scores(
        self, where: str
    ) -> tuple[npt.NDArray[np.int32], Float32Array, Float32Array | None]:
        """Token ids, log probabilities and transitions, as a source of a mixture takes them.

        With transitions the second array has scores, which are normalized after each token; else
        it has log probabilities, of the candidates alone unless `are_log_probs`.

        Raises:
            TypeError, ValueError: as `to_sausages`.
        """
        token_ids, unary, transitions = self._host_arrays(where)
        if transitions is None and not self.are_log_probs:
            top = unary.max(axis=-1, keepdims=True)
            top = np.where(np.isneginf(top), np.float32(0.0), top)  # a masked slot
            with np.errstate(divide="ignore"):
                unary = unary - top - np.log(np.exp(unary - top).sum(axis=-1, keepdims=True))
            unary = np.where(np.isnan(unary), np.float32(-np.inf), unary)
        return token_ids, np.ascontiguousarray(unary, np.float32), transitions

    def _unary_scores(self, scores: Float32Array, start: Float32Array | None) -> Float32Array:
        """The scores of candidates alone, those of slot 0 with `start`."""
        masked = np.isneginf(scores)
        unary = scores if self.unary == "added" else np.where(masked, scores, np.float32(0.0))
        if start is not None:
            first = np.where(masked[:, 0], scores[:, 0], unary[:, 0] + start)
            unary = np.concatenate([first[:, None], unary[:, 1:]], axis=1)
        return unary

    def _floats(self) -> dict[str, Any]:
        return {"scores": self.scores, "start": self.start, "transitions": self.transitions}

    def _check_names(self, where: str) -> None:
        for name, names in (("unary", UnaryScores), ("normalization", Normalization)):
            value = getattr(self, name)
            if value not in get_args(names):
                listed = ", ".join(f'"{one}"' for one in get_args(names))
                raise ValueError(f"{where}: {name} is {value!r}; expected one of {listed}")
        if (self.start is None) != (self.transitions is None):
            missing = "start" if self.start is None else "transitions"
            raise ValueError(
                f"{where}: {missing} is None; expected start (B, k) together with transitions "
                "(B, H-1, k, k), or neither"
            )
        if self.transitions is None and self.unary != "added":
            raise ValueError(
                f'{where}: unary is "{self.unary}" without transitions; expected "added", since '
                "there is nothing that includes or replaces the unary scores"
            )

    def _host_arrays(
        self, where: str
    ) -> tuple[npt.NDArray[np.int32], Float32Array, Float32Array | None]:
        """Token ids, scores of candidates alone, and transitions, checked."""
        self._check_names(where)
        given = {"token_ids": self.token_ids, **self._floats()}
        given = {name: array for name, array in given.items() if array is not None}
        is_torch = is_torch_tensor(self.token_ids)
        for name, array in given.items():
            check_has_values(array, f"{where}: {name}")
            if is_torch_tensor(array) != is_torch or not (
                is_torch or isinstance(array, np.ndarray)
            ):
                raise TypeError(
                    f"{where}: token_ids is a {type(self.token_ids).__name__}, {name} a "
                    f"{type(array).__name__}; expected numpy arrays or torch tensors throughout"
                )
            if is_torch and array.device != self.token_ids.device:
                raise TypeError(
                    f"{where}: token_ids is on {self.token_ids.device}, {name} on {array.device}; "
                    "expected one device"
                )
            _check_element_type(where, name, array)
        self._check_shapes(where, given)
        floats = _to_host({name: array for name, array in given.items() if name != "token_ids"})
        if np.isnan(floats["scores"]).any() or np.isposinf(floats["scores"]).any():
            raise ValueError(
                f"{where}: scores has NaN or +inf; expected numbers, or -inf as a mask"
            )
        unary = self._unary_scores(floats["scores"], floats.get("start"))
        return _to_int32(where, self.token_ids), unary, floats.get("transitions")

    def _check_shapes(self, where: str, given: dict[str, Any]) -> None:
        shape = tuple(self.token_ids.shape)
        if len(shape) != 3 or 0 in shape[1:]:
            raise ValueError(
                f"{where}: token_ids has shape {shape}; expected (batch, slots, k), one slot and "
                "one candidate or more"
            )
        batch, slots, k = shape
        expected = {
            "token_ids": shape, "scores": shape, "start": (batch, k),
            "transitions": (batch, slots - 1, k, k),
        }  # fmt: skip
        for name, array in given.items():
            if tuple(array.shape) != expected[name]:
                raise ValueError(
                    f"{where}: {name} has shape {tuple(array.shape)}; expected {expected[name]} "
                    f"for token_ids of shape {shape}"
                )


def _check_element_type(where: str, name: str, array: Any) -> None:
    dtype = str(array.dtype).removeprefix("torch.")
    if name == "token_ids":
        if not dtype.startswith(("int", "uint")):
            raise TypeError(f"{where}: token_ids has elements of type {dtype}; expected integers")
    elif dtype not in _FLOATS:
        raise TypeError(
            f"{where}: {name} has elements of type {dtype}; expected {', '.join(_FLOATS)}"
        )


def _best(scores: Any) -> Any:
    """Indices of the candidates by descending score."""
    if is_torch_tensor(scores):
        return scores.argsort(dim=-1, descending=True, stable=True)
    return np.argsort(-scores.astype(np.float32), axis=-1, kind="stable")


def _take(array: Any, index: Any, axis: int) -> Any:
    """Elements along an axis; the index is broadcast over axes of size 1."""
    if not is_torch_tensor(array):
        return np.take_along_axis(array, index, axis=axis)
    import torch

    return torch.take_along_dim(array, index, dim=axis)


def _to_float32(array: Any) -> Any:
    return array.float() if is_torch_tensor(array) else array.astype(np.float32)


def _to_host(arrays: dict[str, Any]) -> dict[str, Float32Array]:
    """Arrays as contiguous float32 on the host; from an accelerator in one copy."""
    first = next(iter(arrays.values()))
    if not is_torch_tensor(first):
        return {name: np.ascontiguousarray(one, np.float32) for name, one in arrays.items()}
    if first.device.type == "cpu":
        use_torch_threads()
        return {name: one.detach().float().contiguous().numpy() for name, one in arrays.items()}
    import torch

    flat = torch.cat([one.detach().float().reshape(-1) for one in arrays.values()]).cpu().numpy()
    ends = np.cumsum([one.numel() for one in arrays.values()])
    return {
        name: flat[end - one.numel() : end].reshape(tuple(one.shape))
        for (name, one), end in zip(arrays.items(), ends, strict=True)
    }


def _to_int32(where: str, token_ids: Any) -> npt.NDArray[np.int32]:
    host = token_ids.detach().cpu().numpy() if is_torch_tensor(token_ids) else token_ids
    if host.size and (int(host.max()) > np.iinfo(np.int32).max or int(host.min()) < 0):
        bad = int(host.min()) if int(host.min()) < 0 else int(host.max())
        raise ValueError(f"{where}: token_ids has {bad}; expected ids of a vocabulary, 0 or more")
    return np.ascontiguousarray(host, np.int32)
