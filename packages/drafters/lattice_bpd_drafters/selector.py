"""The low-rank selector of DFlash2: scores of adjacent candidates, gated by the slot's state.

The candidates are the best of each slot, selected on the logits' device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.config import SelectorConfig


class SlotCandidates(NamedTuple):
    """Candidates of the slots after B anchors.

    Attributes:
        anchors: (B,) int64, the exact tokens before slot 0.
        states: (B, H, D) float, which predict the slots.
        token_ids: (B, H, k) int64, best first, ties by ascending id.
        draft_ids: (B, H, k) int64, their indices into the logits; token_ids, unless the drafter
            has a vocabulary of its own.
        logits: (B, H, k) float32.
        log_total: (B, H, 1) float32, logsumexp of all logits of a slot.
    """

    anchors: Tensor
    states: Tensor
    token_ids: Tensor
    draft_ids: Tensor
    logits: Tensor
    log_total: Tensor


def top_ids(logits: Tensor, top_k: int) -> Tensor:
    """(.., k) int64 indices of the greatest logits (.., V), best first.

    Equal logits are ordered by ascending index; which of them is the k-th is the device's choice.
    """
    ids = logits.topk(top_k, sorted=False).indices.sort(dim=-1).values
    order = logits.gather(-1, ids).argsort(dim=-1, descending=True, stable=True)
    return ids.gather(-1, order)


class CandidateSelector(nn.Module):
    """Scores of candidate b of slot j after candidate a of slot j - 1.

        S[j](a, b) = U[j](b) + <A[a] * gate[j], B[b]>,    gate[j] = W h[j]

    U is the raw logit, A and B are the codebooks of predecessors and successors, h[j] is the slot's
    state. Slot 0 follows the anchor. Each row of S is a distribution over the k candidates by
    softmax.

    Args:
        config: rank and candidates.
        vocab_size: V of the target.
        hidden_size: D, width of h.

    Source: DFlash2, as its servers implement it (vLLM `qwen3_dflash2.py`).
    """

    def __init__(self, config: SelectorConfig, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.predecessor_codebook = nn.Parameter(0.02 * torch.randn(vocab_size, config.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab_size, config.rank))
        self.hidden_projection = nn.Linear(hidden_size, config.rank, bias=False)

    def pair_scores(self, previous: Tensor, gates: Tensor, token_ids: Tensor) -> Tensor:
        """(.., a, k) float32, without U.

        Args:
            previous: (.., a) int64, tokens of the slot before.
            gates: (.., r) float32.
            token_ids: (.., k) int64, candidates.
        """
        before = self.predecessor_codebook[previous].float() * gates.unsqueeze(-2)
        scores: Tensor = before @ self.successor_codebook[token_ids].float().transpose(-1, -2)
        return scores

    def forward(self, slots: SlotCandidates) -> LatticeInput:
        """The lattice of B blocks, locally normalized; see LatticeInput."""
        ids, unary, weight = slots.token_ids, slots.logits, self.hidden_projection.weight
        gates = F.linear(slots.states.to(weight.dtype), weight).float()
        start = self.pair_scores(slots.anchors[:, None], gates[:, 0], ids[:, 0]).squeeze(1)
        pairs = self.pair_scores(ids[:, :-1], gates[:, 1:], ids[:, 1:])
        return LatticeInput(
            ids, unary, start + unary[:, 0], pairs + unary[:, 1:, None],
            unary="included", normalization="local",
        )  # fmt: skip
