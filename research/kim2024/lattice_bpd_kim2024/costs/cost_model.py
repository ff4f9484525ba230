"""Memory traffic and arithmetic of a decoded token, for any model size and block efficiency.

The model of table 11 of Kim et al. 2024: a call of the target reads its parameters once and the
keys and values of all tokens that it attends to, drafted ones included, and it computes for the
context and for each drafted token. A decoded token costs that divided by block efficiency.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

SEQUENCE_LENGTHS = (128, 512, 1024, 2048)
"""Context lengths of table 11."""


class TokenCost(NamedTuple):
    """Cost of a decoded token at batch size 1.

    Attributes:
        parameter_gb: parameters read, in GB (1e9 bytes).
        kv_gb: keys and values read, in GB.
        tera_flops: arithmetic, in 1e12 operations.
    """

    parameter_gb: float
    kv_gb: float
    tera_flops: float


@dataclass(frozen=True)
class CostModel:
    """What a call of one model reads and computes.

    Attributes:
        parameter_bytes: read by every call.
        kv_bytes: keys and values of a token in all layers.
        flops_per_call: independent of the draft.
        flops_per_draft_token: for each drafted token.
        attention_flops: for each pair of a query token and a token that it attends to.
    """

    parameter_bytes: float
    kv_bytes: float
    flops_per_call: float
    flops_per_draft_token: float
    attention_flops: float = 0.0

    @classmethod
    def of_size(
        cls, num_parameters: float, num_layers: int, kv_width: int, *, bytes_per_value: float = 2.0
    ) -> CostModel:
        """A dense transformer with a KV cache.

        Args:
            num_parameters: of target and heads, all read by each call.
            num_layers: attention layers.
            kv_width: values of a token's keys in one layer, key-value heads x head size.
            bytes_per_value: 2 for bfloat16.

        Returns:
            CostModel with 2 operations for each parameter and token, and 4 x kv_width x layers for
            each pair of tokens.

        Raises:
            ValueError: a size that is not above 0.
        """
        sizes = {"num_parameters": num_parameters, "num_layers": num_layers}
        for name, value in {**sizes, "kv_width": kv_width, "bytes": bytes_per_value}.items():
            if not 0 < value < math.inf:
                raise ValueError(f"CostModel: {name} is {value}; expected a number above 0")
        return cls(
            parameter_bytes=num_parameters * bytes_per_value,
            kv_bytes=2.0 * num_layers * kv_width * bytes_per_value,
            flops_per_call=2.0 * num_parameters,
            flops_per_draft_token=2.0 * num_parameters,
            attention_flops=4.0 * num_layers * kv_width,
        )

    def per_token(
        self,
        block_efficiency: float,
        sequence_length: int,
        draft_tokens: float = 0.0,
        rescorer: CostModel | None = None,
    ) -> TokenCost:
        """The cost of a decoded token.

        Args:
            block_efficiency: decoded tokens per call, 1 for greedy decoding.
            sequence_length: tokens of the context.
            draft_tokens: verified by each call: p x h for a list (the paper counts 9 for each
                draft, head 1 among them), the nodes of a tree.
            rescorer: a neural rescorer that runs once per call.

        Raises:
            ValueError: a block efficiency that is not above 0, or negative sizes.
        """
        if not 0 < block_efficiency < math.inf or sequence_length < 0 or draft_tokens < 0:
            raise ValueError(
                f"per_token: block efficiency {block_efficiency}, {sequence_length} tokens of "
                f"context and {draft_tokens} drafted; expected a block efficiency above 0 and "
                "counts of 0 or more"
            )
        tokens = sequence_length + draft_tokens
        parameters = kv = flops = 0.0
        for model in (self, rescorer):
            if model is not None:
                parameters += model.parameter_bytes
                kv += tokens * model.kv_bytes
                flops += model.flops_per_call + draft_tokens * model.flops_per_draft_token
                flops += model.attention_flops * sequence_length * (1 + draft_tokens)
        calls = 1.0 / block_efficiency
        return TokenCost(parameters * calls / 1e9, kv * calls / 1e9, flops * calls / 1e12)


PAPER_TARGET = CostModel(
    parameter_bytes=3.0e9,  # 1.5 B parameters in bfloat16
    kv_bytes=18 * 12_288 * 2 * 2,  # 18 layers, K and V; table 11 uses the feed-forward width
    flops_per_call=0.931e12,
    flops_per_draft_token=0.00094e12,
)
"""The 1.5 B blockwise parallel LM of Kim et al. 2024 (tables 6 and 11)."""

PAPER_RESCORER = CostModel(
    parameter_bytes=0.122e9,  # 61 M parameters in bfloat16
    kv_bytes=12 * 1_536 * 2 * 2,  # 12 layers
    flops_per_call=0.155e12,  # derived from table 11's one cell; the paper gives no formula
    flops_per_draft_token=0.0,
)
"""The paper's 61 M neural rescorer."""
