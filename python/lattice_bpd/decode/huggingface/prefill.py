"""Reads prompts that the model prepares itself: images, and special position ids.

The model reads such a prompt by its own `prepare_inputs_for_generation` and `forward`, as in
`generate`. The text after it is decoded as usual, at positions shifted by the difference between
the prompt's next position and its number of tokens (M-RoPE, PaliGemma).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import utils as generation_utils

from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.text_rules import TextRules
from lattice_bpd.models.forward import LMOutput, call_forward
from lattice_bpd.models.lm_call import pass_cache

# Inputs that `generate` passes only with the prompt, or that do not describe the text after it.
PROMPT_INPUTS = frozenset(
    getattr(generation_utils, "MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL", ())
) | {
    "inputs_embeds", "mm_encoder_outputs", "token_type_ids", "mm_token_type_ids", "image_grid_thw",
    "video_grid_thw", "second_per_grid_ts",
}  # fmt: skip


def prefill(
    model: DraftingModel, input_ids: Tensor, inputs: dict[str, Any], lengths: Sequence[int]
) -> tuple[LMOutput, Any]:
    """Read the prompts of `generate` by the model's own call.

    Args:
        model: the target, which is replaced by a copy with the shift of these prompts.
        input_ids: (B, T) int64, padded on the left.
        inputs: further inputs that `generate` prepared.
        lengths: visible tokens of each prompt.

    Returns:
        Output of the last position and the cache; see `CausalLMTarget.read_prompts`.

    Raises:
        ValueError: positions that differ among the rows or count padding, or a prompt that takes
            another number of cache positions than tokens.
    """
    target = model.target = copy.copy(model.target)
    base: Any = target.base
    cache, size = target.new_cache(), input_ids.shape[1]
    given = {name: value for name, value in inputs.items() if value is not None}
    given |= {**pass_cache(base, cache), "use_cache": True}
    inputs = base.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **given)
    inputs |= pass_cache(base, cache)  # some models drop an empty one (Phi-4 multimodal)
    positions = inputs.get("position_ids")
    if positions is None and min(lengths) < size:
        raise ValueError(
            f"CustomGenerate: {type(base).__name__} counts the padding of prompts as positions, so "
            "prompts of different lengths would change each other's output; generate them one at "
            "a time"
        )
    target.shift = find_shift(base, positions, lengths)
    output = call_forward(
        base, base.get_output_embeddings(), {**inputs, "return_dict": True},
        target.feature_layers, needs_hidden=False,
    )  # fmt: skip
    width = int(cache.get_seq_length())
    if width != size:
        raise ValueError(
            f"CustomGenerate: {type(base).__name__} reads {width} positions for a prompt of {size} "
            "tokens; expected one for each token; use the model's own generate"
        )
    return LMOutput(output.logits[:, -1:], output.hidden[:, -1:], output.features), cache


def shift_positions(model: DraftingModel, rules: Sequence[TextRules]) -> None:
    """Shift the positions of a multimodal target as the model does for these prompts."""
    base: Any = model.target.base
    if not is_multimodal(base):
        return
    text_config = base.config.get_text_config(decoder=True)
    several = len({len(text.prompt) for text in rules}) > 1
    if several and getattr(text_config, "use_bidirectional_attention", None) is True:
        raise ValueError(
            f"generate: {type(base).__name__} reads a prompt without padding in both directions, "
            "a padded one in one direction only, so prompts of different lengths would change "
            "each other's output; generate them one at a time"
        )
    shifts = set()
    for text in rules:
        inputs = {name: value for name, value in text.inputs.items() if value is not None}
        prepared = base.prepare_inputs_for_generation(
            text.prompt[None], is_first_iteration=True, **inputs
        )
        mask = inputs.get("attention_mask")
        length = len(text.prompt) if mask is None else int(mask.sum())
        shifts.add(find_shift(base, prepared.get("position_ids"), [length]))
    if len(shifts) > 1:
        raise ValueError(_different_shifts(base, len(rules)))
    model.target = copy.copy(model.target)  # the caller's own keeps its positions
    model.target.shift = shifts.pop()


def find_shift(base: Any, position_ids: Tensor | None, lengths: Sequence[int]) -> int:
    """The next position after the prompt minus the number of its tokens.

    Args:
        base: the model.
        position_ids: (.., B or 1, T) of the prompt, or None.
        lengths: visible tokens of each prompt.

    Raises:
        ValueError: the prompts or position axes have different shifts.
    """
    if position_ids is None:
        return 0
    if position_ids.ndim == 3 and position_ids.shape[0] == 4:
        position_ids = position_ids[1:]  # the first counts the tokens, for packed sequences
    last = position_ids[..., -1].reshape(-1, position_ids.shape[-2]).cpu()
    shifts = {int(shift) for shift in (last + 1 - torch.tensor(lengths, device="cpu")).flatten()}
    if len(shifts) > 1:
        raise ValueError(_different_shifts(base, len(lengths)))
    return shifts.pop()


def is_multimodal(base: Any) -> bool:
    """Whether a model reads more than text."""
    kinds = getattr(base, "input_modalities", "text")
    return any(kind != "text" for kind in ([kinds] if isinstance(kinds, str) else kinds))


def needs_prefill(base: Any, model_kwargs: dict[str, Any]) -> bool:
    """Whether a prompt is more than token ids at positions 0, 1, 2, ..

    Args:
        base: the model.
        model_kwargs: what `generate` prepared.
    """
    positions = model_kwargs.get("position_ids")
    has_axes = positions is not None and positions.ndim == 3  # M-RoPE
    return is_multimodal(base) or has_axes or model_kwargs.get("inputs_embeds") is not None


def _different_shifts(base: Any, count: int) -> str:
    return (
        f"CustomGenerate: {type(base).__name__} shifts the positions of {count} prompts by "
        "different amounts; generate them one at a time"
    )
