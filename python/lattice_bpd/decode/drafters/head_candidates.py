"""Head logits of all sequences, the candidates of each slot, and searches of their lattices."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import MAX_NODES, DraftConfig, check_used
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.search import search_trees
from lattice_bpd.vocabulary import check_same_ids

_SPARE = 3  # searched nodes / kept nodes, where a constraint depends on the path


def batch_head_logits(states: Sequence[DecodeState], *, all_slots: bool = False) -> torch.Tensor:
    """Head logits of all states in one call of the heads.

    Returns:
        (B, H, V) float; H is the largest number of slots that any state may use, or all slots.
        Heads that return candidates have -inf for all other tokens.
    """
    outputs = _read_heads(states, all_slots=all_slots)
    return (
        outputs.to_logits(states[0].model.vocab_size)
        if isinstance(outputs, LatticeInput)
        else outputs
    )


def _read_heads(
    states: Sequence[DecodeState], *, all_slots: bool = False, top_k: int | None = None
) -> torch.Tensor | LatticeInput:
    """The heads' output, with as many slots as any of the states may use, or all.

    `top_k`: most candidates to keep of each slot, where the heads return candidates; None: all.
    """
    first, start = states[0], time.perf_counter()
    outputs = first.model.read_heads(states)
    slots = sys.maxsize if all_slots else max(state.num_slots for state in states)
    outputs = outputs.cut(slots, top_k) if isinstance(outputs, LatticeInput) else outputs[:, :slots]
    first.stats.lap("heads", start)
    return outputs


class HeadCandidates(NamedTuple):
    """The candidates of the heads, as sources of a mixture.

    Attributes:
        token_ids: (B, H, k) int32.
        log_probs: (B, H, k) float32, natural logs of the heads' probabilities; -inf masks. With
            transitions scores, since the distribution of a slot depends on the token before it.
        transitions: (B, H-1, k, k) float32, or None.
    """

    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    transitions: npt.NDArray[np.float32] | None = None

    def row(self, row: int) -> HeadCandidates:
        """Those of one sequence, as a batch of one."""
        part = slice(row, row + 1)
        transitions = None if self.transitions is None else self.transitions[part]
        return HeadCandidates(self.token_ids[part], self.log_probs[part], transitions)


def read_head_candidates(states: Sequence[DecodeState], top_k: int) -> HeadCandidates:
    """The k most probable tokens of each slot.

    Args:
        states: of the B sequences.
        top_k: k.

    Raises:
        ValueError: NaN or +inf, or k above the vocabulary.
    """
    outputs = _read_heads(states, top_k=top_k)
    start = time.perf_counter()
    if isinstance(outputs, LatticeInput):
        if outputs.are_log_probs and outputs.transitions is None:
            # Nothing to normalize; the core checks ids and scores.
            ids, scores = outputs.token_ids, outputs.scores
            if isinstance(scores, torch.Tensor):
                ids, scores = ids.numpy(force=True), scores.float().numpy(force=True)
            heads = HeadCandidates(
                np.ascontiguousarray(ids, np.int32), np.ascontiguousarray(scores, np.float32)
            )
        else:
            heads = HeadCandidates(*outputs.to_source_scores("MixtureDrafter"))
    else:
        best = select_top_k(outputs, top_k, log_softmax=True, where="MixtureDrafter")
        heads = HeadCandidates(best.token_ids, best.scores)
    states[0].stats.lap("top_k", start)
    return heads


def find_candidates(
    states: Sequence[DecodeState], logits: torch.Tensor, top_k: int, where: str
) -> tuple[Candidates, bool]:
    """The k best tokens of each slot, under a constraint of those that some path allows.

    Args:
        states: of the B sequences; all have a constraint, or none has one.
        logits: (B, H, V) of the heads.
        top_k: k.
        where: the caller's name, for error messages.

    Returns:
        Candidates (B, H, k); and whether a slot depends on the path, so that masking the candidates
        is not enough: see `LatticeDrafter.search`.

    Raises:
        ValueError: top_k out of range, NaN or +inf.
    """
    texts = [state.constrained for state in states if state.constrained is not None]
    if not texts:
        return select_top_k(logits, top_k, log_softmax=False, where=where), False
    rows = zip(texts, logits.detach().float().cpu().numpy(), strict=True)
    token_ids, scores, depends = zip(
        *(text.find_candidates(row, top_k, where) for text, row in rows), strict=True
    )
    return Candidates(np.stack(token_ids), np.stack(scores)), any(depends)


class LatticeDrafter(Drafter):
    """The options and searches of drafters that rescore the heads' lattices with an n-gram LM."""

    strategy: ClassVar[str]  # whose options it takes

    def __init__(
        self, lm: NGramLM | None, config: DraftConfig | None = None, **options: Any
    ) -> None:
        name = type(self).__name__
        self.lm, self.config = lm, DraftConfig.make(name, config, options)
        check_used(name, self.strategy, options)

    def read_lattices(
        self, states: Sequence[DecodeState], *, top_k: int | None = None, all_slots: bool = False
    ) -> tuple[Candidates | LatticeInput, list[list[int]], bool]:
        """The inputs of a search.

        With a constraint the candidates of a slot are selected among the allowed tokens, and
        transition scores are not used.

        Args:
            states: of the B sequences.
            top_k: k; None: the config's.
            all_slots: keep slots deeper than the longest allowed draft, so that samples do not
                depend on the remaining length.

        Returns:
            Candidates (B, H, k), as a LatticeInput if the heads score transitions or normalization
            is local; the last tokens of the contexts, as many as the LM uses; and whether
            constraints depend on the path, see `search`.

        Raises:
            ValueError: an LM of another vocabulary, top_k above V.
        """
        outputs = _read_heads(states, all_slots=all_slots)
        start, where = time.perf_counter(), type(self).__name__
        vocab_size, reach = states[0].model.vocab_size, 1
        if self.lm is not None:
            check_same_ids(where, "LM", self.lm.vocab_size, vocab_size)
            reach = self.lm.order
        k = self.config.top_k if top_k is None else top_k
        candidates: Candidates | LatticeInput
        depends = False
        if isinstance(outputs, LatticeInput) and states[0].constrained is None:
            candidates = self.config.lattice_of(outputs, k)
        else:
            logits = outputs.to_logits(vocab_size) if isinstance(outputs, LatticeInput) else outputs
            chosen, depends = find_candidates(states, logits, k, where)
            candidates = chosen if depends else self.config.lattice_of(chosen)
        contexts = [state.tokens[-reach:] for state in states]
        states[0].stats.lap("top_k", start)
        return candidates, contexts, depends

    def search(
        self, states: Sequence[DecodeState], kind: Literal["tree", "drafts", "chain"],
        number: int = 1, temperature: float = 1.0,
    ) -> list[PrefixTree]:  # fmt: skip
        """The tree of each state, see `search_trees`.

        If constraints depend on the path, a wider search is cut to what they allow.

        Args:
            states: of the B sequences.
            kind: see `search_trees`.
            number: nodes of a tree, or drafts.
            temperature: divides scores and alpha.
        """
        candidates, contexts, depends = self.read_lattices(states)
        with states[0].stats.stage("rescore"):
            trees = search_trees(
                candidates, contexts, self.lm, [state.max_draft_length for state in states],
                kind=kind, alpha=self.config.alpha, temperature=temperature,
                number=max(number, min(_SPARE * number, MAX_NODES)) if depends else number,
            )  # fmt: skip
            if not depends:
                return trees
            # Drafts share about half of their nodes.
            drafts_nodes = (number + 1) * candidates.token_ids.shape[1] // 2
            max_nodes = number if kind == "tree" else drafts_nodes
            return [
                tree if state.constrained is None else state.constrained.cut(tree, max_nodes)
                for state, tree in zip(states, trees, strict=True)
            ]
