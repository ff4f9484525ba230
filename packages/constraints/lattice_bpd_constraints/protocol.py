"""The interface of constraints on decoded text: automata over token ids."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


class ConstraintState(Protocol):
    """A state of a constraint; immutable, so that drafts can branch from it."""

    @property
    def key(self) -> Hashable:
        """States with equal keys allow the same tokens; drafting merges them.

        If their successors differ, drafts may become shorter; the output stays the same.
        """
        ...

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""
        ...

    def allowed_tokens(self) -> Mask:
        """(V,) bool, read-only: the tokens that may follow, without those that end a text."""
        ...

    def advance(self, token_id: int) -> ConstraintState | None:
        """The state after `token_id`; None if the token is not allowed."""
        ...

    def expected_tokens(self) -> Sequence[int]:
        """The next tokens that are certain or likely given only the constraint; may be empty."""
        ...


class Constraint(Protocol):
    """Restricts which texts may be decoded; implement it for your own constraints.

    A constraint is immutable, so runs may share it. It applies to new tokens only, not to the
    prompt.

    Attributes:
        vocab_size: V, equal to the target's.
        end_token_ids: tokens that end a text, besides the stop tokens of the decoding run.
        learned: optional; an empty dict in which drafting keeps computed states for later runs.
    """

    vocab_size: int
    end_token_ids: frozenset[int]

    def start(self) -> ConstraintState:
        """The state before the first new token."""
        ...

    def show(self, token_ids: Sequence[int]) -> str:
        """A decoded prefix as text for error messages."""
        ...


def check_constraint(constraint: Constraint, vocab_size: int) -> None:
    """Raise unless `constraint` is one for a target with `vocab_size` tokens.

    Raises:
        TypeError: not a constraint.
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
            f"with vocab_size={vocab_size} if the target has more rows than the tokenizer tokens"
        )
