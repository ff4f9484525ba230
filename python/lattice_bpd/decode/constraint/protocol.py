"""What a constraint on the decoded text is: an automaton over token ids, walked one at a time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class ConstraintState(Protocol):
    """A state of a constraint; a value that never changes, so that drafts may branch from it."""

    @property
    def key(self) -> Hashable:
        """States of equal keys allow the same tokens, and are taken for one while drafting.

        Where states of equal keys go on differently, drafts may be cut short, no more.
        """
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""
        ...

    def allowed_tokens(self) -> Mask:
        """(V,) bool, read-only: the tokens that may follow, those that end a text left out."""
        ...

    def advance(self, token_id: int) -> ConstraintState | None:
        """The state behind one more token; None where it is not allowed."""
        ...

    def expected_tokens(self) -> Sequence[int]:
        """Tokens that are certain or likely to come, by the constraint alone; maybe none."""
        ...


class Constraint(Protocol):
    """Which texts may be decoded; write one to plug in yours.

    A constraint is a value that many decodes may share. It is about the new tokens alone: the
    prompt is not looked at.

    Attributes:
        vocab_size: V, must be the target's.
        end_token_ids: tokens that end a text besides the stop tokens of the decode.
        learned: may be left out; an empty dict, where drafting keeps for the next decode what it
            has learned of the constraint.
    """

    vocab_size: int
    end_token_ids: frozenset[int]

    def start(self) -> ConstraintState:
        """The state before the first new token."""
        ...

    def show(self, token_ids: Sequence[int]) -> str:
        """A decoded prefix as messages quote it."""
        ...


def check_constraint(constraint: Constraint, vocab_size: int) -> None:
    """Refuse what cannot constrain a target of `vocab_size` tokens.

    Raises:
        TypeError: no constraint.
        ValueError: a constraint over another vocabulary.
    """
    if not hasattr(constraint, "start") or not hasattr(constraint, "vocab_size"):
        raise TypeError(
            f"decode: constraint is a {type(constraint).__name__}; expected a Constraint such as "
            "GuidanceConstraint.from_regex(regex, tokenizer) or FstConstraint(acceptor, vocab_size)"
        )
    if constraint.vocab_size != vocab_size:
        raise ValueError(
            f"decode: the constraint has a vocabulary of {constraint.vocab_size}, the target one "
            f"of {vocab_size}; expected the same; build it with the target's own tokenizer, and "
            f"with vocab_size={vocab_size} where the target has rows that the tokenizer lacks"
        )
