"""Whether a target keeps to the masks and positions of trees, found out by trying."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lattice_bpd.verify.rounding import reads_alike

_KNOWN: WeakKeyDictionary[nn.Module, dict[str, str | None]] = WeakKeyDictionary()


class ProbedTarget(Protocol):
    """What the probe needs of a target, besides that it can be called."""

    base: Any
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    takes_positions: bool

    def __call__(
        self,
        input_ids: Tensor,
        cache: Any,
        *,
        attention_mask: Tensor | None = None,
        windowed_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Any:
        """See TargetModel."""
        ...

    def new_cache(self) -> Any:
        """A cache that covers no token."""
        ...


def find_tree_refusal(target: ProbedTarget) -> str | None:
    """Why the target cannot take trees; None where it can. Tried once for each model."""
    implementation = str(getattr(target.base.config, "_attn_implementation", "eager"))
    known = _KNOWN.setdefault(target.base, {})
    if implementation not in known:
        known[implementation] = _try_tree(target, implementation)
    return known[implementation]


@torch.inference_mode()
def _try_tree(target: ProbedTarget, implementation: str) -> str | None:
    """Whether two siblings in one row read as if each stood alone; None if so, else why not."""
    if implementation not in ("eager", "sdpa"):
        return (
            f"attention implementation {implementation!r} takes no mask of its caller's; load the "
            "model with attn_implementation='sdpa' or 'eager'"
        )
    if not target.takes_positions:
        return f"{type(target.base.base_model).__name__} takes no position ids"
    ids = [index % target.vocab_size for index in (1, 2, 3, 5, 4)]
    # 0 1 2 is the text; 3 and 4 both follow it
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    allowed[4, 3] = False
    mask = torch.zeros(1, 1, 5, 5, dtype=target.dtype)
    mask.masked_fill_(~allowed, torch.finfo(target.dtype).min)
    mask = mask.to(target.device)
    places = torch.tensor([[0, 1, 2, 3, 3]], device=target.device)

    def last_logits(tokens: list[int], places: Tensor, **masks: Any) -> Tensor:
        row = torch.tensor([tokens], device=target.device)
        logits: Tensor = target(row, target.new_cache(), position_ids=places, **masks).logits
        return logits[0, -1].float()

    try:
        found = last_logits(ids, places, attention_mask=mask, windowed_mask=mask)
    except Exception as error:
        return f"{type(target.base).__name__} fails on a four-dimensional mask ({error})"
    steps = torch.arange(5, device=target.device)[None]
    wanted, wrong = last_logits([*ids[:3], ids[4]], steps[:, :4]), last_logits(ids, steps)
    if reads_alike(target.base, found, wanted, wrong):
        return None
    return f"{type(target.base).__name__} does not keep to a four-dimensional mask"
