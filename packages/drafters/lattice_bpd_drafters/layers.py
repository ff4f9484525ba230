"""The layers of a BlockDrafter: Qwen3's, with keys and values of a context beside the block's.

DFlash2 adds grouped dynamic convolutions over the positions of a block. The masks say which
positions a block sees: the context before its anchor, and the block itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd_drafters.config import BlockDrafterConfig, ConvolutionConfig

BEFORE, AFTER = 0, 1  # sides of a sublayer


class GroupedConvolution(nn.Module):
    """Causal convolutions before and after a sublayer, with taps computed from its input.

        out[i, c] = sum over t <= i, t < T of
                    (base[side, t, c] + delta[i, side, t, group(c)]) * in[i - t, c]

    delta is a linear function of the sublayer's normed input, for both sides; i counts from the
    start of the block, so that no tap reads the context. Initially the identity.

    Args:
        config: sizes.
        hidden_size: D, a multiple of the group size.

    Source: DFlash2, as its servers implement it (vLLM `qwen3_dflash2.py`).
    """

    def __init__(self, config: ConvolutionConfig, hidden_size: int) -> None:
        super().__init__()
        self.taps, self.groups = config.kernel_size, hidden_size // config.group_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * self.taps * self.groups, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def forward(self, inputs: Tensor, normed: Tensor, side: int) -> Tensor:
        """Convolve one side.

        Args:
            inputs: (B, K, D) float, blocks.
            normed: (B, K, D) float, the sublayer's normed input.
            side: BEFORE or AFTER the sublayer.

        Returns:
            (B, K, D) float.
        """
        count, block_size = self.taps * self.groups, inputs.shape[1]
        weight = self.kernel_projection.weight[side * count : (side + 1) * count]
        delta = F.linear(normed, weight).view(-1, block_size, self.taps, self.groups, 1)
        base = self.base_kernel[side].view(self.taps, self.groups, -1)
        kernel = (base + delta).flatten(3)  # (B, K, T, D)
        output = kernel[:, :, 0] * inputs
        for tap in range(1, min(self.taps, block_size)):
            shifted = F.pad(inputs[:, :-tap], (0, 0, tap, 0))
            output = output + kernel[:, :, tap] * shifted
        return output


Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, (B, 1, m, head_dim) float each."""


def rotary(positions: Tensor, config: BlockDrafterConfig, dtype: torch.dtype) -> Rotary:
    """Cosines and sines of absolute positions (B, m), computed in float32."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device).float()
    frequencies = config.rope_theta ** (-half / config.head_dim)
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(states: Tensor, angles: Rotary) -> Tensor:
    """Rotate states (B, heads, m, head_dim), the first half of a head paired with the second."""
    first, second = states.chunk(2, dim=-1)
    return states * angles[0] + torch.cat([-second, first], dim=-1) * angles[1]


class RMSNorm(nn.RMSNorm):
    """`nn.RMSNorm` in the dtype of its input, also where autocast gave that another one."""

    def forward(self, states: Tensor) -> Tensor:
        """Normalized states of the same shape and dtype."""
        weight = self.weight.to(states.dtype)
        return F.rms_norm(states, self.normalized_shape, weight, self.eps)


class BlockAttention(nn.Module):
    """Projections of an attention sublayer, with norms of queries and keys per head.

    Args:
        config: sizes.
    """

    def __init__(self, config: BlockDrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        inner, outer = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, outer, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, outer, bias=False)
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def queries(self, states: Tensor, angles: Rotary) -> Tensor:
        """(B, heads, m, head_dim) of states (B, m, D)."""
        return _rotate(self.q_norm(self._split(self.q_proj(states))), angles)

    def keys_values(self, states: Tensor, angles: Rotary) -> tuple[Tensor, Tensor]:
        """(B, kv_heads, m, head_dim) each, of states (B, m, D)."""
        keys = _rotate(self.k_norm(self._split(self.k_proj(states))), angles)
        return keys, self._split(self.v_proj(states))

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """(B, m, D) of queries (B, heads, m, head_dim) over keys and values.

        Args:
            queries: (B, heads, m, head_dim) float.
            keys: (B, kv_heads, S, head_dim) float.
            values: likewise.
            mask: (B, 1, m, S) bool, True where a query sees a key; None: everywhere.
        """
        # The queries that share keys as more positions: with a mask, fused kernels of GPUs take no
        # groups of heads.
        batch, heads, count, size = queries.shape
        group = heads // keys.shape[1]
        mixed = F.scaled_dot_product_attention(
            queries.reshape(batch, heads // group, group * count, size), keys, values,
            attn_mask=None if mask is None else mask.repeat(1, 1, group, 1),
        ).reshape(queries.shape)  # fmt: skip
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output

    def _split(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], -1, self.head_dim).transpose(1, 2)


class BlockMLP(nn.Module):
    """SwiGLU.

    Args:
        config: sizes.
    """

    def __init__(self, config: BlockDrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """(B, m, D) of states (B, m, D)."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
        return output


class BlockDrafterLayer(nn.Module):
    """A layer: attention of the block over context and block, then the MLP.

    With convolutions, each sublayer has one of the block's rows before and after it.

    Args:
        config: sizes.
    """

    def __init__(self, config: BlockDrafterConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = BlockAttention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = BlockMLP(config)
        self.attention_conv, self.mlp_conv = _convolution(config), _convolution(config)

    def context(self, context: Tensor, angles: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values of context vectors (B, m, D), which skip input_layernorm."""
        keys_values: tuple[Tensor, Tensor] = self.self_attn.keys_values(context, angles)
        return keys_values

    def project(self, states: Tensor, angles: Rotary) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the block's states (B, m, D)."""
        normed = self.input_layernorm(states)
        if self.attention_conv is not None:
            normed = self.attention_conv(normed, normed, BEFORE)
        keys, values = self.self_attn.keys_values(normed, angles)
        return self.self_attn.queries(normed, angles), keys, values

    def finish(
        self, states: Tensor, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The block's states after the layer; see BlockAttention.forward for the arguments."""
        change: Tensor = self.self_attn(queries, keys, values, mask)
        if self.attention_conv is not None:
            change = self.attention_conv(change, self.input_layernorm(states), AFTER)
        states = states + change
        normed: Tensor = self.post_attention_layernorm(states)
        if self.mlp_conv is None:
            change = self.mlp(normed)
        else:
            change = self.mlp(self.mlp_conv(normed, normed, BEFORE))
            change = self.mlp_conv(change, normed, AFTER)
        return states + change


def _convolution(config: BlockDrafterConfig) -> GroupedConvolution | None:
    if config.convolution is None:
        return None
    return GroupedConvolution(config.convolution, config.hidden_size)


def visible_in_cache(positions: Tensor, end: int, *, causal: bool, window: int | None) -> Tensor:
    """The mask of blocks that follow their sequences in a cache.

    Args:
        positions: (B, K) int64, of the blocks; the cache holds all positions before them.
        end: S, positions of the cache that are read.
        causal: whether a block position sees only those up to itself.
        window: a position sees those less than `window` away; None: all.

    Returns:
        (B, 1, K, S) bool.
    """
    keys = torch.arange(end, device=positions.device)
    last = positions if causal else positions[:, -1:]
    visible = (keys <= last.unsqueeze(-1)).expand(-1, positions.shape[1], -1)
    return _within(visible, positions, keys.expand(len(positions), -1), window).unsqueeze(1)


def _within(visible: Tensor, queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """The mask (B, Q, S) less what is `window` or more away; queries (B, Q) and keys (B, S)."""
    if window is None:
        return visible
    return visible & ((queries.unsqueeze(-1) - keys.unsqueeze(1)).abs() < window)
