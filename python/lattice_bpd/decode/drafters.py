"""Drafters: what is proposed for verification. Everything else of decoding is the same for all.

NoDrafter        nothing                                         greedy decoding
BlockDrafter     the argmax of every head                        BPD (paper algorithm 1)
LatticeDrafter   the p best paths through the top-k lattice      n-gram and p-best BPD (7.2)
OracleDrafter    the path that agrees longest with the target    an upper bound (6.3)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from lattice_bpd import Drafts, NGramLM, SausageLattice, rescore_lattice
from lattice_bpd.decode.state import DecodeState


class Drafter(Protocol):
    """Anything that proposes drafts; write one to plug in your own."""

    def propose(self, state: DecodeState) -> Drafts | None:
        """Drafts for the tokens behind `state.tokens`.

        Args:
            state: where decoding stands; `state.num_slots` is at least 1. Do not change it.

        Returns:
            Drafts of batch size 1, best first, of any number of slots (what is longer than
            `state.num_slots` is cut); None to draft nothing in this step.
        """
        ...


class NoDrafter:
    """Greedy decoding: every call of the target yields one token."""

    def propose(self, state: DecodeState) -> Drafts | None:  # noqa: ARG002
        """Nothing."""
        return None


class BlockDrafter:
    """One draft: the most likely token of each head (smallest id among equals)."""

    def propose(self, state: DecodeState) -> Drafts | None:
        """(1, 1, num_slots) token ids; the score is the sum of the heads' logits."""
        with state.stats.stage("top_k"):
            scores, token_ids = state.head_logits().max(dim=-1)
            return Drafts(
                token_ids.to(torch.int32)[None, None],
                scores.float().sum()[None, None],
                torch.ones(1, dtype=torch.int32),
            )


class LatticeDrafter:
    """The p best paths through the top-k lattice under heads + alpha * n-gram LM.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        top_k: k, candidates of a slot.
        num_drafts: p, drafts verified together; 1 is n-gram rescoring.
        alpha: weight of the LM's log probabilities.
    """

    def __init__(
        self, lm: NGramLM | None, *, top_k: int = 16, num_drafts: int = 16, alpha: float = 0.5
    ) -> None:
        self.lm, self.top_k, self.num_drafts, self.alpha = lm, top_k, num_drafts, alpha

    def propose(self, state: DecodeState) -> Drafts | None:
        """(1, p, num_slots) token ids; see `rescore_lattice`.

        Raises:
            ValueError: the LM's vocabulary is not the target's, or top_k exceeds it.
        """
        context = state.tokens
        if self.lm is not None:
            _check_vocabulary(self.lm, state)
            context = context[-self.lm.order :]  # all that the LM can see
        with state.stats.stage("top_k"):
            lattice = SausageLattice.from_logits(state.head_logits(), self.top_k)
        with state.stats.stage("rescore"):
            return rescore_lattice(
                lattice, context, self.lm, num_drafts=self.num_drafts, alpha=self.alpha
            )


class OracleDrafter:
    """The path through the top-k lattice with the longest accepted prefix (paper 6.3).

    It looks the target's output up, so it saves nothing: it tells how much better drafts could be.

    Args:
        continuation: (m,) ints, the target's greedy output behind the prompt.
        top_k: k, candidates of a slot.
    """

    def __init__(self, continuation: Sequence[int], *, top_k: int = 16) -> None:
        self.continuation, self.top_k = list(continuation), top_k

    def propose(self, state: DecodeState) -> Drafts | None:
        """(1, 1, num_slots): the target's own tokens as far as the lattice holds them."""
        with state.stats.stage("top_k"):
            lattice = SausageLattice.from_logits(state.head_logits(), self.top_k)
        done = len(state.tokens) - state.prompt_length
        wanted = self.continuation[done : done + state.num_slots]
        path = [int(ids[0]) for ids in lattice.token_ids]
        for slot, (token, ids) in enumerate(zip(wanted, lattice.token_ids, strict=False)):
            if token not in ids:
                break
            path[slot] = token
        return _single_draft(path)


def _single_draft(path: list[int]) -> Drafts:
    token_ids: Any = np.array(path, dtype=np.int32)[None, None]
    return Drafts(token_ids, np.zeros((1, 1), np.float32), np.ones(1, np.int32))


def _check_vocabulary(lm: NGramLM, state: DecodeState) -> None:
    if lm.vocab_size != state.model.vocab_size:
        raise ValueError(
            f"LatticeDrafter: the LM has a vocabulary of {lm.vocab_size}, the target one of "
            f"{state.model.vocab_size}; expected the same; train the LM on token ids of the "
            f"target's tokenizer with vocab_size={state.model.vocab_size}"
        )
