"""From head logits to drafts: the call that a decoding loop makes.

    score(w) = sum_j z_j[w_j] + alpha * sum_j ln P(w_j | context, w_1 .. w_{j-1})

over all k^H paths of the top-k lattice; the p best are returned (Kim et al. 2024, section 7.2).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np

from lattice_bpd import _core
from lattice_bpd.drafter.drafts import Drafts
from lattice_bpd.lattice import SausageLattice
from lattice_bpd.lattice.logits import check_shape, is_torch_tensor, select_top_k
from lattice_bpd.lm import NGramLM
from lattice_bpd.token_ids import (
    Int32Array,
    Int64Array,
    concatenate,
    is_sequence_of_sequences,
    to_token_ids,
)

_WHERE = "rescore_lattice"


class _Options(TypedDict):
    bos: bool
    num_drafts: int
    alpha: float
    engine: str


_MAX_DRAFTS = 1 << 20  # kMaxDrafts of draft/find_drafts.h


def rescore_lattice(
    head_logits: Any,
    context: Any,
    lm: NGramLM | None,
    *,
    top_k: int = 16,
    num_drafts: int = 16,
    alpha: float = 1.0,
    engine: str = "auto",
    bos: bool = True,
    log_softmax: bool = False,
) -> Drafts:
    """Finds the best drafts through the top-k lattice of the heads.

    Ties are broken by the smaller token id, from left to right, so that the list is the same for
    every engine. Top-k runs where the logits live; only k columns come to the host.

    Args:
        head_logits: (H, V) or (B, H, V) float32, float16 or bfloat16; a numpy array, or a torch
            tensor on any device. Slot 0 guesses the token right behind the context. -inf marks a
            masked token: it is used only in a slot that has nothing else. A
            :class:`SausageLattice` (or a list of them) is taken as it is; top_k is unused then.
        context: The tokens before the lattice: (T,) integers for one lattice, B such sequences of
            any lengths for a batch. May be empty: then the LM starts at ``<s>``.
        lm: The n-gram LM over the same V tokens, or None to rank by the heads alone.
        top_k: k, candidates for each slot, 1..V.
        num_drafts: p, 1 or more.
        alpha: Weight of the LM's natural log probabilities, any sign.
        engine: ``"auto"`` (the fastest exact one), ``"fused"`` or ``"openfst"``.
        bos: Whether ``<s>`` stands before the context.
        log_softmax: Head scores are log probabilities over the vocabulary, else raw logits.

    Returns:
        :class:`Drafts` with token_ids (B, p, H) int32, scores (B, p) float32 and counts (B,)
        int32; B is 1 for a single lattice. Fewer than p paths: padded with -1 and -inf. Torch
        tensors on the logits' device where the logits are a torch tensor, else numpy arrays.

    Raises:
        TypeError: Arguments of the wrong kind or element type.
        ValueError: Wrong shapes or sizes, NaN or +inf, token ids outside the vocabulary, an LM
            of another vocabulary size, or options out of range.
    """
    core_lm = None if lm is None else _core_of(lm)
    options: _Options = {
        "bos": bool(bos),
        "num_drafts": _num_drafts(num_drafts),
        "alpha": _number(alpha),
        "engine": _name(engine),
    }
    lattices = _lattices(head_logits)
    if lattices is not None:
        contexts = _contexts(context, len(lattices), isinstance(head_logits, list), None)
        cores = [lattice._core for lattice in lattices]
        return Drafts(*_core.rescore_sausages(cores, core_lm, *contexts, **options))
    check_shape(head_logits, _WHERE)
    shape = tuple(int(n) for n in head_logits.shape)
    if lm is not None and lm.vocab_size != shape[-1]:
        raise ValueError(
            f"{_WHERE}: head_logits has {shape[-1]} columns, the LM a vocabulary of "
            f"{lm.vocab_size}; use an LM trained with vocab_size={shape[-1]} on this model's "
            "token ids"
        )
    best = select_top_k(head_logits, top_k, log_softmax=log_softmax, where=_WHERE)
    batch = 1 if len(shape) == 2 else shape[0]
    contexts = _contexts(context, batch, len(shape) == 3, shape[-1])
    found = _core.rescore_candidates(best.token_ids, best.scores, core_lm, *contexts, **options)
    if is_torch_tensor(head_logits):
        import torch

        return Drafts(*(torch.from_numpy(array).to(head_logits.device) for array in found))
    return Drafts(*found)


def _num_drafts(value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{_WHERE}: num_drafts is {value!r}; expected an integer") from None
    if not 1 <= number <= _MAX_DRAFTS:
        raise ValueError(f"{_WHERE}: num_drafts is {number}; expected 1..{_MAX_DRAFTS}")
    return number


def _number(alpha: float) -> float:
    try:
        return float(alpha)
    except (TypeError, ValueError):
        raise TypeError(f"{_WHERE}: alpha is {alpha!r}; expected a number") from None


def _name(engine: str) -> str:
    if not isinstance(engine, str):
        raise TypeError(f"{_WHERE}: engine is {engine!r}; expected a name such as 'auto'")
    return engine


def _core_of(lm: NGramLM) -> _core.BackoffLm:
    if not isinstance(lm, NGramLM):
        raise TypeError(
            f"{_WHERE}: lm is a {type(lm).__name__}; expected an NGramLM (NGramLM.load reads one), "
            "or None to rank by the heads alone"
        )
    return lm._core


def _lattices(head_logits: Any) -> Sequence[SausageLattice] | None:
    if isinstance(head_logits, SausageLattice):
        return [head_logits]
    is_list = isinstance(head_logits, list) and len(head_logits) > 0
    if is_list and all(isinstance(item, SausageLattice) for item in head_logits):
        return list(head_logits)
    return None


def _contexts(
    context: Any, batch: int, batched: bool, vocab_size: int | None
) -> tuple[Int32Array, Int64Array]:
    """The contexts one behind the other, and their offsets (batch + 1,)."""
    if not batched:
        if is_sequence_of_sequences(context):
            raise ValueError(
                f"{_WHERE}: context holds several sequences for a single lattice; pass one "
                "sequence of token ids, or head_logits of shape (batch, slots, vocab)"
            )
        one = to_token_ids(context, f"{_WHERE}: context", vocab_size)
        return one, np.array([0, len(one)], np.int64)
    if not hasattr(context, "__len__"):
        raise TypeError(
            f"{_WHERE}: context is a {type(context).__name__}; expected {batch} sequences of "
            "token ids (maybe empty), one for each lattice"
        )
    if len(context) != batch or (batch > 0 and not is_sequence_of_sequences(context)):
        raise ValueError(
            f"{_WHERE}: context has {len(context)} entries for a batch of {batch} lattices; "
            "expected one sequence of token ids (maybe empty) for each"
        )
    return concatenate(
        [
            to_token_ids(row, f"{_WHERE}: context of row {number}", vocab_size)
            for number, row in enumerate(context)
        ]
    )
