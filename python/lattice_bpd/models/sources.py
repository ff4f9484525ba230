"""Head sources: the modules that compute the logits of a lattice.

    BlockwiseHeads    states projected by the target's own output embedding
    SequentialHeads   multi-token prediction: each head runs on the previous one
    CallableHeads     any function from hidden states to logits

Decode with `BlockwiseLM(target, heads=source)`. The last two implement `HeadSource`, as can your
own classes and MedusaHeads of lattice-bpd-drafters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.arguments import check_int
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.vocabulary import check_same_ids


@runtime_checkable
class HeadSource(Protocol):
    """An object that computes logits for the slots after the exact token.

    Attributes:
        num_slots: H.
    """

    num_slots: int

    def __call__(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:
        """Logits of all slots.

        Args:
            hidden: (..., D) float, the target's hidden states that predicted the exact tokens.
            exact_tokens: (...) int64, the token y_{t+1} that the target selected from each state;
                None if not selected yet.

        Returns:
            (..., H, V) float; slot 0 predicts the token after the exact one.
        """
        ...


class CallableHeads(nn.Module):
    """A function as a head source.

    Args:
        function: hidden states (B, D) float -> logits (B, H, V) float. A module is moved to the
            target's device and dtype.
        num_slots: H.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], num_slots: int) -> None:
        super().__init__()
        self.function = function
        self.num_slots = check_int("CallableHeads: num_slots", num_slots, 1)

    def forward(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:  # noqa: ARG002
        """See HeadSource.

        Raises:
            ValueError: the function returned another shape than (B, H, V).
        """
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = self.function(rows)
        if logits.ndim != 3 or logits.shape[:2] != (len(rows), self.num_slots):
            raise ValueError(
                f"CallableHeads: the function gave shape {tuple(logits.shape)} for hidden states "
                f"of shape {tuple(rows.shape)}; expected ({len(rows)}, {self.num_slots}, V); "
                "change the function or num_slots"
            )
        return logits.reshape(*hidden.shape[:-1], *logits.shape[1:])


class SequentialHeads(nn.Module):
    """Sequential heads, as in multi-token prediction (DeepSeek-AI 2024, section 2.2).

        state_0 = step(hidden,  embedding of the exact token,       0) -> logits of slot 0
        state_1 = step(state_0, embedding of slot 0's argmax,       1) -> logits of slot 1 ..

    Args:
        step: (states (N, D), embeddings (N, E), slot index) -> states (N, D). One module for all
            slots, or one that selects its layers by the index. It must be stateless: it is called
            for any rows, and once when it is attached.
        num_slots: H.
        target: its input embedding embeds tokens, its output embedding maps states to logits.
        unembed: states (N, D) -> logits (N, V) instead of the target's output embedding, for
            models whose heads have a norm or a projection of their own.
    """

    def __init__(
        self,
        step: Callable[[Tensor, Tensor, int], Tensor],
        num_slots: int,
        target: PreTrainedModel,
        *,
        unembed: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.step, self.num_slots = step, check_int("SequentialHeads: num_slots", num_slots, 1)
        self.unembed = unembed
        self._target = (target,)  # a tuple: its weights are the target's, not these heads'

    def forward(self, hidden: Tensor, exact_tokens: Tensor | None = None) -> Tensor:
        """See HeadSource; exact_tokens default to the target's argmax."""
        target: Any = self._target[0]
        embed, project = target.get_input_embeddings(), target.get_output_embeddings()
        states = hidden.reshape(-1, hidden.shape[-1])
        if exact_tokens is None:
            tokens = project(states).argmax(dim=-1)
        else:
            tokens = exact_tokens.reshape(-1)
        logits = []
        for slot in range(self.num_slots):
            states = self.step(states, embed(tokens), slot)
            slot_logits = cast(Tensor, (self.unembed or project)(states))
            tokens = slot_logits.argmax(dim=-1)
            logits.append(slot_logits)
        return torch.stack(logits, dim=1).reshape(*hidden.shape[:-1], self.num_slots, -1)


def check_heads(heads: BlockwiseHeads | HeadSource, output_weight: Tensor) -> None:
    """Raise unless heads fit a target; sets the vocabulary of BlockwiseHeads that have none.

    Args:
        heads: run once unless they are BlockwiseHeads.
        output_weight: (V, D) of the target's output embedding.

    Raises:
        TypeError: not a head source.
        ValueError: another width, vocabulary or number of slots.
    """
    ours = isinstance(heads, BlockwiseHeads)
    if not ours and not (callable(heads) and isinstance(heads, HeadSource)):
        raise TypeError(
            f"BlockwiseLM: heads is a {type(heads).__name__}; expected BlockwiseHeads or a head "
            "source with num_slots; wrap a function as CallableHeads(function, num_slots)"
        )
    name = type(heads).__name__
    target_vocab, target_width = output_weight.shape
    width = getattr(heads, "hidden_size", target_width)
    if width != target_width:
        raise ValueError(
            f"{name}: the heads take hidden states of width {width}, the target's output "
            f"embedding takes {target_width}; use heads trained on this target"
        )
    if isinstance(heads, BlockwiseHeads):
        vocab_size = heads.vocab_size = heads.vocab_size or target_vocab
    else:
        vocab_size = _try_source(heads, output_weight)
    check_same_ids(name, "heads", vocab_size, target_vocab)


@torch.inference_mode()
def _try_source(source: HeadSource, output_weight: Tensor) -> int:
    """V of the logits that a source returns for one hidden state."""
    logits = source(output_weight.new_zeros(1, output_weight.shape[1]))
    if logits.ndim != 3 or logits.shape[:2] != (1, source.num_slots):
        raise ValueError(
            f"{type(source).__name__}: gave logits of shape {tuple(logits.shape)} for one hidden "
            f"state; expected (1, {source.num_slots}, {output_weight.shape[0]}); set num_slots to "
            "the heads there are"
        )
    return int(logits.shape[-1])
