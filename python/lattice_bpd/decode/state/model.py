"""The target with its draft heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lattice_bpd.decode.state.heads import (
    DraftHeads,
    HeadsOrCallable,
    HiddenStateHeads,
    as_draft_heads,
    check_head_logits,
)
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.head_files import warn_of_other_target
from lattice_bpd.models.lm_call import unwrap_model
from lattice_bpd.verify.target import CausalLMTarget, build_target

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


class DraftingModel:
    """A target and its heads, for decoding and drafters.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, a BlockwiseLM, which has heads,
            or a target.
        heads: a callable that returns logits, BlockwiseHeads, whose states pass through the
            target's output embedding, DraftHeads, or an object whose method `as_draft_heads` makes
            them; a BlockwiseLM of this target: its heads; None: those of `model`, or no heads.

    Attributes:
        target: the model with the interface that verification uses.
        vocab_size: V, columns of the logits.
        device: device of the inputs.
        max_positions: the target's number of positions; None if its config has no limit.
        num_slots: H; None before the first call of the heads, or without heads.
        heads: the draft heads, or None.
        heads_owner: object that holds the heads' weights, if they are a module's.

    Raises:
        ImportError: an encoder-decoder, and lattice-bpd-translation is not installed.
        TypeError: model is not an LM, or heads are not callable.
        ValueError: BlockwiseHeads of another width or vocabulary, or a BlockwiseLM of another
            target.
    """

    def __init__(self, model: Any, heads: HeadsOrCallable | None = None) -> None:
        model = unwrap_model(model) if not isinstance(model, BlockwiseLM) else model
        self.target: CausalLMTarget = build_target(model)
        self.vocab_size, self.device = self.target.vocab_size, self.target.device
        self.max_positions: int | None = self.target.max_positions
        self.heads_owner = model if heads is None else getattr(heads, "__self__", heads)
        if heads is None and isinstance(model, BlockwiseLM):
            heads = model
        if isinstance(heads, BlockwiseLM):
            heads = self._heads_of(heads)
        self.heads = as_draft_heads(heads, self.target)
        warn_of_other_target(self.heads_owner, self.target.base, "decode")
        self.num_slots = None if self.heads is None else self.heads.num_slots
        layers = tuple(getattr(self.heads, "hidden_layers", ()))
        if layers:
            self.target.provide_features(layers)

    def _heads_of(self, model: BlockwiseLM) -> HeadsOrCallable:
        """The heads of a BlockwiseLM."""
        if model.base is not self.target.base:
            raise ValueError(
                f"decode: heads is a BlockwiseLM of another {type(model.base).__name__}; expected "
                "one of the model that decodes; give model.heads, or decode with its own base"
            )
        heads: HeadsOrCallable = model.heads
        return heads

    def require_causal(self, where: str) -> None:
        """Raise TypeError if the target is an encoder-decoder."""
        if self.target.decoder_prompt is not None:
            raise TypeError(
                f"{where}: {type(self.target.base).__name__} is an encoder-decoder; expected a "
                "decoder-only causal LM; load it with AutoModelForCausalLM"
            )

    def read_heads(self, states: Sequence[DecodeState]) -> Tensor | LatticeInput:
        """The heads' output for B sequences: logits (B, H, V), or candidates.

        Raises:
            ValueError: there are no heads, or they return another shape.
        """
        outputs = self._some_heads().read_states(states)
        if isinstance(outputs, LatticeInput):
            outputs = outputs.fit(len(states), self.vocab_size)
            self.num_slots = outputs.num_slots
            return outputs
        return self._check(outputs, len(states))

    def head_logits(self, hidden: Tensor, exact_tokens: Sequence[int] | None = None) -> Tensor:
        """Logits of heads that read only the last hidden state.

        Args:
            hidden: (B, D) float.
            exact_tokens: (B,) ints, the selected tokens y_{t+1}, for heads that take them; None if
                unknown.

        Returns:
            (B, H, V) float.

        Raises:
            ValueError: there are no such heads, or they return another shape.
        """
        heads = self._some_heads()
        if not isinstance(heads, HiddenStateHeads):
            raise ValueError(
                f"decode: {type(heads).__name__} read more than a hidden state; expected heads "
                "that are a function of it; call read_heads(states)"
            )
        logits = heads.logits(hidden, exact_tokens)
        if isinstance(logits, LatticeInput):
            logits = logits.to_logits(self.vocab_size)
        return self._check(logits, len(hidden))

    def _some_heads(self) -> DraftHeads:
        if self.heads is None:
            raise ValueError(
                "decode: this drafter needs head logits and the model has no heads; give heads=, a "
                "callable that turns hidden states (B, D) into logits (B, H, V), or a BlockwiseLM"
            )
        return self.heads

    def _check(self, logits: Any, rows: int) -> Tensor:
        checked = check_head_logits(logits, rows, self.vocab_size)
        self.num_slots = checked.shape[1]
        return checked

    def check_token_ids(self, token_ids: Tensor, where: str, vocab_size: int | None = None) -> None:
        """Raise ValueError unless token_ids are integers in 0..V-1, V the target's by default."""
        size = self.vocab_size if vocab_size is None else vocab_size
        if token_ids.is_floating_point() or token_ids.is_complex():
            raise ValueError(f"{where}: token ids are {token_ids.dtype}; expected integers")
        low, high = (int(value) for value in torch.aminmax(token_ids))
        if low < 0 or high >= size:
            raise ValueError(
                f"{where}: found token id {low if low < 0 else high}; expected 0.."
                f"{size - 1}; use the tokenizer that the target was trained with"
            )
