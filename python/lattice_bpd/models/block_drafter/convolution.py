"""Grouped dynamic convolutions of DFlash2 over the positions of a block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lattice_bpd.models.block_drafter.scorer_config import ConvolutionConfig

BEFORE, AFTER = 0, 1  # sides of a sublayer


class GroupedConvolution(nn.Module):
    """Causal convolutions before and after a sublayer, with taps computed from its input.

        out[i, c] = sum over t <= i, t < T of
                    (base[side, t, c] + delta[i, side, t, group(c)]) * in[i - t, c]

    delta is a linear function of the sublayer's normed input, for both sides; i counts from the
    start of the block, so that no tap reads the context or another block. Initially the identity.

    Args:
        config: sizes.
        hidden_size: D, a multiple of the group size.
        block_size: K.

    Source: DFlash2, as its servers implement it (vLLM `qwen3_dflash2.py`).
    """

    def __init__(self, config: ConvolutionConfig, hidden_size: int, block_size: int) -> None:
        super().__init__()
        self.taps, self.groups = config.kernel_size, hidden_size // config.group_size
        self.block_size = block_size
        self.base_kernel = nn.Parameter(torch.zeros(2, self.taps, hidden_size))
        self.kernel_projection = nn.Linear(hidden_size, 2 * self.taps * self.groups, bias=False)
        with torch.no_grad():
            self.base_kernel[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def forward(self, inputs: Tensor, normed: Tensor, side: int) -> Tensor:
        """Convolve one side.

        Args:
            inputs: (B, N*K, D) float, N blocks of each sequence one after the other.
            normed: (B, N*K, D) float, the sublayer's normed input.
            side: BEFORE or AFTER the sublayer.

        Returns:
            (B, N*K, D) float.
        """
        count = self.taps * self.groups
        weight = self.kernel_projection.weight[side * count : (side + 1) * count]
        delta = F.linear(normed, weight).view(-1, self.block_size, self.taps, self.groups, 1)
        base = self.base_kernel[side].view(self.taps, self.groups, -1)
        kernel = (base + delta).flatten(3)  # (blocks, K, T, D)
        blocks = inputs.reshape(-1, self.block_size, inputs.shape[-1])
        output = kernel[:, :, 0] * blocks
        for tap in range(1, min(self.taps, self.block_size)):
            shifted = F.pad(blocks[:, :-tap], (0, 0, tap, 0))
            output = output + kernel[:, :, tap] * shifted
        return output.view(inputs.shape)
