"""Configurations of vLLM that drafters cannot be used with, and a target as they read it."""

from __future__ import annotations

from typing import Any

from lattice_bpd_vllm.targets import TargetInfo


def check_adapters(config: Any) -> None:
    """Raise ValueError for a `VllmConfig` with adapters, which heads cannot be used with."""
    if getattr(config, "lora_config", None) is not None:
        raise ValueError(
            "lattice-bpd: LoRA is enabled, and there are draft heads; expected one of them, since "
            "vLLM maps adapters to the rows that it samples from, and not to those of heads; serve "
            'without --enable-lora, or without heads ("sources": ["lm", "text"])'
        )


def check_block_drafter(config: Any, target: Any) -> None:
    """Raise ValueError for a configuration or target that a block drafter cannot be used with.

    Args:
        config: a `VllmConfig`.
        target: vLLM's model.
    """
    name = type(target).__name__
    processor = getattr(target, "logits_processor", None)
    scale, cap = getattr(processor, "scale", 1.0), getattr(processor, "soft_cap", None)
    reason = None
    if not hasattr(target, "set_aux_hidden_state_layers"):
        reason = f"{name} does not return hidden states of its layers (set_aux_hidden_state_layers)"
    elif scale != 1.0 or cap is not None:
        reason = (
            f"{name} scales its logits by {scale} and caps them at {cap}, and a block drafter uses "
            "the output embedding alone"
        )
    elif (stages := config.parallel_config.pipeline_parallel_size) > 1:
        reason = f"pipeline_parallel_size is {stages}, so that layers are in other processes"
    elif getattr(config, "kv_transfer_config", None) is not None:
        reason = "a KV connector is set, which loads tokens whose hidden states never existed here"
    if reason is not None:
        raise ValueError(
            f"lattice-bpd: block drafters read hidden states of the target's layers: {reason}; use "
            "draft heads"
        )


def read_target(target: Any, model_config: Any) -> TargetInfo:
    """What drafters read of vLLM's model."""
    return TargetInfo(
        target.compute_logits,
        model_config.get_hidden_size(),
        model_config.get_vocab_size(),
        model_config.dtype,
        next(target.parameters()).device,
        model_config.get_total_num_hidden_layers(),
        getattr(target, "embed_input_ids", None),
        getattr(getattr(target, "lm_head", None), "weight", None),
    )
