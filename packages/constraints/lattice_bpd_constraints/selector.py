"""Texts under a constraint: their tokens, candidates and draft trees."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.verify.greedy import DraftCandidates, TokenSelector, greedy_tokens
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd_constraints.automaton_state import AutomatonState, MergedStates
from lattice_bpd_constraints.protocol import Constraint, check_constraint
from lattice_bpd_constraints.search import intersect
from lattice_bpd_constraints.trees import MOST_EXPECTED, constrain_tree, cut_tree


class ConstrainedSelector:
    """Selects the tokens of one text, by another selector or argmax, among the allowed tokens.

    It is the `ConstrainedText` of the decoding loop.

    Args:
        constraint: constraint that the text satisfies.
        stop_token_ids: tokens that end the text, allowed in accepting states.
        inner: selects from logits that are -inf for tokens that are not allowed; None: argmax.
        merged: states that drafting has computed; texts of a batch share it.

    Attributes:
        automaton_state: state after the selected tokens.
        ended: whether the last selected token ended the text.
        stop_token_ids: tokens that end the text, those of the constraint too.
        max_added: most nodes that `constrain` adds to a tree.
    """

    max_added = MOST_EXPECTED

    def __init__(
        self,
        constraint: Constraint,
        stop_token_ids: Collection[int] = (),
        inner: TokenSelector | None = None,
        merged: MergedStates | None = None,
    ) -> None:
        self.constraint, self.inner = constraint, inner
        self.stop_token_ids = frozenset(stop_token_ids) | constraint.end_token_ids
        self.automaton_state = AutomatonState(constraint.start(), self.stop_token_ids)
        self.merged = MergedStates() if merged is None else merged
        self.ended = self.automaton_state.ended
        self._tokens: list[int] = []

    @property
    def is_complete(self) -> bool:
        """Whether no token may follow, not even a stop token."""
        return self.automaton_state.ended

    def find_candidates(
        self, logits: npt.NDArray[np.float32], top_k: int, where: str
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32], bool]:
        """The k best tokens of each slot among those that the constraint allows on some path.

        Args:
            logits: (H, V) of the heads.
            top_k: k.
            where: the caller's name, for error messages.

        Returns:
            token_ids (H, k), scores (H, k), and whether a slot depends on the path, so that masking
            the candidates is not enough: then `cut` what is drafted.

        Raises:
            ValueError: top_k out of range, NaN or +inf.
        """
        intersection = intersect(self.automaton_state, self.merged, logits, top_k, where)
        token_ids = np.empty((len(logits), top_k), np.int32)
        scores = np.empty((len(logits), top_k), np.float32)
        intersection.fill_candidates(token_ids, scores)
        return token_ids, scores, intersection.depends

    def cut(self, tree: PrefixTree, max_nodes: int) -> PrefixTree:
        """The first allowed nodes of a tree; see `cut_tree`."""
        return cut_tree(tree, self.automaton_state, max_nodes)

    def constrain(self, tree: PrefixTree, max_depth: int) -> PrefixTree:
        """The allowed nodes of a tree, and expected tokens; see `constrain_tree`."""
        return constrain_tree(tree, self.automaton_state, max_depth)

    def start_tree(self) -> Callable[[int, int, int, list[int]], list[bool]]:
        """Called with a node, its parent, its token and some tokens: which of them may follow.

        Node 0 is the exact token; a parent must have been given before its children.
        """
        nodes: dict[int, Any] = {0: self.merged.merge(self.automaton_state)}

        def allowed_after(
            node: int, parent: int, token_id: int, token_ids: list[int]
        ) -> list[bool]:
            if node > 0:
                nodes[node] = self.merged.advance(nodes[parent], token_id)
            allowed: list[bool] = nodes[node].mask[token_ids].tolist()
            return allowed

        return allowed_after

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


def start_texts(
    constraint: Any,
    vocab_size: int,
    stop_token_ids: Collection[int],
    inner: Sequence[TokenSelector | None],
) -> list[ConstrainedSelector]:
    """Constrained selectors for a batch of texts, each around its selector of `inner`.

    If the constraint has a dict `learned`, states that drafting computes are kept in it.

    Args:
        constraint: the constraint of all texts.
        vocab_size: V of the target.
        stop_token_ids: tokens that end a text, besides those of the constraint.
        inner: of each text; None: argmax.

    Raises:
        TypeError: not a constraint.
        ValueError: a constraint over another vocabulary.
    """
    check_constraint(constraint, vocab_size)
    learned: dict[frozenset[int], MergedStates] = getattr(constraint, "learned", {})
    merged = learned.setdefault(frozenset(stop_token_ids), MergedStates())
    return [ConstrainedSelector(constraint, stop_token_ids, selector, merged) for selector in inner]
