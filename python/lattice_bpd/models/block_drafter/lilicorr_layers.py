"""The attention layers of LiLiCorr over all candidates of a block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.models.block_drafter.scorer_config import LiLiCorrConfig


class CandidateMLP(nn.Module):
    """Two linear layers with SiLU between them.

    Args:
        size: of the input.
        inner_size: between the layers.
        output_size: of the output.
    """

    def __init__(self, size: int, inner_size: int, output_size: int) -> None:
        super().__init__()
        self.up_proj = nn.Linear(size, inner_size)
        self.down_proj = nn.Linear(inner_size, output_size)

    def forward(self, inputs: Tensor) -> Tensor:
        """(.., output_size) of (.., size)."""
        output: Tensor = self.down_proj(F.silu(self.up_proj(inputs)))
        return output


class CandidateAttention(nn.Module):
    """Bidirectional attention with a bias per head; its parameters are named as torch's.

    Args:
        size: w.
        num_heads: attention heads.
    """

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * size, size))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * size))
        self.out_proj = nn.Linear(size, size)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, nodes: Tensor, bias: Tensor) -> Tensor:
        """(B, N, w) of nodes (B, N, w) and biases (heads, N, N)."""
        batch, count, width = nodes.shape
        joined = F.linear(nodes, self.in_proj_weight, self.in_proj_bias)
        queries, keys, values = (
            part.view(batch, count, self.num_heads, -1).transpose(1, 2)
            for part in joined.chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
        output: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(batch, count, width))
        return output


class CandidateLayer(nn.Module):
    """Attention and MLP, each after an RMSNorm and with a residual connection.

    Args:
        config: sizes.
        rms_norm_eps: of both norms.
    """

    def __init__(self, config: LiLiCorrConfig, rms_norm_eps: float) -> None:
        super().__init__()
        size = config.hidden_size
        self.attn_norm = nn.RMSNorm(size, eps=rms_norm_eps)
        self.attn = CandidateAttention(size, config.num_heads)
        self.mlp_norm = nn.RMSNorm(size, eps=rms_norm_eps)
        self.mlp = CandidateMLP(size, config.inner_size, size)

    def forward(self, nodes: Tensor, bias: Tensor) -> Tensor:
        """(B, N, w) of nodes (B, N, w); see CandidateAttention for the bias."""
        nodes = nodes + self.attn(self.attn_norm(nodes), bias)
        output: Tensor = nodes + self.mlp(self.mlp_norm(nodes))
        return output
