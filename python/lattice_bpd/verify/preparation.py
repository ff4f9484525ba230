"""Checks of what a model's own `prepare_inputs_for_generation` does with a text.

Decoding calls `forward` with the new tokens, their positions, a mask and the cache. Plain
`generate` passes what `prepare_inputs_for_generation` returns, which may be something else: soft
prompts, embeddings, further inputs, or the whole text without its cache (Phi-3 at the boundary of
its rotary frequencies). So an overridden method is called for the prompt, for the token after it
and for the lengths around the boundaries that the config names, and its results are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin

from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.lm_call import CACHE_NAMES, pass_cache, takes_position_ids
from lattice_bpd.verify.call_limits import named_boundaries

_METHOD = "prepare_inputs_for_generation"
# Arguments that change no logits of a text.
_NEUTRAL = {"use_cache", "logits_to_keep", "num_logits_to_keep", "is_decoder", "return_dict",
            "output_attentions", "output_hidden_states", "output_router_logits"}  # fmt: skip


class _SizedCache(DynamicCache):
    """An empty cache that says how many tokens it covers."""

    def __init__(self, config: Any, length: int) -> None:
        super().__init__(config=config)
        self._length = length

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens."""
        return self._length


def find_reread(target: Any, prompt: Sequence[int], length: int, *, is_read: bool) -> int | None:
    """The text length at which `generate` drops the cache and reads the whole text again.

    Args:
        target: a CausalLMTarget, or one whose positions are shifted.
        prompt: (T,) ints.
        length: tokens of the text at its end.
        is_read: the prompt was read by the method itself.

    Returns:
        A number of tokens after T; None: it never does.

    Raises:
        ValueError: the method prepares other inputs than tokens, positions, mask and cache.
    """
    base, reread, first = target.base, None, len(prompt)
    own = getattr(type(base), _METHOD, None)
    if _METHOD not in vars(base) and own in (None, getattr(GenerationMixin, _METHOD)):
        return None
    near = {named + offset for named in named_boundaries(base) for offset in (0, 1, 2)}
    lengths = {first + 1, *(n for n in near if first < n <= length)}
    for tokens in sorted(lengths if is_read else {first, *lengths}):
        text = [*prompt, *[prompt[-1]] * (tokens - first)]
        kind = _prepare(base, text, target.shift, is_first=tokens == first)
        if kind == "whole text" and tokens > first and reread is None:
            reread = tokens
        elif kind not in ("tokens", "whole text" if tokens == first else ""):
            raise ValueError(
                f"decode: {_METHOD} of this {type(base).__name__} changes what `forward` reads of "
                f"a text of {tokens} tokens: {kind}; expected its tokens, their positions, a mask "
                "and the cache; use the model's own generate"
            )
    return reread


def _prepare(base: Any, text: list[int], shift: int, *, is_first: bool) -> str:
    """What the method returns for a text of which the last token is new, or all are."""
    size = len(text)
    ids = torch.tensor([text], device=device_of(base))
    cache = _SizedCache(base.config.get_text_config(decoder=True), 0 if is_first else size - 1)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "use_cache": True}
    if takes_position_ids(base):
        options["position_ids"] = torch.arange(size, device=ids.device)[None]
    options |= {"is_first_iteration": True} if is_first else {"next_sequence_length": 1}
    try:
        inputs = base.prepare_inputs_for_generation(ids, **pass_cache(base, cache), **options)
    except Exception as error:  # of any kind: so would `generate`
        return f"it fails ({type(error).__name__}: {error})"
    return _describe(inputs, ids, cache, shift, is_first=is_first)


def _describe(
    inputs: Mapping[str, Any], ids: Tensor, cache: Any, shift: int, *, is_first: bool
) -> str:
    """`tokens`, `whole text`, or how prepared inputs differ from both."""
    size = ids.shape[1]
    given = next((inputs[name] for name in CACHE_NAMES if inputs.get(name) is not None), None)
    if given is not None and given is not cache:
        return "another cache"
    start = size - 1 if given is not None and not is_first else 0
    expected = {
        "input_ids": ids[:, start:],
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.arange(start, size, device=ids.device)[None] + shift,
    }
    for name, value in inputs.items():
        if value is None or name in _NEUTRAL or name in CACHE_NAMES:
            continue
        if not isinstance(value, Tensor) or name not in expected:
            return f"it adds {name}"
        wanted = expected[name]
        is_comparable = name == "input_ids" or value.ndim == wanted.ndim
        if is_comparable and not (value.shape == wanted.shape and bool((value == wanted).all())):
            return f"{name} is not that of the new tokens"
    if inputs.get("input_ids") is None:
        return "there are no input_ids"
    return "tokens" if given is not None else "whole text"
