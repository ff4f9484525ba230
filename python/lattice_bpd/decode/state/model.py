"""The target with its draft heads."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.lm_call import unwrap_model
from lattice_bpd.models.sources import HeadSource, check_heads
from lattice_bpd.verify.seq2seq_target import Seq2SeqTarget
from lattice_bpd.verify.target import CausalLMTarget

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


class DraftHeads(Protocol):
    """A callable that computes head logits: a module, a method or a function.

    If it has a parameter `exact_tokens`, it is passed y_{t+1} of each row, (B,) int64: the selected
    token, which may differ from the target's argmax because of logits processors.
    """

    def __call__(self, hidden: Tensor, /) -> Tensor:
        """Logits of the next positions.

        Args:
            hidden: (B, D) float, the inputs of the output embedding that predicted y_{t+1}; see
                `lattice_bpd.models.lm_call`.

        Returns:
            (B, H, V) float; slot 0 predicts y_{t+2}.
        """
        ...


@runtime_checkable
class StateHeads(Protocol):
    """Draft heads that read the state of a sequence, not just its last hidden state.

    Attributes:
        num_slots: H.
    """

    num_slots: int

    def read_states(self, states: Sequence[DecodeState]) -> Tensor:
        """Logits of the next positions.

        Args:
            states: B sequences. Heads can store data of their own in `state.memory`.

        Returns:
            (B, H, V) float; slot 0 predicts the token after `state.tokens`.
        """
        ...


AnyHeads = DraftHeads | BlockwiseHeads | StateHeads
"""Types of the argument `heads`."""


class DraftingModel:
    """A target and its heads, for decoding and drafters.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, a BlockwiseLM, which has heads,
            or a Seq2SeqTarget.
        heads: a callable that returns logits, BlockwiseHeads, whose states pass through the
            target's output embedding, or StateHeads; None: the BlockwiseLM's own, or no heads.

    Attributes:
        target: the model with the interface that verification uses.
        vocab_size: V, columns of the logits.
        device: device of the inputs.
        max_positions: the target's number of positions; None if its config has no limit.
        num_slots: H; None before the first call of the heads, or without heads.
        heads_owner: object that holds the heads' weights, if they are a module's.

    Raises:
        TypeError: model is not an LM, or heads are not callable.
        ValueError: BlockwiseHeads of another width or vocabulary.
    """

    target: CausalLMTarget | Seq2SeqTarget

    def __init__(
        self,
        model: PreTrainedModel | BlockwiseLM | Seq2SeqTarget,
        heads: AnyHeads | None = None,
    ) -> None:
        model = unwrap_model(model) if not isinstance(model, BlockwiseLM) else model
        if isinstance(model, Seq2SeqTarget):
            self.target = model
        elif isinstance(model, PreTrainedModel) and model.config.is_encoder_decoder:
            self.target = Seq2SeqTarget(model)
        else:
            self.target = CausalLMTarget(model)
        self.vocab_size, self.device = self.target.vocab_size, self.target.device
        self.max_positions: int | None = self.target.max_positions
        self.heads_owner = model if heads is None else getattr(heads, "__self__", heads)
        if heads is None and isinstance(model, BlockwiseLM):
            heads = model.heads
        self.num_slots = cast("int | None", getattr(heads, "num_slots", None))
        self._takes_exact_tokens = _takes_exact_tokens(heads)
        if isinstance(heads, BlockwiseHeads):
            heads = _through_embedding(heads, self.target.embedding)
        if heads is not None and not (callable(heads) or isinstance(heads, StateHeads)):
            raise TypeError(
                f"decode: heads is a {type(heads).__name__}; expected a callable that turns hidden "
                "states (B, D) into logits (B, H, V)"
            )
        self.heads = heads
        # checked once, since isinstance with a runtime protocol is slow
        self._state_heads = heads if isinstance(heads, StateHeads) else None

    def require_causal(self, where: str) -> None:
        """Raise TypeError if the target is an encoder-decoder."""
        if isinstance(self.target, Seq2SeqTarget):
            raise TypeError(
                f"{where}: {type(self.target.base).__name__} is an encoder-decoder; expected a "
                "decoder-only causal LM; load it with AutoModelForCausalLM"
            )

    def state_logits(self, states: Sequence[DecodeState]) -> Tensor:
        """Logits of the draft heads for B sequences.

        Returns:
            (B, H, V) float.

        Raises:
            ValueError: as `head_logits`.
        """
        if self._state_heads is not None:
            return self._check(self._state_heads.read_states(states), len(states))
        if len(states) == 1:
            return self.head_logits(states[0].hidden[None], states[0].tokens[-1:])
        hidden = torch.stack([state.hidden for state in states])
        return self.head_logits(hidden, [state.tokens[-1] for state in states])

    def head_logits(self, hidden: Tensor, exact_tokens: Sequence[int] | None = None) -> Tensor:
        """Logits of the draft heads.

        Args:
            hidden: (B, D) float.
            exact_tokens: (B,) ints, the selected tokens y_{t+1}, for heads that take them; None if
                unknown.

        Returns:
            (B, H, V) float.

        Raises:
            ValueError: there are no heads, or they return another shape.
        """
        if self.heads is None or self._state_heads is not None:
            raise ValueError(
                "decode: this drafter needs head logits and the model has no heads; give heads=, a "
                "callable that turns hidden states (B, D) into logits (B, H, V), or a BlockwiseLM"
            )
        if exact_tokens is not None and self._takes_exact_tokens:
            chosen = torch.tensor(exact_tokens, device=hidden.device)
            logits = cast("HeadSource", self.heads)(hidden, exact_tokens=chosen)
        else:
            logits = cast("DraftHeads", self.heads)(hidden)
        return self._check(logits, len(hidden))

    def _check(self, logits: Any, rows: int) -> Tensor:
        """Return the logits if they are a tensor of shape (rows, H, V), and set num_slots."""
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"decode: heads returned {type(logits).__name__}; expected a tensor of logits "
                "(B, H, V) for hidden states (B, D)"
            )
        shape = logits.shape
        if len(shape) != 3 or shape[0] != rows or shape[1] == 0:
            raise ValueError(
                f"decode: heads returned logits of shape {tuple(shape)} for {rows} hidden states; "
                "expected (B, H, V) with one slot or more"
            )
        if shape[2] != self.vocab_size:
            raise ValueError(
                f"decode: the heads have a vocabulary of {shape[2]}, the target one of "
                f"{self.vocab_size}; expected the same; use heads that were trained on this target"
            )
        self.num_slots = shape[1]
        return logits

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


def _through_embedding(heads: BlockwiseHeads, embedding: nn.Module) -> DraftHeads:
    """Apply the output embedding to heads that return states."""
    check_heads(heads, cast(Tensor, embedding.weight))

    def logits(hidden: Tensor, /) -> Tensor:
        return cast(Tensor, embedding(heads(hidden)))

    return logits


def _takes_exact_tokens(heads: Any) -> bool:
    """Whether the heads have a parameter `exact_tokens`."""
    if heads is None or isinstance(heads, BlockwiseHeads):
        return False
    try:
        signature = inspect.signature(heads.forward if isinstance(heads, nn.Module) else heads)
    except (TypeError, ValueError):  # some C functions have no signature
        return False
    return "exact_tokens" in signature.parameters
