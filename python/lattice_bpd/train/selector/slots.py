"""What a selector is trained on: candidates of frozen heads, or of a frozen block drafter."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.candidates import SlotCandidates, candidates_of
from lattice_bpd.models.block_drafter.features import read_features
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.block_drafter.scorers import find_candidates
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.sources import HeadSource

AnyHeads = BlockwiseHeads | HeadSource | BlockDrafter


class SlotReader(Protocol):
    """Candidates of blocks of whole texts.

    Attributes:
        num_slots: H.
        vocab_size: V.
        state_size: D, width of the states that the selector reads.
        slot_gates: H where the slots share one state, else None; see CandidateSelector.
    """

    num_slots: int
    vocab_size: int
    state_size: int
    slot_gates: int | None

    def read(self, token_ids: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
        """Candidates of M blocks of each of B texts, as B * M rows.

        Args:
            token_ids: (B, T) int64, padded on the right.
            anchors: (B, M) int64, positions of the tokens before slot 0; 1 or more.
            top_k: k.
        """
        ...


class HeadSlots:
    """Slots of heads on the target's last hidden state.

    The state that a selector's gate reads is this hidden state, the one that the heads read: that
    of the position before the anchor. All slots share it.

    Args:
        model: the target with such heads.
    """

    def __init__(self, model: BlockwiseLM) -> None:
        self.num_slots, self.vocab_size = model.num_slots, model.vocab_size
        self.state_size = int(model.output_embedding.weight.shape[1])
        self.slot_gates: int | None = model.num_slots
        self._model = model

    @torch.no_grad()
    def read(self, token_ids: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
        """See SlotReader."""
        hidden = self._model.hidden_states(token_ids)
        index = (anchors - 1).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        rows = hidden.gather(1, index).flatten(0, 1)
        exact = token_ids.gather(1, anchors).flatten()
        logits = self._model.head_logits(rows, exact)
        return candidates_of(logits, rows.unsqueeze(1), exact, top_k)


class BlockSlots:
    """Slots of a block drafter.

    Args:
        target: the target.
        drafter: attached to it here.
    """

    def __init__(self, target: PreTrainedModel, drafter: BlockDrafter) -> None:
        drafter.attach(target)
        config = drafter.config
        assert config.vocab_size is not None  # known after `attach`
        self.num_slots, self.vocab_size = drafter.num_slots, config.vocab_size
        self.state_size = config.hidden_size
        self.slot_gates: int | None = None
        self._target, self._drafter = target, drafter

    @torch.no_grad()
    def read(self, token_ids: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
        """See SlotReader."""
        features = read_features(self._target, token_ids, self._drafter.hidden_layers).features
        states = self._drafter.train_states(features, token_ids, anchors).flatten(0, 1)
        return find_candidates(self._drafter, states, token_ids.gather(1, anchors).flatten(), top_k)


def slots_of(target: PreTrainedModel, heads: AnyHeads) -> SlotReader:
    """The slots of heads of any kind.

    Raises:
        TypeError: heads that are neither a BlockDrafter nor a head source.
        ValueError: heads of another width or vocabulary.
    """
    if isinstance(heads, BlockDrafter):
        return BlockSlots(target, heads)
    return HeadSlots(BlockwiseLM(target, heads=heads))
