"""The target's choice among the tokens that a constraint allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.decode.constraint.place import MergedPlaces, Place
from lattice_bpd.decode.constraint.protocol import Constraint
from lattice_bpd.verify.greedy import greedy_tokens
from lattice_bpd.verify.verification import Chooser, Offer


class ConstrainedChooser:
    """Chooses the tokens of one text: another chooser's choice, or argmax, among those allowed.

    Args:
        constraint: what the text must obey.
        stop_token_ids: tokens that end the text, allowed where the constraint accepts.
        inner: chooses from logits that are -inf where a token is not allowed; None: argmax.
        merged: what drafting has learned of the constraint; texts of a batch share it.

    Attributes:
        place: where the text stands.
        ended: whether the last chosen token ended the text.
    """

    def __init__(
        self,
        constraint: Constraint,
        stop_token_ids: Collection[int] = (),
        inner: Chooser | None = None,
        merged: MergedPlaces | None = None,
    ) -> None:
        self.constraint, self.inner = constraint, inner
        stops = frozenset(stop_token_ids) | constraint.end_token_ids
        self.place = Place(constraint.start(), stops)
        self.merged = MergedPlaces() if merged is None else merged
        self.ended = self.place.ended
        self._tokens: list[int] = []

    def choose(self, logits: Tensor, offer: Offer) -> int | None:
        """See `lattice_bpd.verify.Chooser`.

        Raises:
            ValueError: NaN logits, no token that may follow, or an inner chooser that chose one
                which may not.
        """
        if self.ended:
            return None
        if self.place.count == 0:
            raise ValueError(
                f"decode: the constraint has no legal continuation behind {self._shown()}; "
                "expected a token that may follow, or an accepting state; check that the "
                "tokenizer's tokens can write what the constraint asks for"
            )
        token = self._greedy(logits) if self.inner is None else self._ask(logits, offer)
        if token is None:
            return None
        behind = self.place.advance(token)
        if behind is None:
            raise ValueError(
                f"decode: {type(self.inner).__name__} chose token {token} behind {self._shown()}, "
                "which the constraint does not allow; expected one whose logit is above -inf, or "
                "one of the offer"
            )
        self.place = behind
        self._tokens.append(token)
        self.ended = behind.ended or (self.inner is not None and self.inner.ended)
        return token

    def _greedy(self, logits: Tensor) -> int:
        """The greatest logit among the tokens allowed, the smallest id among equals."""
        values = logits.detach().float().cpu().numpy()
        if np.isnan(values.max()):
            greedy_tokens(logits)  # says what is wrong
        token_ids = self.place.token_ids
        return int(token_ids[values[token_ids].argmax()])

    def _ask(self, logits: Tensor, offer: Offer) -> int | None:
        assert self.inner is not None
        mask = torch.from_numpy(self.place.mask).to(logits.device)
        masked = torch.where(mask, logits, float("-inf"))
        if offer.drawn_from is None:  # of tokens that were drawn, none may be left out
            place = self.place
            allowed = [token for token in offer.token_ids if place.advance(token) is not None]
            offer = offer._replace(token_ids=allowed)
        return self.inner.choose(masked, offer)

    def _shown(self) -> str:
        return self.constraint.show(self._tokens) if self._tokens else "the prompt"


def start_constrained(
    constraint: Constraint, stop_token_ids: Collection[int], inner: Sequence[Chooser | None]
) -> list[ConstrainedChooser]:
    """The choosers of a batch of texts under one constraint, around those of `inner`.

    What drafting learns of a constraint stays with it, where it has a dict `learned`.
    """
    stops = frozenset(stop_token_ids)
    learned: dict[frozenset[int], MergedPlaces] = getattr(constraint, "learned", {})
    merged = learned.setdefault(stops, MergedPlaces())
    return [ConstrainedChooser(constraint, stop_token_ids, chooser, merged) for chooser in inner]
