"""The transformer layers of a SpecDrafter."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]


class BlockLayer(nn.Module):
    """A post-norm transformer layer (Vaswani et al. 2017), as in Marian and BART.

    Args:
        size: D.
        inner_size: width of the feed-forward layer.
        heads: attention heads.
        crossed: whether it has cross-attention to a source.
    """

    def __init__(self, size: int, inner_size: int, heads: int, *, crossed: bool) -> None:
        super().__init__()
        self.heads = heads
        self.own_norm, self.inner_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.own_inputs, self.own_output = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.inner, self.outer = nn.Linear(size, inner_size), nn.Linear(inner_size, size)
        if crossed:
            self.cross_norm, self.cross_query = nn.LayerNorm(size), nn.Linear(size, size)
            self.cross_inputs = nn.Linear(size, 2 * size)
            self.cross_output = nn.Linear(size, size)

    def cross(self, source: Tensor) -> KeysValues:
        """Keys and values of a source (B, S, D), (B, heads, S, D/heads) each."""
        keys, values = self.cross_inputs(source).chunk(2, dim=-1)
        return self._split(keys), self._split(values)

    def forward(
        self,
        states: Tensor,
        own: Tensor | None,
        *,
        past: KeysValues | None = None,
        source: KeysValues | None = None,
        source_hidden: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Run the layer.

        Args:
            states: (B, T, D) float.
            own: (B or 1, 1, T, P + T) float, added to the scores of self-attention, or None.
            past: keys and values of the P states before these.
            source: what `cross` returned.
            source_hidden: (B, 1, 1, S) float, added to the scores of cross-attention, or None.

        Returns:
            (B, T, D) float, and keys and values of the P + T states.
        """
        query, keys, values = (
            self._split(part) for part in self.own_inputs(states).chunk(3, dim=-1)
        )
        if past is not None:
            keys = torch.cat([past[0], keys], dim=2)
            values = torch.cat([past[1], values], dim=2)
        states = self.own_norm(states + self.own_output(_attend(query, keys, values, own)))
        if source is not None:
            query = self._split(self.cross_query(states))
            crossed = self.cross_output(_attend(query, *source, source_hidden))
            states = self.cross_norm(states + crossed)
        states = self.inner_norm(states + self.outer(torch.relu(self.inner(states))))
        return states, (keys, values)

    @torch.no_grad()
    def start_from(self, layer: Any) -> None:
        """Copy the weights of a decoder layer of Marian or BART, of the same sizes.

        Raises:
            AttributeError: a layer whose modules have other names.
            RuntimeError: other sizes.
        """
        own, cross = layer.self_attn, layer.encoder_attn
        parts = (
            (self.own_inputs, (own.q_proj, own.k_proj, own.v_proj)),
            (self.own_output, (own.out_proj,)),
            (self.own_norm, (layer.self_attn_layer_norm,)),
            (self.cross_query, (cross.q_proj,)),
            (self.cross_inputs, (cross.k_proj, cross.v_proj)),
            (self.cross_output, (cross.out_proj,)),
            (self.cross_norm, (layer.encoder_attn_layer_norm,)),
            (self.inner, (layer.fc1,)),
            (self.outer, (layer.fc2,)),
            (self.inner_norm, (layer.final_layer_norm,)),
        )
        for part, others in parts:
            for name in ("weight", "bias"):
                given = torch.cat([getattr(other, name) for other in others])
                part.load_state_dict({name: given}, strict=False)

    def _split(self, states: Tensor) -> Tensor:
        """(B, T, D) -> (B, heads, T, D/heads)."""
        batch, length, _ = states.shape
        return states.view(batch, length, self.heads, -1).transpose(1, 2)


def _attend(query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None) -> Tensor:
    """(B, T, D). Not fused, since the fused kernel's backward pass is slow on CPUs."""
    scores = query @ keys.transpose(2, 3) * query.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores + hidden
    output: Tensor = (scores.softmax(dim=-1) @ values).transpose(1, 2).flatten(2)
    return output


def additive_mask(visible: Tensor) -> Tensor:
    """(B, T, S) bool -> (B, 1, T, S) float, which is added to attention scores."""
    lowest = torch.finfo(torch.float32).min
    mask = torch.zeros(visible.shape, device=visible.device)
    return mask.masked_fill_(~visible, lowest).unsqueeze(1)


def embed_positions(positions: Tensor, size: int) -> Tensor:
    """Sines and cosines of positions, (..., size) float (Vaswani et al. 2017, section 3.5)."""
    steps = torch.arange(size // 2, device=positions.device)
    angles = positions.unsqueeze(-1) * torch.exp(steps * (-2.0 * math.log(10000.0) / size))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def visible_to_blocks(length: int, starts: Tensor, slots: int) -> Tensor:
    """(B, T + N * H, T + N * H) bool: which tokens and slots each token and slot attends to."""
    batch, blocks = starts.shape
    positions = torch.arange(length, device=starts.device)
    causal = positions[:, None] >= positions  # (T, T)
    # Slot 0 replaces the last token of the prefix.
    prefix = (positions < starts.unsqueeze(-1)).repeat_interleave(slots, dim=1)  # (B, N * H, T)
    own = torch.arange(blocks * slots, device=starts.device) // slots
    same = own[:, None] == own  # (N * H, N * H)
    top = torch.cat([causal, causal.new_zeros(length, blocks * slots)], dim=1)
    below = torch.cat([prefix, same.expand(batch, -1, -1)], dim=2)
    return torch.cat([top.expand(batch, -1, -1), below], dim=1)
