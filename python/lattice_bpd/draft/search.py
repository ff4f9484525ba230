"""The checked arguments of a search, in the form that the core takes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd import _core
from lattice_bpd.draft.config import MAX_NODES
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.lattice.device import copy_to_device
from lattice_bpd.lattice.logits import Candidates, check_shape, is_torch_tensor, select_top_k
from lattice_bpd.lattice.sausage import SausageLattice
from lattice_bpd.lm.context import ContextNGram
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import (
    Int32Array,
    Int64Array,
    concatenate,
    is_sequence_of_sequences,
    pack,
    to_token_ids,
)

MAX_DRAFTS = 1 << 12  # as many as nodes of a tree
_MAX_THREADS = 1024  # kMaxThreads of base/parallel.cc


class Search(NamedTuple):
    """Lattices, contexts and LM of one call.

    Attributes:
        lattices: (token ids, scores), both (B, H, k), or (list of the core's sausages,).
        lm: The core's LM, or None.
        contexts: Token ids one behind the other, offsets (B + 1,).
        bos: Whether ``<s>`` stands before the contexts.
        alpha: Weight of the LM.
        threads: Number of threads, 0 for all cores.
        device: The torch device of the logits; None for numpy.
        caches: The core's cache of each lattice, which may be None; or none at all.
    """

    lattices: tuple[Any, ...]
    lm: _core.BackoffLm | None
    contexts: tuple[Int32Array, Int64Array]
    bos: bool
    alpha: float
    threads: int
    device: Any
    caches: list[_core.ContextNgram | None]

    def find_drafts(self, num_drafts: int, engine: str) -> Drafts:
        """The `num_drafts` best paths of each lattice."""
        rescore: Any = (
            _core.rescore_candidates if len(self.lattices) == 2 else _core.rescore_sausages
        )
        found = rescore(
            *self.lattices,
            self.lm,
            *self.contexts,
            self.bos,
            num_drafts,
            self.alpha,
            engine,
            self.threads,
            self.caches,
        )
        drafts = Drafts(*self._on_device(found))
        object.__setattr__(drafts, "_search", self)
        return drafts

    def find_tree(self, where: str, max_nodes: int) -> DraftTree:
        """The `max_nodes` most probable prefixes of each lattice."""
        number = count_of(where, "max_nodes", max_nodes, MAX_NODES)
        find: Any = _core.tree_of_candidates if len(self.lattices) == 2 else _core.tree_of_sausages
        found = find(
            *self.lattices,
            self.lm,
            *self.contexts,
            self.bos,
            number,
            self.alpha,
            self.threads,
            self.caches,
        )
        *nodes, mask, leaf_paths = found
        return DraftTree(*self._on_device((*nodes, mask.view(np.bool_), leaf_paths)))

    def sample_tree(self, where: str, max_nodes: int, noise: tuple[Any, Any, bool, float]) -> Any:
        """Trees drawn with the noise of keys, positions, whether it is the target's, sharpness."""
        number = count_of(where, "max_nodes", max_nodes, MAX_NODES)
        draw: Any = (
            _core.sample_tree_of_candidates
            if len(self.lattices) == 2
            else _core.sample_tree_of_sausages
        )
        return draw(
            *self.lattices,
            self.lm,
            *self.contexts,
            self.bos,
            number,
            self.alpha,
            noise,
            self.threads,
            self.caches,
        )

    def _on_device(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if self.device is None:
            return arrays
        return copy_to_device(arrays, self.device)


def check_search(
    where: str,
    head_logits: Any,
    context: Any,
    lm: NGramLM | None,
    *,
    top_k: int,
    alpha: float,
    bos: bool,
    log_softmax: bool,
    threads: int,
    ngram_cache: ContextNGram | Sequence[ContextNGram | None] | None,
) -> Search:
    """Checks what `rescore_lattice` and `rescore_tree` share, and selects the candidates.

    `where` is the caller's name for error messages; all else is as in `rescore_lattice`. What
    `select_top_k` returned is taken as it is, B contexts beside it.
    """
    core_lm = None if lm is None else core_of(where, lm)
    number = count_of(where, "threads", threads, _MAX_THREADS, least=0)
    weight = number_of(where, "alpha", alpha)
    if isinstance(head_logits, Candidates):
        batch = len(head_logits.token_ids)
        contexts = _contexts(where, context, batch, True, None)
        candidates = (head_logits.token_ids, head_logits.scores)
        caches = caches_of(where, ngram_cache, batch)
        return Search(candidates, core_lm, contexts, bool(bos), weight, number, None, caches)
    sausages = _sausages(head_logits)
    if sausages is not None:
        contexts = _contexts(where, context, len(sausages), isinstance(head_logits, list), None)
        caches = caches_of(where, ngram_cache, len(sausages))
        return Search((sausages,), core_lm, contexts, bool(bos), weight, number, None, caches)
    check_shape(head_logits, where)
    shape = tuple(int(n) for n in head_logits.shape)
    if lm is not None and lm.vocab_size != shape[-1]:
        raise ValueError(
            f"{where}: head_logits has {shape[-1]} columns, the LM a vocabulary of "
            f"{lm.vocab_size}; use an LM trained with vocab_size={shape[-1]} on this model's "
            "token ids"
        )
    best = select_top_k(head_logits, top_k, log_softmax=bool(log_softmax), where=where)
    batch = 1 if len(shape) == 2 else shape[0]
    contexts = _contexts(where, context, batch, len(shape) == 3, shape[-1])
    device = head_logits.device if is_torch_tensor(head_logits) else None
    candidates = (best.token_ids, best.scores)
    caches = caches_of(where, ngram_cache, batch)
    return Search(candidates, core_lm, contexts, bool(bos), weight, number, device, caches)


def count_of(where: str, name: str, value: int, most: int, least: int = 1) -> int:
    """`value` as an int in least..most.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{where}: {name} is {value!r}; expected an integer") from None
    if not least <= number <= most:
        raise ValueError(f"{where}: {name} is {number}; expected {least}..{most}")
    return number


def number_of(where: str, name: str, value: float) -> float:
    """`value` as a float.

    Raises:
        TypeError: It is no number.
        ValueError: It is an integer too large for a float.
    """
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where}: {name} is out of a float's range; expected less") from None
    except (TypeError, ValueError):
        raise TypeError(f"{where}: {name} is {value!r}; expected a number") from None


def engine_of(where: str, engine: str) -> str:
    """The engine's name; whether there is one of that name, the core says.

    Raises:
        TypeError: It is no string.
    """
    if not isinstance(engine, str):
        raise TypeError(f"{where}: engine is {engine!r}; expected a name such as 'auto'")
    return engine


def caches_of(
    where: str, ngram_cache: ContextNGram | Sequence[ContextNGram | None] | None, batch: int
) -> list[_core.ContextNgram | None]:
    """The core's cache of each lattice, or an empty list for no caches.

    Raises:
        TypeError: Something else than caches.
        ValueError: A number of caches other than that of the lattices.
    """
    if ngram_cache is None:
        return []
    if isinstance(ngram_cache, ContextNGram):
        return [ngram_cache._core] * batch
    listed: list[Any] = (
        list(ngram_cache) if isinstance(ngram_cache, (list, tuple)) else [ngram_cache]
    )
    for item in listed:
        if item is not None and not isinstance(item, ContextNGram):
            raise TypeError(
                f"{where}: ngram_cache is a {type(item).__name__}; expected a ContextNGram, "
                "a list with one for each lattice, or None"
            )
    if len(listed) != batch:
        raise ValueError(
            f"{where}: {len(listed)} caches for {batch} lattices; expected one for each (or None "
            "in its place), or a single one for all"
        )
    return [None if item is None else item._core for item in listed]


def _sausages(head_logits: Any) -> list[_core.Sausage] | None:
    """The core's lattices, where the caller brought his own."""
    if isinstance(head_logits, SausageLattice):
        return [head_logits._core]
    is_list = isinstance(head_logits, list) and len(head_logits) > 0
    if is_list and all(isinstance(item, SausageLattice) for item in head_logits):
        return [lattice._core for lattice in head_logits]
    return None


def _contexts(
    where: str, context: Any, batch: int, batched: bool, vocab_size: int | None
) -> tuple[Int32Array, Int64Array]:
    """The contexts one behind the other, and their offsets (batch + 1,)."""
    if not batched:
        return pack([context], vocab_size) or concatenate([context_of(where, context, vocab_size)])
    if isinstance(context, list) and len(context) == batch:
        packed = pack(context, vocab_size)
        if packed is not None:
            return packed
    if not hasattr(context, "__len__"):
        raise TypeError(
            f"{where}: context is a {type(context).__name__}; expected {batch} sequences of "
            "token ids (maybe empty), one for each lattice"
        )
    if len(context) != batch or (batch > 0 and not is_sequence_of_sequences(context)):
        raise ValueError(
            f"{where}: context has {len(context)} entries for a batch of {batch} lattices; "
            "expected one sequence of token ids (maybe empty) for each"
        )
    return pack(list(context), vocab_size) or concatenate(
        [
            to_token_ids(row, f"{where}: context of row {number}", vocab_size)
            for number, row in enumerate(context)
        ]
    )


def context_of(where: str, context: Any, vocab_size: int | None) -> Int32Array:
    """The context of a single lattice, (T,) int32.

    Raises:
        TypeError: Elements that are not integers.
        ValueError: Several sequences, or ids out of range.
    """
    try:
        return to_token_ids(context, f"{where}: context", vocab_size)
    except ValueError:
        if not is_sequence_of_sequences(context):
            raise
    raise ValueError(
        f"{where}: context holds several sequences for a single lattice; pass one "
        "sequence of token ids, or head_logits of shape (batch, slots, vocab)"
    )
