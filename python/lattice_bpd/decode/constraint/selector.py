"""Token selection among the tokens that a constraint allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.decode.constraint.automaton_state import AutomatonState, MergedStates
from lattice_bpd.decode.constraint.protocol import Constraint
from lattice_bpd.verify.greedy import DraftCandidates, TokenSelector, greedy_tokens


class ConstrainedSelector:
    """Selects the tokens of one text, by another selector or argmax, among the allowed tokens.

    Args:
        constraint: constraint that the text satisfies.
        stop_token_ids: tokens that end the text, allowed in accepting states.
        inner: selects from logits that are -inf for tokens that are not allowed; None: argmax.
        merged: states that drafting has computed; texts of a batch share it.

    Attributes:
        automaton_state: state after the selected tokens.
        ended: whether the last selected token ended the text.
    """

    def __init__(
        self,
        constraint: Constraint,
        stop_token_ids: Collection[int] = (),
        inner: TokenSelector | None = None,
        merged: MergedStates | None = None,
    ) -> None:
        self.constraint, self.inner = constraint, inner
        stops = frozenset(stop_token_ids) | constraint.end_token_ids
        self.automaton_state = AutomatonState(constraint.start(), stops)
        self.merged = MergedStates() if merged is None else merged
        self.ended = self.automaton_state.ended
        self._tokens: list[int] = []

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int | None:
        """See `lattice_bpd.verify.greedy.TokenSelector`.

        Raises:
            ValueError: NaN logits, no allowed token, or a token of the inner selector that is not
                allowed.
        """
        if self.ended:
            return None
        if self.automaton_state.count == 0:
            raise ValueError(
                f"decode: the constraint has no legal continuation after {self._shown()}; "
                "expected an allowed token or an accepting state; check that the tokenizer's "
                "tokens can spell the text that the constraint requires"
            )
        token = self._greedy(logits) if self.inner is None else self._select(logits, candidates)
        if token is None:
            return None
        following = self.automaton_state.advance(token)
        if following is None:
            raise ValueError(
                f"decode: {type(self.inner).__name__} chose token {token} after {self._shown()}, "
                "which the constraint does not allow; expected a token with a logit above -inf, or "
                "one of the candidates"
            )
        self.automaton_state = following
        self._tokens.append(token)
        self.ended = following.ended or (self.inner is not None and self.inner.ended)
        return token

    def _greedy(self, logits: Tensor) -> int:
        """The allowed token with the highest logit, the smallest id among ties."""
        values = logits.detach().float().cpu().numpy()
        if np.isnan(values.max()):
            greedy_tokens(logits)  # raises
        token_ids = self.automaton_state.token_ids
        return int(token_ids[values[token_ids].argmax()])

    def _select(self, logits: Tensor, candidates: DraftCandidates) -> int | None:
        assert self.inner is not None
        mask = torch.tensor(self.automaton_state.mask, device=logits.device)  # read-only: a copy
        masked = torch.where(mask, logits, float("-inf"))
        if candidates.sampled_from is None:  # of sampled tokens, none may be left out
            state = self.automaton_state
            allowed = [token for token in candidates.token_ids if state.advance(token) is not None]
            candidates = candidates._replace(token_ids=allowed)
        return self.inner.choose(masked, candidates)

    def _shown(self) -> str:
        return self.constraint.show(self._tokens) if self._tokens else "the prompt"


def start_constrained(
    constraint: Constraint, stop_token_ids: Collection[int], inner: Sequence[TokenSelector | None]
) -> list[ConstrainedSelector]:
    """Constrained selectors for a batch of texts, each around its selector of `inner`.

    If the constraint has a dict `learned`, states that drafting computes are kept in it.
    """
    stops = frozenset(stop_token_ids)
    learned: dict[frozenset[int], MergedStates] = getattr(constraint, "learned", {})
    merged = learned.setdefault(stops, MergedStates())
    return [ConstrainedSelector(constraint, stop_token_ids, selector, merged) for selector in inner]
