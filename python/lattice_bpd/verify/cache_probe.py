"""Whether a target reads several tokens over its cache as it reads them one after another."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lattice_bpd.models.lm_call import call_forward
from lattice_bpd.verify.memory import is_lack_of_memory, try_once
from lattice_bpd.verify.rounding import reads_alike

_PROMPT, _NEXT = [1, 2, 3, 5, 4], [6, 3]
_KNOWN: WeakKeyDictionary[nn.Module, str | None] = WeakKeyDictionary()


def find_cache_refusal(target: Any) -> str | None:
    """Why drafts cannot be verified in one call; None where they can. Tried once for each model.

    Args:
        target: a CausalLMTarget whose layers are attention; for others see `find_mixers`.

    Raises:
        TypeError: the model does not call its output embedding.
    """
    return try_once(_KNOWN, target.base, lambda: _try_cache(target))


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
    if reads_alike(target.base, together, singly, without):
        return None
    return (
        f"{name} gives other logits for several tokens at once than for one after another: it "
        "reads them in both directions (then set is_decoder=True in its config), or keeps a state "
        "outside its cache"
    )


def _read(target: Any, prompt: list[int], rest: list[list[int]]) -> Tensor:
    """(N, V) logits of the tokens after the prompt, with a call for it and for each part."""
    cache, start = target.new_cache(), 0
    found = []
    for part in (prompt, *rest):
        ids = torch.tensor([part], device=target.device) % target.vocab_size
        positions = torch.arange(start, start + len(part), device=target.device)[None]
        inputs = target.inputs(ids, cache, positions)
        output = call_forward(target.base, target.embedding, inputs)
        start += len(part)
        found.append(output.logits[0].float())
    return torch.cat(found[1:])
