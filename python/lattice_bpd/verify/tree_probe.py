"""A probe of whether a target applies the masks and positions of trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.memory import is_lack_of_memory
from lattice_bpd.verify.rounding import logits_match


def find_tree_refusal(target: Any) -> str | None:
    """Why the target cannot use tree attention, or None; probed once per model.

    Args:
        target: see `lattice_bpd.verify.target.build_target`.

    Raises:
        RuntimeError, MemoryError: no memory for the probe; no result is stored.
    """
    implementation = str(getattr(target.base.config, "_attn_implementation", "eager"))
    facts, key = facts_of(target.base), ("tree refusal", implementation)
    if key not in facts:
        facts[key] = _try_tree(target, implementation)
    refusal: str | None = facts[key]
    return refusal


@torch.inference_mode()
def _try_tree(target: Any, implementation: str) -> str | None:
    """Compare a token that has a sibling in its row with the same token alone."""
    if implementation not in ("eager", "sdpa"):
        return (
            f"attention implementation {implementation!r} takes no custom mask; load the model "
            "with attn_implementation='sdpa' or 'eager'"
        )
    if not target.takes_positions:
        return f"{type(target.base.base_model).__name__} takes no position ids"
    ids = [index % target.vocab_size for index in (1, 2, 3, 5, 4)]
    # tokens 0 1 2 are the text; 3 and 4 both follow it
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    allowed[4, 3] = False
    mask = torch.zeros(1, 1, 5, 5, dtype=target.dtype)
    mask.masked_fill_(~allowed, torch.finfo(target.dtype).min)
    mask = mask.to(target.device)
    positions = torch.tensor([[0, 1, 2, 3, 3]], device=target.device)

    def last_logits(tokens: list[int], positions: Tensor, **masks: Any) -> Tensor:
        row = torch.tensor([tokens], device=target.device)
        logits: Tensor = target(row, target.new_cache(), position_ids=positions, **masks).logits
        return logits[0, -1].float()

    try:
        actual = last_logits(ids, positions, attention_mask=mask, windowed_mask=mask)
    except Exception as error:
        if is_lack_of_memory(error):
            raise
        return f"{type(target.base).__name__} fails on a four-dimensional mask ({error})"
    steps = torch.arange(5, device=target.device)[None]
    expected, wrong = last_logits([*ids[:3], ids[4]], steps[:, :4]), last_logits(ids, steps)
    if logits_match(target.base, actual, expected, wrong):
        return None
    return f"{type(target.base).__name__} does not keep to a four-dimensional mask"
