"""Refuses settings and inputs that `generate` and `CustomGenerate` cannot honor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from lattice_bpd.decode.huggingface.prefill import PROMPT_INPUTS, is_multimodal
from lattice_bpd.decode.huggingface.text_inputs import check_token_types
from lattice_bpd.models.lm_call import CACHE_NAMES, counts_padding

# Settings of a GenerationConfig that change the output or add outputs.
_REFUSED = {
    "penalty_alpha": "contrastive search",
    "dola_layers": "DoLa decoding",
    "prompt_lookup_num_tokens": "prompt lookup (give a drafter instead)",
    "assistant_early_exit": "drafts of the target's first layers (give a drafter instead)",
    "use_mtp": "drafts of the checkpoint's own heads (give heads= instead)",
    "token_healing": "token healing, which needs a tokenizer",
    "prefill_chunk_size": "chunked prefill",
    "constraints": "constrained beam search",
    "force_words_ids": "constrained beam search",
    "output_attentions": "attentions of each step",
    "output_hidden_states": "hidden states of each step",
}
# The last ones are names of earlier versions for the layers that the model's config names.
_CACHES = (None, "dynamic", "static", "hybrid", "hybrid_chunked", "sliding_window")
_KNOWN_INPUTS = {"attention_mask", "position_ids", "use_cache", "logits_to_keep", *CACHE_NAMES}


def refuse_settings(config: GenerationConfig, where: str = "CustomGenerate") -> None:
    """Raise ValueError for a setting that would change the output or add outputs."""
    for name, what in _REFUSED.items():
        returned = name.startswith("output_")
        if getattr(config, name, None) and (not returned or config.return_dict_in_generate):
            raise ValueError(
                f"{where}: {name}={getattr(config, name)!r} ({what}) cannot be honored; "
                "leave it out, or use the model's own generate"
            )
    for name in ("num_beams", "num_return_sequences"):
        several = name == "num_return_sequences" and config.do_sample and where == "CustomGenerate"
        if (getattr(config, name, None) or 1) > 1 and not several:
            advice = f"give generation_config=GenerationConfig({name}=1)"
            if where == "CustomGenerate":
                advice = f"call model.generate(.., {name}=1)"
            raise ValueError(
                f"{where}: {name}={getattr(config, name)} cannot be honored; expected 1; {advice}"
            )
    refuse_cache(config.cache_implementation, where)


def refuse_cache(implementation: str | None, where: str) -> None:
    """Raise ValueError for a cache that cannot roll back or that is lossy."""
    if implementation not in _CACHES:
        raise ValueError(
            f"{where}: cache_implementation={implementation!r} cannot be rolled back; expected one "
            f"of {', '.join(map(repr, _CACHES[:3]))}"
        )


def refuse_inputs(base: Any, input_ids: Tensor, model_kwargs: dict[str, Any]) -> None:
    """Raise ValueError for an input that the model needs after the prompt as well."""
    unknown = sorted(
        name for name, value in model_kwargs.items()
        if value is not None and name not in _KNOWN_INPUTS | PROMPT_INPUTS
    )  # fmt: skip
    if unknown:
        raise ValueError(
            f"CustomGenerate: cannot hand {', '.join(unknown)} to {type(base).__name__}; expected "
            "input_ids, attention_mask, and inputs that belong to the prompt only, such as "
            "pixel_values; use the model's own generate"
        )
    embedded = model_kwargs.get("inputs_embeds")
    if embedded is not None and embedded.shape[1] != input_ids.shape[1]:
        raise ValueError(
            f"CustomGenerate: inputs_embeds has {embedded.shape[1]} positions, input_ids "
            f"{input_ids.shape[1]}; expected the token ids of the whole prompt along with its "
            "embeddings; give input_ids too"
        )
    if not is_multimodal(base):
        check_token_types(model_kwargs.get("token_type_ids"), base)


def refuse_sharded(model: PreTrainedModel) -> None:
    """Raise ValueError if all processes must call the target equally often.

    `generate` does not pass `synced_gpus` to callables, so its default is computed again here.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    zero3 = bool(is_deepspeed_zero3_enabled())  # type: ignore[no-untyped-call]
    sharded = zero3 or is_fsdp_managed_module(model)
    if sharded and torch.distributed.get_world_size() > 1:
        raise ValueError(
            "CustomGenerate: synced_gpus cannot be honored: the target's weights are sharded over "
            "processes (FSDP or DeepSpeed ZeRO 3), but the number of calls depends on the drafts "
            "of each process; gather the weights first, or use the model's own generate"
        )


def visible_tokens(target: Any, row: Tensor, mask: Tensor | None, where: str) -> Tensor:
    """The tokens of a row that are not masked.

    Positions count visible tokens, so a masked token between others has no effect, unless the model
    keeps a state, or counts positions or windows by cache position.

    Args:
        target: the target.
        row: (T,) int64.
        mask: (T,) int64, 0 for masked tokens; None: nothing is masked.
        where: the caller's name, for error messages.

    Raises:
        ValueError: the last token is masked, or a token between others is and affects the output.
    """
    if mask is None:
        return row
    used = mask.to(row.device) != 0
    length = int(used.sum())
    is_left = bool(used[len(row) - length :].all()) and length > 0
    takes_left = target.is_recurrent or target.takes_positions
    if length == len(row) or (is_left and (takes_left or not counts_padding(target.base))):
        return row[len(row) - length :]
    if not bool(used[-1]):
        raise ValueError(
            f"{where}: the last token, {int(row[-1])}, is hidden as padding; expected padding on "
            "the left only; set padding_side='left', or give attention_mask=[1, 1, ..] if it is "
            "text"
        )
    windows = (target.windows.sliding, target.windows.by_cache_position)
    if target.is_recurrent or not target.takes_positions or windows != (None, None):
        what = "padding" if is_left else "tokens between others"
        raise ValueError(
            f"{where}: attention_mask hides {what}, which {type(target.base).__name__} still "
            "counts; leave the hidden tokens out"
        )
    return row[used]


def check_positions(rows: Sequence[Tensor], model_kwargs: dict[str, Any]) -> None:
    """Raise ValueError unless position_ids count the tokens of each row from 0."""
    positions = model_kwargs.get("position_ids")
    if positions is None:
        return
    mask = model_kwargs.get("attention_mask")
    for number, row in enumerate(rows):
        used = positions[number if len(positions) > 1 else 0]
        if mask is not None:
            used = used[mask[number].to(used.device) != 0]
        if used.tolist() != list(range(len(row))):
            raise ValueError(
                "CustomGenerate: position_ids cannot be honored; expected 0, 1, 2, .. from the "
                "first token; leave position_ids out"
            )
