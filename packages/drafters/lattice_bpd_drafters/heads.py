"""Drafters that compute all slots in one forward, as draft heads.

They have a KV cache of their own: `generate(model, ids, heads=drafter)`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.cache import BlockCache

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


@runtime_checkable
class OnePassDrafter(Protocol):
    """A drafter with a KV cache of its own; decode with `generate(model, ids, heads=drafter)`.

    It reads exact tokens, the target's features at them, or both. A step of the decoding loop:

        drafter.append(cache, features, lengths, token_ids)   # what the target has read since
        states = drafter.draft_states(cache, anchors)         # after the last exact tokens
        logits = drafter.logits(states)

    Implemented by BlockDrafter, which is `OnePassHeads` as well.

    Attributes:
        num_slots: H, predicted positions.
        hidden_layers: the target's layers whose outputs are read; see BlockDrafterConfig. Empty:
            it reads tokens only, and features are 0 wide.
        d2t: (draft V,) int64, target id minus draft id, of a reduced vocabulary; None: the
            target's.
    """

    @property
    def num_slots(self) -> int: ...  # noqa: D102

    @property
    def hidden_layers(self) -> tuple[int, ...]: ...  # noqa: D102

    @property
    def d2t(self) -> Tensor | None: ...  # noqa: D102

    def attach(self, target: PreTrainedModel) -> None:
        """Check that it fits this target, whose embeddings it may use.

        Raises:
            ValueError: another target.
        """
        ...

    def eval(self) -> Any:
        """Set evaluation mode, and return the drafter."""
        ...

    def new_cache(self, batch: int) -> BlockCache:
        """The cache of `batch` empty sequences."""
        ...

    def append(
        self, cache: BlockCache, features: Tensor, lengths: Sequence[int], token_ids: Tensor
    ) -> None:
        """Add exact tokens that the target has read.

        Args:
            cache: of the B sequences; those tokens follow the `cache.lengths` it has.
            features: (B, m, n*D_target) float, padded on the right.
            lengths: valid positions of each sequence, 0..m.
            token_ids: (B, m) int64, the tokens themselves, padded likewise.
        """
        ...

    def draft_states(self, cache: BlockCache, anchors: Tensor) -> Tensor:
        """(B, H, D) states that predict the tokens after the anchors.

        Args:
            cache: up to the tokens before the anchors; holds exact tokens only afterwards too.
            anchors: (B,) int64, the last exact tokens, which the target has not read.
        """
        ...

    def logits(self, states: Tensor) -> Tensor:
        """(.., V) or (.., draft V) logits of states (.., D)."""
        ...

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of indices into `logits`, of any shape, int64."""
        ...


@dataclass
class _Row:
    """The position of a sequence's keys and values."""

    cache: BlockCache
    number: int


class BlockDrafterHeads:
    """The slots of a OnePassDrafter as DraftHeads.

    Drafters with transition scores return a LatticeInput, others logits.

    The sequences of a batch share one KV cache of the drafter, which covers all exact tokens but
    the last; `state.memory` holds the cache and the row of a sequence.

    Args:
        drafter: attached to the target, on its device.
    """

    def __init__(self, drafter: OnePassDrafter) -> None:
        self.drafter: OnePassDrafter = drafter.eval()
        self.num_slots: int | None = drafter.num_slots
        self.hidden_layers = drafter.hidden_layers

    def read_states(self, states: Sequence[DecodeState]) -> Tensor | LatticeInput:
        """See DraftHeads."""
        drafter, cache = self.drafter, self._cache_of(states)
        device = states[0].hidden.device
        new = [
            torch.tensor(state.tokens[known:-1], device=device)
            for state, known in zip(states, cache.lengths, strict=True)
        ]
        lengths = [len(tokens) for tokens in new]
        tokens = pad_sequence(new, batch_first=True)
        drafter.append(cache, self._features(states, tokens), lengths, tokens)
        anchors = torch.tensor([state.tokens[-1] for state in states], device=device)
        return read_slots(drafter, cache, anchors, states[0].model.vocab_size)

    def _features(self, states: Sequence[DecodeState], tokens: Tensor) -> Tensor:
        """(B, m, F) features of tokens (B, m); F is 0 for a drafter that reads tokens only."""
        if not self.hidden_layers:
            hidden: Tensor = states[0].hidden
            return hidden.new_empty(*tokens.shape, 0)
        return pad_sequence([state.take_features() for state in states], batch_first=True)

    def _cache_of(self, states: Sequence[DecodeState]) -> BlockCache:
        """The cache whose rows are these sequences in order; built from others if needed."""
        rows: list[_Row | None] = [state.memory for state in states]
        first = rows[0]
        if first is not None and rows == [_Row(first.cache, n) for n in range(first.cache.batch)]:
            return first.cache
        if not any(rows):
            cache = self.drafter.new_cache(len(rows))
        else:
            copies = [self._copy_of(row) for row in rows]
            cache = type(copies[0]).join(copies)
        for number, state in enumerate(states):
            state.memory = _Row(cache, number)
        return cache

    def _copy_of(self, row: _Row | None) -> BlockCache:
        """The cache of one sequence; those of other sequences are unchanged."""
        if row is None:
            return self.drafter.new_cache(1)
        one = copy.copy(row.cache)
        one.keep_sequences([row.number])
        return one


def read_slots(
    drafter: OnePassDrafter, cache: BlockCache, anchors: Tensor, vocab_size: int
) -> Tensor | LatticeInput:
    """The slots after the anchors.

    Args:
        drafter: attached to the target.
        cache: of the B sequences, up to the tokens before the anchors.
        anchors: (B,) int64, the last exact tokens.
        vocab_size: V of the target.

    Returns:
        A lattice where the drafter has transition scores, else logits (B, H, V), -inf for tokens
        that are not in its vocabulary.
    """
    if getattr(drafter, "scores_transitions", False):
        lattice: LatticeInput = cast("Any", drafter).lattice(cache, anchors)
        return lattice
    logits = drafter.logits(drafter.draft_states(cache, anchors))
    if drafter.d2t is None:
        return logits
    target_ids = drafter.to_target_ids(torch.arange(logits.shape[-1], device=logits.device))
    shape = (*logits.shape[:2], vocab_size)
    return logits.new_full(shape, float("-inf")).index_copy_(2, target_ids, logits)


class OnePassHeads:
    """What a OnePassDrafter is for decoding."""

    def as_draft_heads(self, target: Any) -> BlockDrafterHeads:
        """The drafter as draft heads of a target, on its device.

        Raises:
            ValueError: the drafter does not fit the target.
        """
        drafter = cast("OnePassDrafter", self)
        cast("Any", self).to(target.device)
        target.provide_features(drafter.hidden_layers)
        drafter.attach(target.base)
        return BlockDrafterHeads(drafter)

    def read_slots(
        self, cache: BlockCache, anchors: Tensor, vocab_size: int
    ) -> Tensor | LatticeInput:
        """See the function."""
        return read_slots(cast("OnePassDrafter", self), cache, anchors, vocab_size)
