"""What `CustomGenerate` cannot honour, refused by name before anything is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

# Settings of a GenerationConfig that change the output or what is returned beside it.
_REFUSED = {
    "do_sample": "sampling",
    "penalty_alpha": "contrastive search",
    "dola_layers": "DoLa decoding",
    "prompt_lookup_num_tokens": "prompt lookup (give a drafter instead)",
    "assistant_early_exit": "drafts of the target's first layers (give a drafter instead)",
    "use_mtp": "drafts of the checkpoint's own heads (give heads= instead)",
    "token_healing": "token healing, which needs a tokenizer",
    "prefill_chunk_size": "reading the prompt in pieces",
    "constraints": "constrained beam search",
    "force_words_ids": "constrained beam search",
    "output_scores": "scores of each step",
    "output_logits": "logits of each step",
    "output_attentions": "attentions of each step",
    "output_hidden_states": "hidden states of each step",
}
_CACHES = (None, "dynamic", "static")
_KNOWN_INPUTS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
# These look at the number of a row, or at all rows together.
_SINGLE_ROW_ONLY = {
    "PrefixConstrainedLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}


def refuse_settings(config: GenerationConfig) -> None:
    """Raise ValueError for a setting that would change the output or what comes with it."""
    for name, what in _REFUSED.items():
        returned = name.startswith("output_")
        if getattr(config, name, None) and (not returned or config.return_dict_in_generate):
            raise ValueError(
                f"CustomGenerate: {name}={getattr(config, name)!r} ({what}) cannot be honoured; "
                "leave it out, or use the model's own generate"
            )
    for name in ("num_beams", "num_return_sequences"):
        if (getattr(config, name, None) or 1) > 1:
            raise ValueError(
                f"CustomGenerate: {name}={getattr(config, name)} cannot be honoured; expected 1"
            )
    if config.cache_implementation not in _CACHES:
        raise ValueError(
            f"CustomGenerate: cache_implementation={config.cache_implementation!r} cannot be "
            f"rolled back; expected one of {', '.join(map(repr, _CACHES))}"
        )


def refuse_inputs(model_kwargs: dict[str, Any]) -> None:
    """Raise ValueError for an input of the model that the loop does not hand on."""
    unknown = sorted(
        name for name, value in model_kwargs.items()
        if value is not None and name not in _KNOWN_INPUTS
    )  # fmt: skip
    if unknown:
        raise ValueError(
            f"CustomGenerate: cannot hand {', '.join(unknown)} to the model; expected input_ids "
            "and attention_mask only; use the model's own generate"
        )
    cache = model_kwargs.get("past_key_values")
    if cache is not None and (
        getattr(cache, "_is_user_defined", False) or int(cache.get_seq_length()) > 0
    ):
        raise ValueError(
            "CustomGenerate: past_key_values cannot be honoured; it keeps a cache of its own; "
            "leave past_key_values out and give the whole text"
        )


def refuse_for_batches(
    batch_size: int, processors: LogitsProcessorList, criteria: StoppingCriteriaList
) -> None:
    """Raise ValueError for what must see all rows at once: each goes at its own speed."""
    if batch_size == 1:
        return
    names = sorted({type(item).__name__ for item in processors} & _SINGLE_ROW_ONLY)
    if not any(isinstance(item, EosTokenCriteria) for item in criteria):
        # Without an end-of-text token, plain generate writes on until all rows are finished.
        names += [
            type(item).__name__ for item in criteria if not isinstance(item, MaxLengthCriteria)
        ]
    if names:
        raise ValueError(
            f"CustomGenerate: {', '.join(names)} cannot be honoured for {batch_size} sequences at "
            "once; generate them one at a time"
        )


def refuse_sharded(model: PreTrainedModel) -> None:
    """Raise ValueError where processes must call the target equally often.

    `generate` keeps `synced_gpus` from callables; this looks where its default comes from.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    zero3 = bool(is_deepspeed_zero3_enabled())  # type: ignore[no-untyped-call]
    sharded = zero3 or is_fsdp_managed_module(model)
    if sharded and torch.distributed.get_world_size() > 1:
        raise ValueError(
            "CustomGenerate: synced_gpus cannot be honoured: the target's weights are spread over "
            "processes (FSDP or DeepSpeed ZeRO 3), and each would call it as often as its own "
            "drafts need; gather the weights first, or use the model's own generate"
        )


def strip_padding(input_ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The tokens of each row of (B, T) without the padding on its left, or ValueError."""
    if mask is None:
        return list(input_ids)
    rows = []
    for number, (row, used) in enumerate(zip(input_ids, mask.to(input_ids.device), strict=True)):
        length = int((used != 0).sum())
        if length == 0 or not bool((used[len(row) - length :] != 0).all()):
            raise ValueError(
                f"CustomGenerate: attention_mask of row {number} hides tokens behind others, or "
                "all; expected padding on the left only; set padding_side='left'"
            )
        rows.append(row[len(row) - length :])
    return rows


def check_positions(rows: Sequence[Tensor], model_kwargs: dict[str, Any]) -> None:
    """Raise ValueError unless position_ids count the tokens of each row from 0."""
    positions = model_kwargs.get("position_ids")
    if positions is None:
        return
    for number, row in enumerate(rows):
        found = positions[number if len(positions) > 1 else 0][-len(row) :].tolist()
        if found != list(range(len(row))):
            raise ValueError(
                "CustomGenerate: position_ids cannot be honoured; expected 0, 1, 2, .. from the "
                "first token on; leave position_ids out"
            )
