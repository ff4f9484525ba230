"""The interface of drafters, and the one that drafts nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from lattice_bpd.decode.state.model import DraftingModel


class Drafter(Protocol):
    """Proposes drafts for verification; write one to plug in your own.

    Wrong drafts cost time but do not change the output. One drafter may serve several sequences.

    Attributes:
        num_predictions: how many of the target's most probable next tokens after each verified node
            are kept in `state.predictions` for it.
    """

    num_predictions: int = 0

    def propose(self, states: Sequence[DecodeState]) -> Sequence[PrefixTree | None]:
        """Drafts of the tokens that follow `state.tokens`, for all active sequences at once.

        Args:
            states: one per sequence. `state.num_slots` (for drafts of heads) and
                `state.max_draft_length` (for any other) are at least 1. Do not change them, except
                for `state.memory` and `state.stats`.

        Returns:
            For each state a tree below its exact token, `state.tokens[-1]`, or None to draft
            nothing in this step. `PrefixTree.from_drafts` builds one from a list of drafts,
            `PrefixTree.from_nodes` from a row of a DraftTree. Nodes deeper than
            `state.max_draft_length` are dropped.

        Raises:
            DraftError: it cannot draft in this step, which then decodes one token.
        """
        ...

    def observe(self, state: DecodeState, token_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Called with the tokens decoded in each call of the target.

        Args:
            state: the sequence, with these tokens appended.
            token_ids: the accepted draft tokens, then the exact token; after the prompt only the
                first exact token.
        """
        return


class NoDrafter(Drafter):
    """Greedy decoding: every call of the target decodes one token."""

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """None for each state."""
        return [None] * len(states)


@dataclass(frozen=True)
class ModelSizes:
    """Sizes that a model must have; the attribute `model_sizes` of a drafter.

    Attributes:
        vocab_size: V of the target.
        num_slots: H of the heads; fewer are allowed.
        source: where the sizes are from, for error messages.
    """

    vocab_size: int
    num_slots: int
    source: str

    def check(self, model: DraftingModel) -> None:
        """Raise ValueError for a target of another vocabulary, or with more slots."""
        if model.vocab_size != self.vocab_size:
            wrong = f"has a vocabulary of {model.vocab_size}", self.vocab_size
        elif (model.num_slots or 0) > self.num_slots:
            wrong = f"has heads of {model.num_slots} slots", self.num_slots
        else:
            return
        raise ValueError(
            f"decode: the target {wrong[0]}, {self.source} is for {wrong[1]}; make a drafter for "
            "this model: lattice-bpd build"
        )
