"""A probe of whether a target can verify a draft in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.lm_call import build_inputs, call_forward
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.memory import is_lack_of_memory, try_once
from lattice_bpd.verify.rounding import logits_match

_PROMPT, _NEXT = [1, 2, 3, 5, 4], [6, 3]


def find_cache_refusal(target: Any) -> str | None:
    """Why drafts cannot be verified in one call, or None; probed once per model.

    Args:
        target: a CausalLMTarget whose layers are attention; for others see `find_mixers`.
    """
    return try_once(facts_of(target.base), "cache refusal", lambda: _try_cache(target))


@torch.inference_mode()
def _try_cache(target: Any) -> str | None:
    name = type(target.base).__name__
    try:
        together = _read(target, _PROMPT, [_NEXT])
        singly = _read(target, _PROMPT, [[token] for token in _NEXT])
        without = _read(target, _PROMPT[-1:], [_NEXT])  # as if the cache were empty
    except Exception as error:
        if str(error).startswith("decode:") or is_lack_of_memory(error):
            raise
        return f"{name} fails on tokens that follow a cache ({type(error).__name__}: {error})"
    if bool(torch.isnan(singly).any()):
        return None  # the first call of decoding reports it
    if logits_match(target.base, together, singly, without):
        return None
    return (
        f"{name} gives other logits for several tokens at once than for one after another: it "
        "reads them in both directions (then set is_decoder=True in its config), or keeps a state "
        "outside its cache"
    )


def _read(target: Any, prompt: list[int], parts: list[list[int]]) -> Tensor:
    """(N, V) logits of the tokens after the prompt, which is read in one call, as each part is."""
    cache, start = target.new_cache(), 0
    logits = []
    for part in (prompt, *parts):
        logits.append(read_tokens(target, part, cache, start))
        start += len(part)
    return torch.cat(logits[1:])


def read_tokens(target: Any, tokens: Sequence[int], cache: Any, start: int) -> Tensor:
    """(T, V) float32 logits of the tokens from position `start` on, by the model's own forward."""
    ids = torch.tensor([list(tokens)], device=target.device) % int(target.vocab_size)
    positions = torch.arange(start, start + ids.shape[1], device=target.device)[None]
    inputs = build_inputs(
        target.base, ids, cache, positions, takes_positions=target.takes_positions
    )
    output = call_forward(target.base, target.embedding, inputs, needs_hidden=False)
    return output.logits[0].float()
