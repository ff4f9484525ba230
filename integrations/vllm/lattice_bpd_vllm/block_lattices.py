"""Lattices of a block drafter whose KV cache has the engine's cache positions.

A block drafter reads hidden states of several layers of the target at all exact tokens, as keys and
values of its own. These are kept in one pool, at the cache positions that the engine gives the
target's. So prefix caching, preemption, chunked prefill and batch order need nothing else: a block
that the engine reuses holds the drafter's keys and values too, and rejected tokens are overwritten
when the target's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify.memory import describe_lack_of_memory


class CacheLayout(NamedTuple):
    """Where the tokens that the target read in a step are in the engine's KV cache.

    Attributes:
        slots: (N,) int64, cache position of each token.
        starts: (R + 1,) int64, first token of each request of the batch among the N, and N.
        lengths: (R,) int64, tokens of each request in the cache, this step's included.
        blocks: (R, n) int, the blocks of each request's cache positions.
        block_size: cache positions of a block.
        num_slots: cache positions of the engine.
    """

    slots: Tensor
    starts: Tensor
    lengths: Tensor
    blocks: Tensor
    block_size: int
    num_slots: int

    @property
    def positions(self) -> Tensor:
        """(N,) int64, positions of the tokens in their texts."""
        counts = self.starts.diff()
        offsets = (self.lengths - counts - self.starts[:-1]).repeat_interleave(counts)
        return offsets + torch.arange(len(self.slots), device=self.slots.device)

    def slots_of(self, requests: Tensor, length: int) -> Tensor:
        """(B, length) int64, cache positions of the first tokens of requests (B,)."""
        blocks = self.blocks[requests, : -(-length // self.block_size)].long()
        steps = torch.arange(self.block_size, device=blocks.device)
        slots = blocks.unsqueeze(-1) * self.block_size + steps
        return slots.flatten(1)[:, :length]


class BlockLattices:
    """Drafts of a block drafter from what the target computed in a step.

    Args:
        drafter: a BlockDrafter, attached to the target; on its device and in its dtype.
        num_slots: slots to return, at most those of the drafter.
        vocab_size: V of the target.
    """

    def __init__(self, drafter: Any, num_slots: int, vocab_size: int) -> None:
        self.drafter, self.vocab_size = drafter, vocab_size
        self.num_slots = min(num_slots, drafter.num_slots)
        # (layers, kv_heads, cache positions, head_dim)
        self._keys = self._values = self._context = torch.empty(0, device="cpu")
        self._layout: CacheLayout | None = None

    def store(self, features: Tensor, layout: CacheLayout) -> None:
        """Keep what the drafter reads of the tokens of a step; before `__call__`.

        Args:
            features: (N, n*D) float, hidden states of the target's layers.
            layout: of the step.
        """
        self._layout = None  # of a step that failed
        context, keys, values = self.drafter.read_context(
            features.unsqueeze(0), layout.positions.unsqueeze(0)
        )
        if self._keys.numel() == 0:
            shape = (keys.shape[0], keys.shape[2], layout.num_slots, keys.shape[4])
            advice = "leave some free by gpu_memory_utilization or num_gpu_blocks_override"
            with describe_lack_of_memory(f"keep keys and values of shape {shape}", advice):
                self._keys, self._values = keys.new_zeros(shape), keys.new_zeros(shape)
        self._keys[:, :, layout.slots] = keys[:, 0]
        self._values[:, :, layout.slots] = values[:, 0]
        self._context, self._layout = context[0], layout

    def __call__(
        self, requests: Sequence[int], lengths: Sequence[int], exact_tokens: Sequence[int]
    ) -> Tensor | LatticeInput:
        """The slots after the exact tokens.

        Args:
            requests: (B,) indices in the engine's batch.
            lengths: (B,) tokens of their texts before the exact token, 1 or more.
            exact_tokens: (B,) token ids.

        Returns:
            Logits (B, num_slots, V), or a lattice where the drafter scores transitions.

        Raises:
            RuntimeError: nothing was stored in this step.
        """
        layout = self._layout
        if layout is None:
            raise RuntimeError("lattice-bpd: no hidden states were stored in this step")
        drafter, device = self.drafter, self._keys.device
        rows = torch.tensor(requests, device=device)
        slots = layout.slots_of(rows, max(lengths))
        slots = F.pad(slots, (0, drafter.config.block_size))  # the block is written there
        cache = drafter.cache_of(_gather(self._keys, slots), _gather(self._values, slots), lengths)
        if drafter.lilicorr is not None:
            last = torch.tensor(lengths, device=device) - 1
            first = layout.lengths[rows] - layout.starts.diff()[rows]
            cache.newest = self._context[layout.starts[rows] + last - first]
        anchors = torch.tensor(exact_tokens, device=device)
        found: Tensor | LatticeInput = drafter.read_slots(cache, anchors, self.vocab_size)
        if isinstance(found, LatticeInput):
            return found.cut(self.num_slots, int(found.token_ids.shape[2]))
        return found[:, : self.num_slots]


def _gather(pool: Tensor, slots: Tensor) -> Tensor:
    """(layers, B, kv_heads, S, head_dim) of cache positions (B, S), in one copy."""
    layers, heads, _, width = pool.shape
    taken = pool.index_select(2, slots.flatten())
    return taken.view(layers, heads, *slots.shape, width).transpose(1, 2)
