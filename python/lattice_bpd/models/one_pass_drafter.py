"""The interface of drafters that compute all slots in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.cache import BlockCache


@runtime_checkable
class OnePassDrafter(Protocol):
    """A drafter with a KV cache of its own; decode with `generate(model, ids, heads=drafter)`.

    It reads exact tokens, the target's features at them, or both. A step of the decoding loop:

        drafter.append(cache, features, lengths, token_ids)   # what the target has read since
        states = drafter.draft_states(cache, anchors)         # after the last exact tokens
        logits = drafter.logits(states)

    Implemented by BlockDrafter, PardDrafter and PEagleDrafter.

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
