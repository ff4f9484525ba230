"""The core's attention and linear layers on the CPU, for models of `transformers`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lattice_bpd import _core
from lattice_bpd.lattice.logits import use_torch_threads
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.linear import MOST_STATES, VECTOR, CpuLinear

NAME = "lattice_bpd"
_MOST_QUERIES = 64  # of a text: beyond, torch's matrix products are as fast
_TYPES = (torch.float32, torch.bfloat16)


def use_cpu_kernels(model: PreTrainedModel) -> bool:
    """Lets a model on the CPU use the core's attention, and its linear layers where they pay.

    Attention is that of decoding, a few tokens of each text over its KV cache, such as the steps of
    a batch or the tree of a draft: keys that a text does not see are not read, and key heads are
    not repeated for the query heads that share them. All other calls remain those of "sdpa".

    Linear layers are those of processors without AVX-512, where torch reads a matrix of 16-bit
    numbers once for each token, and a call with drafts costs as much as calls without; in float32
    of calls of up to 64 tokens. With AMX they are those of calls of up to 8 tokens in bfloat16 and
    16 in float16. `nn.Linear` modules become `CpuLinear`, with the same parameters;
    quantize a model before.

    Args:
        model: of `transformers`, loaded with attention "sdpa", the usual one.

    Returns:
        Whether attention is the core's from now on; linear layers may be where it is not. It is
        for a model on the CPU in float32 or bfloat16 that takes other attention implementations and
        has no indexer (which hides keys from those of torch only), where torch (2.10 or later)
        offers its threads. Results change by rounding alone.
    """
    if device_of(model).type != "cpu" or not use_torch_threads():
        return False
    for module in model.modules():
        if type(module) is nn.Linear and MOST_STATES:
            module.__class__ = CpuLinear
    if (
        model.dtype not in _TYPES
        or getattr(model.config, "_attn_implementation", None) != "sdpa"
        or not model._can_set_attn_implementation()
        or any(name.endswith("indexer") for name, _ in model.named_modules())
    ):
        return False
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)
    return True


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer as `transformers` calls it: (B, T, heads, D) of (B, heads, T, D)."""
    if not _fits(query, key, value, attention_mask, options):
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return result
    rows, heads, queries, size = query.shape
    out = query.new_empty(rows, queries, heads, size)
    mask = None
    if attention_mask is not None:
        of_row, _, of_query, _ = attention_mask.stride()
        has_rows, _, has_queries, _ = (count > 1 for count in attention_mask.shape)
        mask = attention_mask.data_ptr(), of_row * has_rows, of_query * has_queries
    _core.attend(
        (rows, heads, key.shape[1], queries, key.shape[2], size),
        query.dtype == torch.bfloat16, _view(query), _view(key), _view(value),
        mask, attention_mask is not None and attention_mask.dtype == torch.bool,
        size**-0.5 if scaling is None else scaling, out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out, None


def _fits(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> bool:
    """Whether the core computes this call."""
    rows, heads, queries, size = query.shape
    if mask is None:
        mask_fits = queries == 1
    else:
        mask_fits = (
            mask.dtype in (torch.bool, query.dtype)
            and mask.shape[1] == 1
            and mask.shape[0] in (1, rows)
            and mask.shape[2] in (1, queries)
            and mask.shape[3] == key.shape[2]
            and mask.stride(3) == 1
        )
    return (
        mask_fits
        and queries <= _MOST_QUERIES
        and query.device.type == "cpu"
        and query.dtype in _TYPES
        and key.dtype == value.dtype == query.dtype
        and key.shape == value.shape
        and key.shape[0] == rows
        and heads % key.shape[1] == 0
        and size % VECTOR == 0
        and query.stride(3) == key.stride(3) == value.stride(3) == 1
        and not any(options.get(name) for name in ("dropout", "softcap", "output_attentions"))
        and options.get("position_bias") is None
        and not (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad))
        and not torch.compiler.is_compiling()
    )


def _view(tensor: Tensor) -> tuple[int, int, int, int]:
    of_row, of_head, of_token, _ = tensor.stride()
    return tensor.data_ptr(), of_row, of_head, of_token
