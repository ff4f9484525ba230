"""The target together with what drafts for it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models import BlockwiseHeads, BlockwiseLM, HeadSource
from lattice_bpd.verify import CausalLMTarget


class DraftHeads(Protocol):
    """Any source of head logits: a module, a method, a function.

    One with a parameter `exact_tokens` is given y_{t+1} of each row by that name, (B,) int64: the
    token that was chosen, which behind logits processors need not be the target's argmax.
    """

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Logits of the next positions.

        Args:
            hidden: (B, D) float, the states that the target's output embedding turned into its
                choice y_{t+1}.

        Returns:
            (B, H, V) float; slot 0 guesses y_{t+2}.
        """
        ...


class DraftingModel:
    """A target and its heads, as decoding and drafters use them.

    Args:
        model: a causal LM of `transformers`, or a BlockwiseLM, which brings its heads.
        heads: source of head logits; None for the BlockwiseLM's own, or for none.

    Attributes:
        target: the model as verification sees it.
        num_slots: H; None before heads were first called, or without heads.

    Raises:
        TypeError: model is no causal LM, or heads cannot be called.
    """

    def __init__(
        self, model: PreTrainedModel | BlockwiseLM, heads: DraftHeads | None = None
    ) -> None:
        self.target = CausalLMTarget(model)
        self._look_at_tokens = _take_exact_tokens(model if heads is None else heads)
        if heads is None and isinstance(model, BlockwiseLM):
            heads = model.head_logits
            self.num_slots: int | None = model.num_slots
        else:
            self.num_slots = cast("int | None", getattr(heads, "num_slots", None))
        if heads is not None and not callable(heads):
            raise TypeError(
                f"decode: heads is a {type(heads).__name__}; expected a callable that turns hidden "
                "states (B, D) into logits (B, H, V)"
            )
        self.heads = heads

    @property
    def vocab_size(self) -> int:
        """V: columns of the logits."""
        return self.target.vocab_size

    @property
    def device(self) -> torch.device:
        """Where inputs go."""
        return self.target.device

    @property
    def max_positions(self) -> int | None:
        """Tokens that the target has positions for; None where its config names no limit."""
        return self.target.max_positions

    def head_logits(self, hidden: Tensor, exact_tokens: Sequence[int] | None = None) -> Tensor:
        """Logits of the draft heads.

        Args:
            hidden: (B, D) float.
            exact_tokens: (B,) ints, the tokens y_{t+1} that were chosen behind them, for heads that
                look at them; None where they are not known.

        Returns:
            (B, H, V) float.

        Raises:
            ValueError: there are no heads, or they give another shape.
        """
        if self.heads is None:
            raise ValueError(
                "decode: this drafter needs head logits and the model has no heads; give heads=, a "
                "callable that turns hidden states (B, D) into logits (B, H, V), or a BlockwiseLM"
            )
        if exact_tokens is not None and self._look_at_tokens:
            chosen = torch.tensor(exact_tokens, device=hidden.device)
            logits = cast("HeadSource", self.heads)(hidden, exact_tokens=chosen)
        else:
            logits = self.heads(hidden)
        shape = tuple(logits.shape)
        if len(shape) != 3 or shape[0] != len(hidden) or shape[1] == 0:
            raise ValueError(
                f"decode: the heads give logits of shape {shape} for hidden states of shape "
                f"{tuple(hidden.shape)}; expected (B, H, V) with one slot or more"
            )
        if shape[2] != self.vocab_size:
            raise ValueError(
                f"decode: the heads have a vocabulary of {shape[2]}, the target one of "
                f"{self.vocab_size}; expected the same; use heads that were trained on this target"
            )
        self.num_slots = shape[1]
        return logits

    def check_token_ids(self, token_ids: Tensor, where: str) -> None:
        """Raise ValueError unless token_ids are integers in 0..V-1."""
        if token_ids.is_floating_point() or token_ids.is_complex():
            raise ValueError(f"{where}: token ids are {token_ids.dtype}; expected integers")
        low, high = (int(value) for value in torch.aminmax(token_ids))
        if low < 0 or high >= self.vocab_size:
            raise ValueError(
                f"{where}: found token id {low if low < 0 else high}; expected 0.."
                f"{self.vocab_size - 1}; use the tokenizer that the target was trained with"
            )


def _take_exact_tokens(heads: Any) -> bool:
    """Whether heads, or those of a BlockwiseLM, are to be told the exact token."""
    if isinstance(heads, BlockwiseLM):
        heads = heads.heads
    if isinstance(heads, BlockwiseHeads):
        return False
    try:
        signature = inspect.signature(heads.forward if isinstance(heads, nn.Module) else heads)
    except (TypeError, ValueError):  # some functions of C tell none
        return False
    return "exact_tokens" in signature.parameters
