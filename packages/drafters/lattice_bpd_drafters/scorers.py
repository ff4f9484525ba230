"""The transition scores of a BlockDrafter, and the lattice of a block.

DSpark's Markov head, plain and gated, is here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.cache import BlockCache
from lattice_bpd_drafters.config import (
    BlockDrafterConfig,
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)
from lattice_bpd_drafters.lilicorr import LiLiCorrScorer
from lattice_bpd_drafters.selector import CandidateSelector, SlotCandidates, top_ids

if TYPE_CHECKING:
    from lattice_bpd_drafters.block_drafter import BlockDrafter


class MarkovHead(nn.Module):
    """Scores of candidate b of slot j after candidate a of slot j - 1.

        plain:  S[j](a, b) = U[j](b) + <w1[a], w2[b]>
        gated:  S[j](a, b) = U[j](b) + <sigmoid(G [h[j]; w1[a]] + g) * w1[a], w2[b]>

    U is the raw logit, h[j] the slot's state. Slot 0 follows the anchor. Where the drafter has a
    logit scale, the second term is multiplied by it too. Each row is a distribution over the whole
    vocabulary by softmax; the lattice keeps the k candidates with the greatest U.

    Args:
        config: rank and kind.
        vocab_size: V of the target, of which a is a token.
        draft_size: size of the drafter's vocabulary, of which b is an index.
        hidden_size: D, width of h.
        logit_scale: of the drafter.

    Source: DSpark (arXiv 2607.05147) and DeepSpec `markov_head.py`.
    """

    def __init__(
        self,
        config: MarkovConfig,
        vocab_size: int,
        draft_size: int,
        hidden_size: int,
        logit_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.config, self.logit_scale = config, logit_scale
        self.markov_w1 = nn.Embedding(vocab_size, config.rank)
        self.markov_w2 = nn.Linear(config.rank, draft_size, bias=False)
        inputs = hidden_size + config.rank
        self.gate_proj = nn.Linear(inputs, config.rank) if config.is_gated else None

    def pair_scores(self, previous: Tensor, states: Tensor, draft_ids: Tensor) -> Tensor:
        """(.., a, k) float32, without U.

        Args:
            previous: (.., a) int64, tokens of the slot before.
            states: (.., D) float, of the slot.
            draft_ids: (.., k) int64, candidates.
        """
        before: Tensor = self.markov_w1(previous)
        if self.gate_proj is not None:
            width = states.shape[-1]
            weight = self.gate_proj.weight.to(before.dtype)
            from_state = F.linear(states.to(before.dtype), weight[:, :width], self.gate_proj.bias)
            gate = from_state.unsqueeze(-2) + F.linear(before, weight[:, width:])
            before = torch.sigmoid(gate) * before
        after = self.markov_w2.weight[draft_ids].float()
        return self.logit_scale * (before.float() @ after.transpose(-1, -2))

    def forward(self, slots: SlotCandidates) -> LatticeInput:
        """The lattice of B blocks, locally normalized."""
        ids, drafted, unary, states = slots.token_ids, slots.draft_ids, slots.logits, slots.states
        first = self.pair_scores(slots.anchors[:, None], states[:, 0], drafted[:, 0]).squeeze(1)
        pairs = self.pair_scores(ids[:, :-1], states[:, 1:], drafted[:, 1:])
        start, transitions = first + unary[:, 0], pairs + unary[:, 1:, None]
        return LatticeInput(ids, unary, start, transitions, unary="included", normalization="local")


def add_scorer(drafter: nn.Module, config: BlockDrafterConfig) -> None:
    """Give a drafter the modules of its scorer, named as in checkpoints; the others are None."""
    scorer, size = config.scorer, config.hidden_size
    vocab_size = config.vocab_size or 0  # of scorers of tokens, whose configs have it
    modules: dict[str, nn.Module | None] = dict.fromkeys(
        ("candidate_selector", "markov_head", "lilicorr")
    )
    if isinstance(scorer, SelectorConfig):
        modules["candidate_selector"] = CandidateSelector(scorer, vocab_size, size)
    elif isinstance(scorer, MarkovConfig):
        draft_size = config.draft_vocab_size or vocab_size
        modules["markov_head"] = MarkovHead(
            scorer, vocab_size, draft_size, size, config.logit_scale
        )
    elif isinstance(scorer, LiLiCorrConfig):
        modules["lilicorr"] = LiLiCorrScorer(scorer, size, config.block_size, config.rms_norm_eps)
    for name, module in modules.items():
        setattr(drafter, name, module)


def block_lattice(
    drafter: BlockDrafter, cache: BlockCache, anchors: Tensor, top_k: int | None
) -> LatticeInput:
    """See BlockDrafter.lattice."""
    count = _check_top_k(drafter.config, top_k)
    slots = find_candidates(drafter, drafter.draft_states(cache, anchors), anchors, count)
    if drafter.candidate_selector is not None:
        return drafter.candidate_selector(slots)  # type: ignore[no-any-return]
    if drafter.markov_head is not None:
        return drafter.markov_head(slots)  # type: ignore[no-any-return]
    assert drafter.lilicorr is not None
    context = cache.newest
    if context is None:  # no text has begun
        context = slots.states.new_zeros(len(anchors), slots.states.shape[2])
    has_context = torch.tensor(cache.lengths, device=context.device) > 0
    embeddings = drafter.embed_candidates(slots.token_ids)
    return drafter.lilicorr(slots, embeddings, context, has_context)  # type: ignore[no-any-return]


def find_candidates(
    drafter: BlockDrafter, states: Tensor, anchors: Tensor, top_k: int
) -> SlotCandidates:
    """The candidates of blocks.

    Args:
        drafter: attached to its target.
        states: (B, H, D) float, of `draft_states`.
        anchors: (B,) int64.
        top_k: k.
    """
    logits = drafter.logits(states).float()
    ids = top_ids(logits, top_k)
    total = logits.logsumexp(dim=-1, keepdim=True)
    token_ids = drafter.to_target_ids(ids)
    return SlotCandidates(anchors, states, token_ids, ids, logits.gather(-1, ids), total)


def _check_top_k(config: BlockDrafterConfig, top_k: int | None) -> int:
    """The number of candidates.

    Raises:
        ValueError: no scorer, or a number out of range.
    """
    scorer = config.scorer
    if scorer is None:
        raise ValueError(
            "BlockDrafter.lattice: the drafter has no transition scores; use the logits of its "
            "slots"
        )
    most = config.draft_vocab_size or config.vocab_size or scorer.top_k
    most = min(most, scorer.top_k) if isinstance(scorer, LiLiCorrConfig) else most
    count = scorer.top_k if top_k is None else top_k
    if not 1 <= count <= most:
        raise ValueError(f"BlockDrafter.lattice: top_k is {count}; expected 1..{most}")
    return count
