"""The checked arguments of a search, converted for the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd import _core
from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.draft.config import MAX_NODES
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates, is_torch_tensor, select_top_k
from lattice_bpd.lattice.sausage import SausageLattice
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import (
    Int32Array,
    Int64Array,
    concatenate,
    is_sequence_of_sequences,
    pack,
    to_token_ids,
)
from lattice_bpd.vocabulary import check_same_ids

MAX_DRAFTS = 1 << 12  # as many as nodes of a tree
_MAX_THREADS = 1024  # kMaxThreads of base/parallel.cc


class Search(NamedTuple):
    """Lattices, contexts and LM of one call.

    Attributes:
        lattices: (token ids, scores), both (B, H, k), or a list of the core's sausages.
        lm: The core's LM, or None.
        contexts: Concatenated token ids, offsets (B + 1,).
        bos: Whether the contexts start with ``<s>``.
        alpha: Weight of the LM.
        threads: Number of threads, 0 for all cores.
        device: The torch device of the logits; None for numpy.
        normalization: "global" or "local".
    """

    lattices: Any
    lm: _core.BackoffLm | None
    contexts: tuple[Int32Array, Int64Array]
    bos: bool
    alpha: float
    threads: int
    device: Any
    normalization: str = "global"

    def find_drafts(self, num_drafts: int, engine: str) -> Drafts:
        """The `num_drafts` best paths of each lattice."""
        arrays = _core.rescore(
            self.lattices, self.lm, *self.contexts, self.bos, num_drafts, self.alpha, engine,
            self.threads, self.normalization,
        )  # fmt: skip
        return Drafts(*self._on_device(arrays))

    def find_chains(self, is_walk: bool) -> Drafts:
        """The draft of greatest expected accept length of each lattice, or its greedy walk."""
        outputs = _core.find_chains(
            self.lattices, self.lm, *self.contexts, self.bos, self.alpha, self.threads, is_walk,
            self.normalization,
        )  # fmt: skip
        return Drafts(*self._on_device(outputs))

    def find_tree(self, where: str, max_nodes: int) -> DraftTree:
        """The `max_nodes` most probable prefixes of each lattice."""
        number = check_int(f"{where}: max_nodes", max_nodes, 1, MAX_NODES)
        *nodes, mask, leaf_paths = _core.find_trees(
            self.lattices, self.lm, *self.contexts, self.bos, number, self.alpha, self.threads,
            self.normalization,
        )  # fmt: skip
        return DraftTree(*self._on_device((*nodes, mask.view(np.bool_), leaf_paths)))

    def sample_tree(self, where: str, max_nodes: int, noise: tuple[Any, Any, bool, float]) -> Any:
        """Sampled trees; noise is (keys, positions, whether it is the target's, sharpness)."""
        number = check_int(f"{where}: max_nodes", max_nodes, 1, MAX_NODES)
        return _core.sample_trees(
            self.lattices, self.lm, *self.contexts, self.bos, number, self.alpha, noise,
            self.threads, self.normalization,
        )  # fmt: skip

    def _on_device(self, arrays: Sequence[Any]) -> Sequence[Any]:
        if self.device is None:
            return arrays
        import torch

        return [torch.from_numpy(array).to(self.device) for array in arrays]


def check_search(
    where: str,
    head_logits: Any,
    context: Any,
    lm: NGramLM | None,
    *,
    top_k: int,
    alpha: float,
    temperature: float,
    bos: bool,
    log_softmax: bool,
    threads: int,
) -> Search:
    """Checks what `rescore_lattice` and `rescore_tree` share, and selects the candidates.

    `where` is the caller's name for error messages; the other arguments are as in
    `rescore_lattice`. The output of `select_top_k` is accepted too, with B contexts.
    """
    core_lm = None if lm is None else core_of(where, lm)
    number = check_int(f"{where}: threads", threads, 0, _MAX_THREADS)
    divisor = check_number(f"{where}: temperature", temperature, positive=True)
    weight = check_number(f"{where}: alpha", alpha) / divisor
    batched, vocab_size, normalization = True, None, "global"
    given = head_logits if isinstance(head_logits, list) else [head_logits]
    lattices: Any
    if given and all(isinstance(one, SausageLattice) for one in given):
        lattices = [one._core.at_temperature(divisor) for one in given]
        batch, batched = len(lattices), isinstance(head_logits, list)
    elif isinstance(head_logits, LatticeInput):
        lattices = head_logits.at_temperature(divisor).to_sausages(where)
        batch, normalization = len(lattices), head_logits.normalization
    else:
        best = head_logits
        if not isinstance(head_logits, Candidates):
            best = select_top_k(
                head_logits, top_k, log_softmax=bool(log_softmax), where=where, threads=number
            )
            batched, vocab_size = len(head_logits.shape) == 3, int(head_logits.shape[-1])
            if lm is not None:
                check_same_ids(where, "LM", lm.vocab_size, vocab_size)
        best = best.at_temperature(divisor)
        lattices, batch = (best.token_ids, best.scores), len(best.token_ids)
    arrays = head_logits.token_ids if isinstance(head_logits, LatticeInput) else head_logits
    device = arrays.device if is_torch_tensor(arrays) else None
    contexts = contexts_of(where, context, batch, batched, vocab_size)
    return Search(lattices, core_lm, contexts, bool(bos), weight, number, device, normalization)


def contexts_of(
    where: str, context: Any, batch: int, batched: bool, vocab_size: int | None
) -> tuple[Int32Array, Int64Array]:
    """The concatenated contexts, and their offsets (batch + 1,)."""
    if not batched:
        return pack([context], vocab_size) or concatenate([context_of(where, context, vocab_size)])
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
