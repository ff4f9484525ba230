"""Tiny random models that read images and text, and prompts with an image for each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PreTrainedModel,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

VOCAB = 60
IMAGE, START, END = 57, 58, 59  # the image token, and those around it
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
_EYES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip


def build_vision_model(kind: str) -> PreTrainedModel:
    """A random model of one of KINDS, or the RECURRENT one."""
    torch.manual_seed(0)
    model = _BUILDERS[kind]()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 2 and "vision" not in name and "visual" not in name:
                weight.normal_(0.0, 0.3)
    return model.eval()


def image_inputs(kind: str, prompts: list[list[int]], seed: int = 0) -> dict[str, torch.Tensor]:
    """Inputs of `generate`: in each prompt one IMAGE represents the four tokens of an image."""
    generator = torch.Generator().manual_seed(seed)
    rows = [
        [token for item in prompt for token in ([item] * 4 if item == IMAGE else [item])]
        for prompt in prompts
    ]
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    inputs = {"input_ids": ids, "attention_mask": mask}
    count = len(rows)
    if kind in ("qwen2_vl", RECURRENT):
        inputs["pixel_values"] = torch.randn(16 * count, 3 * 2 * 4 * 4, generator=generator)
        inputs["image_grid_thw"] = torch.tensor([[1, 4, 4]] * count)
        inputs["mm_token_type_ids"] = (ids == IMAGE).long()
    else:
        inputs["pixel_values"] = torch.randn(count, 3, 8, 8, generator=generator)
        inputs["token_type_ids"] = (ids == IMAGE).long() if kind == "gemma3" else 0 * ids
    return inputs


def _qwen2_vl() -> PreTrainedModel:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(
            text_config={**_TEXT, "rope_parameters": rope},
            vision_config={
                "depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2,
                "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
            },
            image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END,
        )
    )  # fmt: skip


def _gemma3() -> PreTrainedModel:
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={**_TEXT, "sliding_window": 6, "query_pre_attn_scalar": 8,
                         "layer_types": ["sliding_attention", "full_attention"]},
            vision_config=_EYES, mm_tokens_per_image=4, image_token_index=IMAGE,
            boi_token_index=START, eoi_token_index=END,
        )
    )  # fmt: skip


def _paligemma() -> PreTrainedModel:
    return PaliGemmaForConditionalGeneration(
        PaliGemmaConfig(
            text_config={"model_type": "gemma", **_TEXT},
            vision_config={"model_type": "siglip_vision_model", **_EYES, "projection_dim": 32},
            image_token_index=IMAGE, projection_dim=32, hidden_size=32,
        )
    )  # fmt: skip


def _qwen3_5() -> PreTrainedModel:
    transformers = pytest.importorskip("transformers", minversion="5.2")
    rope = {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 1.0,
    }  # fmt: skip
    return transformers.Qwen3_5ForConditionalGeneration(
        transformers.Qwen3_5Config(
            text_config={
                **_TEXT, "rope_parameters": rope, "linear_conv_kernel_dim": 4,
                "layer_types": ["linear_attention", "full_attention"],
                "linear_num_key_heads": 2, "linear_num_value_heads": 2,
                "linear_key_head_dim": 8, "linear_value_head_dim": 8,
            },
            vision_config={
                "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2,
                "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2,
                "out_hidden_size": 32, "num_position_embeddings": 16,
            },
            image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END,
        )
    )  # fmt: skip


RECURRENT = "qwen3_5"  # it takes no batches
_BUILDERS = {"qwen2_vl": _qwen2_vl, "gemma3": _gemma3, "paligemma": _paligemma}
KINDS = tuple(_BUILDERS)
_BUILDERS[RECURRENT] = _qwen3_5
