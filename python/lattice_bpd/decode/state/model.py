"""The target with its draft heads, and the interface of heads."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.head_files import SavedHeads, warn_of_other_target
from lattice_bpd.models.heads import BlockwiseHeads, check_heads
from lattice_bpd.models.hooks import loaded
from lattice_bpd.models.lm_call import unwrap_model
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd.verify.graphs import HeadsInCall
from lattice_bpd.verify.target import CausalLMTarget, build_target
from lattice_bpd.vocabulary import check_same_ids

if TYPE_CHECKING:
    from lattice_bpd.decode.state.sequence import DecodeState


@runtime_checkable
class DraftHeads(Protocol):
    """Computes the scores of a lattice from the states of sequences.

    Heads that read only the last hidden state need not implement it: a callable
    `(B, D) -> (B, H, V)` is wrapped, and passed `exact_tokens` if it has such a parameter.

    Attributes:
        num_slots: H; None if unknown before the first call.
        hidden_layers: optional; indices of the target's decoder layers, from 0, whose outputs
            these heads read (-1: the input embeddings). The decoding loop then provides them for
            every token that the target has read and the text keeps: `DecodeState.take_features`.
    """

    num_slots: int | None

    def read_states(self, states: Sequence[DecodeState]) -> Tensor | LatticeInput:
        """Scores of the next positions.

        Args:
            states: B sequences. Heads can keep data of their own, such as a KV cache, in
                `state.memory`.

        Returns:
            Logits (B, H, V) float, slot 0 for the token after `state.tokens`; or the best
            candidates of each slot, with transition scores if there are any.
        """
        ...


HeadsOrCallable = DraftHeads | BlockwiseHeads | Callable[..., Tensor]
"""Types of the argument `heads`."""


class HiddenStateHeads:
    """A callable on the last hidden state, as DraftHeads.

    Args:
        function: hidden states (B, D) float -> logits (B, H, V) float, or candidates.
        num_slots: H; None: what the function says, or unknown.
        in_call: what a recorded call of the target computes them with, or None.
    """

    def __init__(
        self, function: Callable[..., Any], num_slots: int | None = None,
        in_call: HeadsInCall | None = None,
    ) -> None:  # fmt: skip
        self.num_slots: int | None = getattr(function, "num_slots", num_slots)
        self.in_call = in_call
        self._function, self._takes_exact_tokens = function, _takes_exact_tokens(function)

    def read_states(self, states: Sequence[DecodeState]) -> Any:
        """See DraftHeads."""
        known = [state.candidates for state in states if state.candidates is not None]
        if len(known) == len(states):
            ids = np.concatenate([one.token_ids for one in known])
            scores = np.concatenate([one.scores for one in known])
            return LatticeInput(ids, scores, are_log_probs=True)
        if len(states) == 1:
            return self.logits(states[0].hidden[None], states[0].tokens[-1:])
        hidden = torch.stack([state.hidden for state in states])
        return self.logits(hidden, [state.tokens[-1] for state in states])

    def logits(self, hidden: Tensor, exact_tokens: Sequence[int] | None = None) -> Any:
        """The function's output for hidden states (B, D) and the (B,) tokens selected from them."""
        if exact_tokens is None or not self._takes_exact_tokens:
            return self._function(hidden)
        return self._function(hidden, exact_tokens=torch.tensor(exact_tokens, device=hidden.device))


def as_draft_heads(heads: Any, target: CausalLMTarget) -> DraftHeads | None:
    """Heads of any accepted kind as DraftHeads.

    Heads with files of their own (SavedHeads) are moved to the device and dtype of the target.

    Args:
        heads: DraftHeads, an object with a method `as_draft_heads(target) -> DraftHeads`, such as
            a BlockDrafter, a callable, BlockwiseHeads or None.
        target: whose embeddings heads may use.

    Raises:
        TypeError: none of these.
        ValueError: heads of another width or vocabulary, or for another kind of target.
    """
    if hasattr(heads, "as_draft_heads"):
        bound: DraftHeads = heads.as_draft_heads(target)
        return bound
    if heads is None or isinstance(heads, DraftHeads):
        return heads
    if isinstance(heads, SavedHeads):
        heads.to(device=target.device, dtype=target.base.dtype)
    if isinstance(heads, VocabularyHeads):
        heads.attach(target.base)
        in_call = HeadsInCall(heads.lattice_on_device, heads.tensors)
        return HiddenStateHeads(heads.lattice, heads.num_slots, in_call)
    if isinstance(heads, BlockwiseHeads):
        embedding: Any = target.embedding
        weight = getattr(embedding, "weight", None)
        if not isinstance(weight, Tensor):
            raise TypeError(
                f"decode: the output embedding of {type(target.base).__name__} is a "
                f"{type(embedding).__name__} without a weight matrix, so these heads cannot be "
                "compared with it; expected an nn.Linear; load the model with an unquantized "
                "output embedding, or decode without heads"
            )
        with loaded(embedding):
            check_heads(heads, embedding.weight)
        networks = heads  # its type is known here
        project = getattr(embedding, "project_states", embedding)  # see TARGET_PARTS
        return HiddenStateHeads(lambda hidden: project(networks(hidden)), heads.num_slots)
    if not callable(heads):
        is_path = isinstance(heads, (str, Path))
        advice = f"; load them with load_heads({str(heads)!r}) of lattice_bpd.models"
        raise TypeError(
            f"decode: heads is a {type(heads).__name__}; expected a callable that turns hidden "
            f"states (B, D) into logits (B, H, V), or DraftHeads{advice if is_path else ''}"
        )
    return HiddenStateHeads(heads)


def _takes_exact_tokens(function: Any) -> bool:
    """Whether a callable has a parameter `exact_tokens`."""
    try:
        called = function.forward if isinstance(function, nn.Module) else function
        return "exact_tokens" in inspect.signature(called).parameters
    except (TypeError, ValueError):  # some C functions have no signature
        return False


class DraftingModel:
    """A target and its heads, for decoding and drafters.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, or a target.
        heads: a callable that returns logits, BlockwiseHeads, whose states pass through the
            target's output embedding, DraftHeads, or an object whose method `as_draft_heads` makes
            them; None: no heads.

    Attributes:
        target: the model with the interface that verification uses.
        vocab_size: V, columns of the logits.
        device: device of the inputs.
        max_positions: the target's number of positions; None if its config has no limit.
        num_slots: H; None without heads, or until heads that do not state it are first called.
        heads: the draft heads, or None.
        given_heads: the heads as given; of a method, its object.

    Raises:
        ImportError: an encoder-decoder, and lattice-bpd-translation is not installed.
        TypeError: model is not an LM, or heads are not callable.
        ValueError: BlockwiseHeads of another width or vocabulary.
    """

    def __init__(self, model: Any, heads: HeadsOrCallable | None = None) -> None:
        self.target: CausalLMTarget = build_target(unwrap_model(model))
        self.vocab_size, self.device = self.target.vocab_size, self.target.device
        self.max_positions: int | None = self.target.max_positions
        self.given_heads = getattr(heads, "__self__", heads)
        self.heads = as_draft_heads(heads, self.target)
        warn_of_other_target(self.given_heads, self.target.base, "decode")
        self.num_slots = None if self.heads is None else self.heads.num_slots
        layers = tuple(getattr(self.heads, "hidden_layers", ()))
        if layers:
            self.target.provide_features(layers)

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
            TypeError, ValueError: there are no heads, or see `check_outputs`.
        """
        if self.heads is None:
            raise ValueError(
                "decode: this drafter needs head logits and the model has no heads; give heads=, "
                "such as load_heads(folder), or a callable that turns hidden states (B, D) into "
                "logits (B, H, V)"
            )
        return self.check_outputs(self.heads.read_states(states), len(states))

    def check_outputs(self, outputs: Any, rows: int) -> Tensor | LatticeInput:
        """What heads returned for `rows` sequences, with the target's token ids; sets num_slots.

        Returns:
            Logits (rows, H, V), -inf for ids that the heads lack, or candidates.

        Raises:
            TypeError: neither logits nor candidates.
            ValueError: another shape or vocabulary.
        """
        if isinstance(outputs, LatticeInput):
            lattice = outputs.fit(rows, self.vocab_size)
            self.num_slots = lattice.num_slots
            return lattice
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"decode: heads returned {type(outputs).__name__}; expected a tensor of logits "
                "(B, H, V) for hidden states (B, D)"
            )
        shape = outputs.shape
        if len(shape) != 3 or shape[0] != rows or shape[1] == 0:
            raise ValueError(
                f"decode: heads returned logits of shape {tuple(shape)} for {rows} hidden states; "
                "expected (B, H, V) with one slot or more"
            )
        check_same_ids("decode", "heads", shape[2], self.vocab_size)
        self.num_slots = shape[1]
        if shape[2] < self.vocab_size:
            lacking = self.vocab_size - shape[2]
            return nn.functional.pad(outputs, (0, lacking), value=float("-inf"))
        return outputs[..., : self.vocab_size]
