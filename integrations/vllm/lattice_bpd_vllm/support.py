"""Configurations of vLLM that drafters cannot be used with, and a target as they read it."""

from __future__ import annotations

import difflib
import functools
from dataclasses import fields
from pathlib import Path
from typing import Any

from lattice_bpd.models.checkpoint import find_own_loader
from lattice_bpd_vllm.options import CONFIG_KEY, DrafterOptions
from lattice_bpd_vllm.runner_v1 import LOGGER
from lattice_bpd_vllm.targets import TargetInfo

_CLASS = "lattice_bpd_vllm.LatticeProposer"
_NAMES = frozenset(one.name for one in fields(DrafterOptions))


def check_options(config_class: Any) -> None:
    """Wraps a `VllmConfig` class, so that wrong options end a server before it starts an engine.

    Configurations raise what `DrafterOptions` raises, where a drafter of ours reads them, and log
    what they give our drafters in vain; once.
    """
    check = config_class.__post_init__
    if getattr(check, "_wrapped_by_lattice_bpd", False):
        return

    @functools.wraps(check)
    def checked(self: Any, *args: Any) -> None:
        check(self, *args)
        for line in unused_options(self):
            _warn_once(line)
        if self.speculative_config is not None and _reason(self) is None:
            additional = self.additional_config
            given = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
            if given is not None or self.speculative_config.method == "custom_class":
                DrafterOptions.from_mapping(given)
                if self.model_config is not None:
                    _check_folder(Path(self.model_config.model))

    checked._wrapped_by_lattice_bpd = True  # type: ignore[attr-defined]
    config_class.__post_init__ = checked


def _check_folder(model: Path) -> None:
    """Raise ValueError for heads among the weights of the target, all of which vLLM reads."""
    if (
        not (model / "model.safetensors.index.json").exists()  # lists what is read
        and find_own_loader(model) is not None
    ):
        raise ValueError(
            f"{CONFIG_KEY}: the model's folder {model} has draft heads, which vLLM would load as "
            "weights of the model; expected them in a folder of their own"
        )


@functools.cache  # vLLM copies its configuration
def _warn_once(line: str) -> None:
    LOGGER.warning(line)


def unused_options(config: Any) -> list[str]:
    """Lines for the log: what a `VllmConfig` gives our drafters and none of them reads."""
    additional = config.additional_config
    if not isinstance(additional, dict):
        return []
    lines = [
        f"lattice-bpd: additional_config has {name!r}, which is not read; expected options in "
        f'{{"{CONFIG_KEY}": {{..}}}}'
        for name in additional
        if name in _NAMES
        or (
            name != CONFIG_KEY and difflib.get_close_matches(name.lower(), [CONFIG_KEY], cutoff=0.7)
        )
    ]
    reason = None if additional.get(CONFIG_KEY) is None else _reason(config)
    if reason is not None:
        lines.append(
            f"lattice-bpd: {reason}, so the options of {CONFIG_KEY} are ignored; expected "
            f'--speculative-config \'{{"method": "custom_class", "model": "{_CLASS}", '
            '"num_speculative_tokens": 8}\', or no options'
        )
    return lines


def _reason(config: Any) -> str | None:
    """Why no drafter of ours drafts; None: one does."""
    given = config.speculative_config
    if given is None:
        return "no --speculative-config is given, and nothing is drafted"
    if given.method == "custom_class":
        return None if given.model == _CLASS else f"custom_class is {given.model}"
    if given.method not in ("ngram", "ngram_gpu", "dflash"):
        return f"method {given.method!r} is vLLM's own"
    if config.use_v2_model_runner:
        return None
    return f"method {given.method!r} is vLLM's own in model runner V1, which this server uses"


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
    elif (parts := getattr(config.parallel_config, "decode_context_parallel_size", 1)) > 1:
        reason = f"decode_context_parallel_size is {parts}, so that a rank has a part of each text"
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
