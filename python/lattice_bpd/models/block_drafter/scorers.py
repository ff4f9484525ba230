"""The transition scores of a BlockDrafter: its scorer, and the lattice of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.block_drafter.cache import BlockCache
from lattice_bpd.models.block_drafter.candidates import SlotCandidates, candidates_of
from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.models.block_drafter.lilicorr import LiLiCorrScorer
from lattice_bpd.models.block_drafter.markov import ConfidenceHead, MarkovHead
from lattice_bpd.models.block_drafter.scorer_config import (
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)
from lattice_bpd.models.block_drafter.selector import CandidateSelector

if TYPE_CHECKING:
    from lattice_bpd.models.block_drafter.module import BlockDrafter


def add_scorer(drafter: nn.Module, config: BlockDrafterConfig) -> None:
    """Give a drafter the modules of its scorer, named as in checkpoints; the others are None."""
    scorer, size = config.scorer, config.hidden_size
    vocab_size = config.vocab_size or 0  # of scorers of tokens, whose configs have it
    modules: dict[str, nn.Module | None] = dict.fromkeys(
        ("candidate_selector", "markov_head", "confidence_head", "lilicorr")
    )
    if isinstance(scorer, SelectorConfig):
        modules["candidate_selector"] = CandidateSelector(scorer, vocab_size, size)
    elif isinstance(scorer, MarkovConfig):
        draft_size = config.draft_vocab_size or vocab_size
        modules["markov_head"] = MarkovHead(
            scorer, vocab_size, draft_size, size, config.logit_scale
        )
        if scorer.has_confidence:
            modules["confidence_head"] = ConfidenceHead(scorer, size)
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
        return drafter.markov_head(slots, drafter.confidence_head)  # type: ignore[no-any-return]
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
        states: (B, H, D) float, of `draft_states` or `train_states`.
        anchors: (B,) int64.
        top_k: k.
    """
    slots = candidates_of(drafter.logits(states), states, anchors, top_k)
    return slots._replace(token_ids=drafter.to_target_ids(slots.draft_ids))


def _check_top_k(config: BlockDrafterConfig, top_k: int | None) -> int:
    """The number of candidates.

    Raises:
        ValueError: no scorer, or a number out of range.
    """
    scorer = config.scorer
    if scorer is None:
        raise ValueError(
            "BlockDrafter.lattice: the drafter has no transition scores; use the logits of its "
            "slots, or train a selector"
        )
    most = config.draft_vocab_size or config.vocab_size or scorer.top_k
    most = min(most, scorer.top_k) if isinstance(scorer, LiLiCorrConfig) else most
    count = scorer.top_k if top_k is None else top_k
    if not 1 <= count <= most:
        raise ValueError(f"BlockDrafter.lattice: top_k is {count}; expected 1..{most}")
    return count
