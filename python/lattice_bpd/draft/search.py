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
from lattice_bpd.draft.search_options import contexts_of
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import (
    Candidates,
    check_shape,
    is_torch_tensor,
    select_top_k,
)
from lattice_bpd.lattice.sausage import SausageLattice
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import Int32Array, Int64Array
from lattice_bpd.vocabulary import may_share_ids

MAX_DRAFTS = 1 << 12  # as many as nodes of a tree
_MAX_THREADS = 1024  # kMaxThreads of base/parallel.cc
_STATES_HINT = (
    "; if these are hidden states of BlockwiseHeads, apply the model's output embedding first"
)


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
        *arrays, log_probs = self._on_device(outputs)
        drafts = Drafts(*arrays)
        object.__setattr__(drafts, "_prefix_log_probs", log_probs)
        return drafts

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
    if isinstance(head_logits, Candidates):
        batch = len(head_logits.token_ids)
        contexts = contexts_of(where, context, batch, True, None)
        best = head_logits.at_temperature(divisor)
        candidates = (best.token_ids, best.scores)
        return Search(candidates, core_lm, contexts, bool(bos), weight, number, None)
    if isinstance(head_logits, LatticeInput):
        lattices = head_logits.at_temperature(divisor).to_sausages(where)
        contexts = contexts_of(where, context, len(lattices), True, None)
        ids = head_logits.token_ids
        device = ids.device if is_torch_tensor(ids) else None
        return Search(
            lattices, core_lm, contexts, bool(bos), weight, number, device,
            head_logits.normalization,
        )  # fmt: skip
    sausages = _sausages(head_logits)
    if sausages is not None:
        contexts = contexts_of(where, context, len(sausages), isinstance(head_logits, list), None)
        if divisor != 1.0:
            sausages = [sausage.at_temperature(divisor) for sausage in sausages]
        return Search(sausages, core_lm, contexts, bool(bos), weight, number, None)
    check_shape(head_logits, where)
    shape = tuple(int(n) for n in head_logits.shape)
    if lm is not None and not may_share_ids(lm.vocab_size, shape[-1]):
        raise ValueError(
            f"{where}: head_logits has {shape[-1]} columns, the LM a vocabulary of "
            f"{lm.vocab_size}; use an LM trained with vocab_size={shape[-1]} on this model's "
            f"token ids{_STATES_HINT if is_torch_tensor(head_logits) else ''}"
        )
    best = select_top_k(
        head_logits, top_k, log_softmax=bool(log_softmax), where=where, threads=number
    )
    best = best.at_temperature(divisor)
    batch = 1 if len(shape) == 2 else shape[0]
    contexts = contexts_of(where, context, batch, len(shape) == 3, shape[-1])
    device = head_logits.device if is_torch_tensor(head_logits) else None
    candidates = (best.token_ids, best.scores)
    return Search(candidates, core_lm, contexts, bool(bos), weight, number, device)


def _sausages(head_logits: Any) -> list[_core.Sausage] | None:
    """The core's lattices, if the caller passed lattices instead of logits."""
    if isinstance(head_logits, SausageLattice):
        return [head_logits._core]
    is_list = isinstance(head_logits, list) and len(head_logits) > 0
    if is_list and all(isinstance(item, SausageLattice) for item in head_logits):
        return [lattice._core for lattice in head_logits]
    return None
