"""Drafts from a gated mixture of heads, n-gram LMs, the text so far and texts served before."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.decode.drafters.call_costs import SIZES, CallCosts, ModelCosts
from lattice_bpd.decode.drafters.drafter import Drafter, PerSequence
from lattice_bpd.decode.drafters.head_candidates import HeadCandidates, read_head_candidates
from lattice_bpd.decode.drafters.target_noise import draft_keys, rejects, target_noise
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.mixture import Gates, make_mixture, source_names, split_texts
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.vocabulary import check_same_ids

_LARGEST = SIZES[-1]  # draft tokens of a tree whose size is chosen by cost
# Trees chosen by cost have few different sizes: the first call of a size compiles products for it.
_GRID = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
_ROUNDED_UP = _GRID[np.searchsorted(_GRID, np.arange(_LARGEST + 1))]
_LEAST_SAMPLED = 0.05  # a sampled path ends where its probability is below
_SHARPNESS = 1.0  # see SharedNoise
_PAUSES = (4, 256)  # steps without heads after steps in which they did not pay: first, longest
_THREADED = 16  # sequences from which on several threads search


class TextStore:
    """N-grams of texts served before, for all sequences of a process: a cache LM across texts.

    Threads may share it. Pass one to several MixtureDrafters.

    Args:
        max_tokens: tokens to keep, about 0.5 kB each; older ones are dropped.

    Raises:
        ValueError: max_tokens below 7.
    """

    def __init__(self, max_tokens: int = 200_000) -> None:
        self._core = _core.TextStore(max_tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies hold the same texts."""
        return _restore_store, (self._core.max_tokens, self.token_ids)

    @property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """(T,) int32, the kept tokens; -1 ends a text."""
        return self._core.tokens()

    def add(self, token_ids: Sequence[int] | npt.NDArray[Any]) -> None:
        """Add a text.

        Args:
            token_ids: (T,) ints.

        Raises:
            ValueError: a negative id.
        """
        self._core.add(np.ascontiguousarray(token_ids, np.int32))


def _restore_store(max_tokens: int, token_ids: npt.NDArray[np.int32]) -> TextStore:
    store = TextStore(max_tokens)
    for text in split_texts(token_ids):
        store.add(text)
    return store


class MixtureDrafter(Drafter):
    """The most probable prefixes under a gated mixture of sources, as one tree or chain.

    Linear interpolation of the sources' next-token distributions with bucketed weights, which
    follow each text; see docs/drafters.md. Under `Rejection` a path is sampled instead.

    Args:
        lms: n-gram LMs over the target's token ids, at most 4.
        heads: whether the model's draft heads are a source.
        text: whether the text so far is a source.
        store: texts served before; finished texts are added to it.
        max_nodes: N, draft tokens of a tree; "auto": by the measured cost of calls, 0 to 64.
        top_k: k, candidates of each slot of the heads.
        gates: weights of the sources; None: the defaults for these sources.
        costs: measurements that outlast a text; None: begins without any.

    Raises:
        ValueError: no source, or gates of other sources.
    """

    def __init__(
        self,
        lms: Sequence[NGramLM] = (),
        *,
        heads: bool = False,
        text: bool = True,
        store: TextStore | None = None,
        max_nodes: int | str = "auto",
        top_k: int = 16,
        gates: Gates | None = None,
        costs: ModelCosts | None = None,
    ) -> None:
        self.lms, self.has_heads, self.has_text, self.store = tuple(lms), heads, text, store
        self.max_nodes = _LARGEST if isinstance(max_nodes, str) else max_nodes
        self.sizes_by_cost, self.top_k = isinstance(max_nodes, str), top_k
        names = source_names(len(self.lms), heads=heads, text=text, store=store is not None)
        self.gates = Gates.default(names) if gates is None else gates
        self.gates.check(names)
        self.costs = ModelCosts() if costs is None else costs
        self._core: _core.Mixture | None = None
        self._texts = PerSequence(self._new_text)
        self._step: _Step | None = None
        self._pause, self._next_pause = 0, _PAUSES[0]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies have the same sources, without texts and costs."""
        return _restore, (
            self.lms, self.has_heads, self.has_text, self.store,
            "auto" if self.sizes_by_cost else self.max_nodes, self.top_k, self.gates,
        )  # fmt: skip

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of the most probable prefixes for each state."""
        start = time.perf_counter()
        costs = self.costs.of(len(states))
        self._measure(states, costs, start)
        texts = [self._text_of(state) for state in states]
        heads = self._read_heads(states)
        searched = time.perf_counter()
        if rejects(states):
            trees = self._sample(texts, states, heads)
        else:
            max_nodes, times = self._choose_sizes(costs, searched - start)
            found = self._search(texts, states, heads, max_nodes, times)
            trees = [PrefixTree._of(tree) for tree in found]
            if self.has_heads and times is not None:
                self._pause_heads(trees, were_read=heads is not None)
        now = states[0].stats.lap("draft", searched)
        self._step = _Step(states, max(map(len, trees)) - 1, now)
        return trees

    def observe(self, state: DecodeState, token_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Add a finished text to the store."""
        if self.store is not None and state.finish is not None:
            self.store.add(state.tokens)

    def _new_text(self, state: DecodeState) -> _core.MixtureText:
        if self._core is None:
            for lm in self.lms:
                check_same_ids("MixtureDrafter", "LM", lm.vocab_size, state.model.vocab_size)
            store = None if self.store is None else self.store._core
            self._core = make_mixture(
                state.model.vocab_size, self.lms, heads=self.has_heads, text=self.has_text,
                store=store, gates=self.gates,
            )  # fmt: skip
        return _core.MixtureText(self._core)

    def _text_of(self, state: DecodeState) -> _core.MixtureText:
        """The sequence's text, up to date; new tokens teach the gates."""
        text = self._texts.of(state)
        if len(text) > len(state.tokens):
            text = self._texts.renew(state)
        text.append(state.tokens[len(text) :])
        return text

    def _read_heads(self, states: Sequence[DecodeState]) -> HeadCandidates | None:
        if not self.has_heads or self._pause > 0 or not any(one.num_slots for one in states):
            return None
        return read_head_candidates(states, self.top_k)

    def _choose_sizes(
        self, costs: CallCosts, own_seconds: float
    ) -> tuple[int, npt.NDArray[np.float64] | None]:
        """The most draft tokens, and the times of calls if they decide how many."""
        if not self.sizes_by_cost:
            return self.max_nodes, None
        measured = costs.next_to_measure()
        if measured is not None:
            return measured, None
        return self.max_nodes, costs.times(self.max_nodes)[_ROUNDED_UP] + own_seconds

    def _search(
        self,
        texts: list[_core.MixtureText],
        states: Sequence[DecodeState],
        heads: HeadCandidates | None,
        max_nodes: int,
        times: npt.NDArray[np.float64] | None,
    ) -> list[_core.PrefixTree]:
        noise, state = target_noise(states, _SHARPNESS), states[0]
        allow = None if states[0].constrained is None else _Allowed(states)
        return _core.search_mixtures(
            texts,
            [one.max_draft_length for one in states],
            max_nodes,
            state.is_chain or state.model.target.refuses_tree() is not None,
            *_arrays(heads),
            times,
            allow,
            None if noise is None else (noise.keys, noise.positions, noise.sharpness),
            0 if len(states) >= _THREADED else 1,
        )

    def _sample(
        self,
        texts: list[_core.MixtureText],
        states: Sequence[DecodeState],
        heads: HeadCandidates | None,
    ) -> list[PrefixTree]:
        """Sampled paths with the distributions that their tokens were sampled from."""
        trees = []
        keys = draft_keys(states)
        for row, (text, state, key) in enumerate(zip(texts, states, keys, strict=True)):
            of_row = None if heads is None else heads.row(row)
            core = text.sample(
                state.max_draft_length, self.max_nodes, _LEAST_SAMPLED, key, *_arrays(of_row)
            )
            tree = PrefixTree._of(core)
            sampled = [text.distribution_after(node) for node in range(len(tree))]
            pairs = [None if ids.size == 0 else (ids, probs) for ids, probs in sampled]
            tree.sampled_from = pairs.__getitem__
            trees.append(tree)
        return trees

    def _measure(self, states: Sequence[DecodeState], costs: CallCosts, now: float) -> None:
        """Add the time of the last step, if it was this drafter's and of the same sequences."""
        step, self._step = self._step, None
        if step is not None and step.is_before(states):
            costs.add(step.size, now - step.end)

    def _pause_heads(self, trees: Sequence[PrefixTree], *, were_read: bool) -> None:
        """Leave the heads out for some steps after one in which no draft paid."""
        if not were_read:
            self._pause -= 1
        elif max(map(len, trees)) > 1:
            self._next_pause = _PAUSES[0]
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _PAUSES[1])


class _Step:
    """A step between two proposals.

    Attributes:
        size: draft tokens of its largest tree.
        end: when its drafts were ready.
    """

    def __init__(self, states: Sequence[DecodeState], size: int, end: float) -> None:
        self.size, self.end = size, end
        self._first, self._batch = weakref.ref(states[0]), len(states)
        self._calls = states[0].stats.target_calls

    def is_before(self, states: Sequence[DecodeState]) -> bool:
        """Whether one call for the same sequences followed."""
        is_same = self._first() is states[0] and self._batch == len(states)
        return is_same and states[0].stats.target_calls == self._calls + 1


class _Allowed:
    """The tokens that the constraints of the sequences allow after the nodes of their trees."""

    def __init__(self, states: Sequence[DecodeState]) -> None:
        constrained: list[Any] = [state.constrained for state in states]
        self._merged = [one.merged for one in constrained]
        self._states: list[dict[int, Any]] = [
            {0: one.merged.merge(one.automaton_state)} for one in constrained
        ]

    def __call__(
        self, row: int, node: int, parent: int, token_id: int, token_ids: list[int]
    ) -> list[bool]:
        states = self._states[row]
        if node > 0:
            states[node] = self._merged[row].advance(states[parent], token_id)
        allowed: list[bool] = states[node].mask[token_ids].tolist()
        return allowed


def _arrays(heads: HeadCandidates | None) -> tuple[Any, Any, Any]:
    return (None,) * 3 if heads is None else (heads.token_ids, heads.log_probs, heads.transitions)


def _restore(lms: Sequence[NGramLM], *arguments: Any) -> MixtureDrafter:
    heads, text, store, max_nodes, top_k, gates = arguments
    return MixtureDrafter(
        lms, heads=heads, text=text, store=store, max_nodes=max_nodes, top_k=top_k, gates=gates
    )
