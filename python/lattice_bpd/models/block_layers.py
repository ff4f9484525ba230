"""The layers of a SpecDrafter: attention to what a mask allows, to a source, feed-forward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

KeysValues = tuple[Tensor, Tensor]


class BlockLayer(nn.Module):
    """One transformer layer, normed behind each part (Vaswani et al. 2017), as Marian's and BART's.

    Args:
        size: D.
        inner_size: width of the feed-forward layer.
        heads: attention heads.
        crossed: whether it looks at a source as well.
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
        before: KeysValues | None = None,
        source: KeysValues | None = None,
        source_hidden: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Run the layer.

        Args:
            states: (B, T, D) float.
            own: (B or 1, 1, T, P + T) float, added to the scores of its own attention, or None.
            before: keys and values of P states that stand before these.
            source: what `cross` gave.
            source_hidden: (B, 1, 1, S) float, added to the scores of the source, or None.

        Returns:
            (B, T, D) float, and keys and values of the P + T states.
        """
        query, keys, values = (
            self._split(part) for part in self.own_inputs(states).chunk(3, dim=-1)
        )
        if before is not None:
            keys = torch.cat([before[0], keys], dim=2)
            values = torch.cat([before[1], values], dim=2)
        states = self.own_norm(states + self.own_output(_attend(query, keys, values, own)))
        if source is not None:
            query = self._split(self.cross_query(states))
            found = self.cross_output(_attend(query, *source, source_hidden))
            states = self.cross_norm(states + found)
        states = self.inner_norm(states + self.outer(torch.relu(self.inner(states))))
        return states, (keys, values)

    @torch.no_grad()
    def start_from(self, layer: Any) -> None:
        """Take over the weights of a decoder layer of Marian or BART, of the same sizes.

        Raises:
            AttributeError: a layer with parts of other names.
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
    """(B, T, D). Plain, since the fused kernel's backward pass is slow on CPUs."""
    scores = query @ keys.transpose(2, 3) * query.shape[-1] ** -0.5
    if hidden is not None:
        scores = scores + hidden
    found: Tensor = (scores.softmax(dim=-1) @ values).transpose(1, 2).flatten(2)
    return found


def hide(sees: Tensor) -> Tensor:
    """(B, T, S) bool -> (B, 1, T, S) float: what is added to scores so that the rest is unseen."""
    lowest = torch.finfo(torch.float32).min
    return torch.zeros(sees.shape, device=sees.device).masked_fill_(~sees, lowest).unsqueeze(1)


def embed_positions(places: Tensor, size: int) -> Tensor:
    """Sines and cosines of positions, (..., size) float (Vaswani et al. 2017, section 3.5)."""
    steps = torch.arange(size // 2, device=places.device)
    angles = places.unsqueeze(-1) * torch.exp(steps * (-2.0 * math.log(10000.0) / size))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


def see_blocks(length: int, starts: Tensor, slots: int) -> Tensor:
    """(B, T + N * H, T + N * H) bool: what prefix tokens and blocks may look at."""
    batch, blocks = starts.shape
    places = torch.arange(length, device=starts.device)
    causal = places[:, None] >= places  # (T, T)
    # Slot 0 stands in for the last token of the prefix.
    prefix = (places < starts.unsqueeze(-1)).repeat_interleave(slots, dim=1)  # (B, N * H, T)
    own = torch.arange(blocks * slots, device=starts.device) // slots
    same = own[:, None] == own  # (N * H, N * H)
    top = torch.cat([causal, causal.new_zeros(length, blocks * slots)], dim=1)
    below = torch.cat([prefix, same.expand(batch, -1, -1)], dim=2)
    return torch.cat([top.expand(batch, -1, -1), below], dim=1)
