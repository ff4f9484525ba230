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
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import HeadCandidates, read_head_candidates
from lattice_bpd.decode.drafters.target_noise import rejects, sample_paths, target_noise
from lattice_bpd.decode.state.constraint import start_trees
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import NUM_PREDICTIONS, TextStore, make_mixture, source_names
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.graphs import WIDTHS
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.vocabulary import check_same_ids

_LARGEST = SIZES[-1]  # draft tokens of a tree whose size is chosen by cost
# Trees chosen by cost have few different sizes: the first call of a size compiles products for it.
_GRID = np.array([0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])
_RECORDED = np.array([*(width - 1 for width in WIDTHS if width <= _LARGEST), _LARGEST])
ROUNDED_UP, _FILLED = (
    grid[np.searchsorted(grid, np.arange(_LARGEST + 1))] for grid in (_GRID, _RECORDED)
)
_SHARPNESS = 1.0  # see SharedNoise
_PAUSES = (4, 256)  # steps without heads after steps in which they did not pay: first, longest
_THREADED = 16  # sequences from which on several threads search


class MixtureDrafter(Drafter):
    """The most probable prefixes under a gated mixture of sources, as one tree or chain.

    Linear interpolation of the sources' next-token distributions with bucketed weights, which
    follow each text; see docs/drafters.md. Under `Rejection` a path is sampled instead.

    Args:
        lms: n-gram LMs over the target's token ids, at most 4.
        heads: whether the model's draft heads are a source.
        text: whether the text so far is a source.
        store: texts served before; finished texts are added to it.
        target: whether the target's own predictions at verified tokens are a source.
        max_nodes: N, draft tokens of a tree; "auto": by the measured cost of calls, 0 to 64.
        top_k: k, candidates of each slot of the heads.
        gates: weights of these sources, or several, of which those that fit best are adapted to
            these sources; none: the defaults.
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
        target: bool = True,
        max_nodes: int | str = "auto",
        top_k: int = 16,
        gates: Gates | Sequence[Gates] = (),
        costs: ModelCosts | None = None,
    ) -> None:
        self.lms, self.has_heads, self.has_text, self.store = tuple(lms), heads, text, store
        self.max_nodes = _LARGEST if isinstance(max_nodes, str) else max_nodes
        self.sizes_by_cost, self.top_k = isinstance(max_nodes, str), top_k
        self.num_predictions = NUM_PREDICTIONS if target else 0
        names = source_names(
            len(self.lms), heads=heads, text=text, store=store is not None, target=target
        )
        if isinstance(gates, Gates):
            gates.check(names)
            gates = (gates,)
        self.gates = Gates.fitting(gates, names)
        self.costs = ModelCosts() if costs is None else costs
        self._core: _core.Mixture | None = None
        self._texts: weakref.WeakKeyDictionary[DecodeState, _core.MixtureText] = (
            weakref.WeakKeyDictionary()
        )
        # The last proposal: first sequence, sequences, its calls, largest tree, when it was ready.
        self._step: tuple[weakref.ref[DecodeState], int, int, int, float] | None = None
        self._pause, self._next_pause = 0, _PAUSES[0]

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of the most probable prefixes for each state."""
        start = time.perf_counter()
        costs = self.costs.of(len(states))
        self._measure(states, costs, start)
        texts = [self._text_of(state) for state in states]
        heads = None
        if self.has_heads and self._pause <= 0 and any(one.num_slots for one in states):
            heads = read_head_candidates(states, self.top_k)
        first, searched = states[0], time.perf_counter()
        if first.selector is not None and rejects(states):
            trees = sample_paths(states, texts, heads, self.max_nodes)
        else:
            is_recorded = getattr(first.model.target, "is_recorded", False)
            rounded = _FILLED if is_recorded else ROUNDED_UP
            max_nodes, times = self._choose_sizes(costs, searched - start, rounded)
            trees = self._search(states, texts, heads, max_nodes, times)
            if self.has_heads and times is not None:
                self._pause_heads(trees, were_read=heads is not None)
        now, seconds = time.perf_counter(), first.stats.seconds
        seconds["draft"] = seconds.get("draft", 0.0) + now - searched
        size = max(len(tree) for tree in trees) - 1
        self._step = (weakref.ref(first), len(states), first.stats.target_calls, size, now)
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
                store=store, target=self.num_predictions > 0, gates=self.gates,
            )  # fmt: skip
        return _core.MixtureText(self._core)

    def _measure(self, states: Sequence[DecodeState], costs: CallCosts, now: float) -> None:
        """Add the time of the last step, if one call for the same sequences followed its drafts."""
        if self._step is not None:
            (first, batch, calls, size, end), self._step = self._step, None
            is_same = first() is states[0] and batch == len(states)
            if is_same and states[0].stats.target_calls == calls + 1:
                costs.add(size, now - end)

    def _text_of(self, state: DecodeState) -> _core.MixtureText:
        """The sequence's text, up to date; new tokens teach the gates."""
        text = self._texts.get(state)
        if text is None or len(text) > len(state.tokens):
            text = self._texts[state] = self._new_text(state)
        text.append(state.tokens[len(text) :])
        for length, predictions in state.predictions:
            text.add_predictions(length, *predictions)
        state.predictions = []
        return text

    def _choose_sizes(
        self, costs: CallCosts, own_seconds: float, rounded: npt.NDArray[np.int64]
    ) -> tuple[int, npt.NDArray[np.float64] | None]:
        """The most draft tokens, and the times of calls if they decide how many."""
        if not self.sizes_by_cost:
            return self.max_nodes, None
        measured = costs.next_to_measure()
        if measured is not None:
            return measured, None
        return self.max_nodes, costs.times(self.max_nodes)[rounded] + own_seconds

    def _search(
        self,
        states: Sequence[DecodeState],
        texts: list[_core.MixtureText],
        heads: HeadCandidates | None,
        max_nodes: int,
        times: npt.NDArray[np.float64] | None,
    ) -> list[PrefixTree]:
        first, allow, noise = states[0], None, None
        if first.constrained is not None:
            allow = start_trees([one.constrained for one in states])
        elif first.selector is not None:
            noise = target_noise(states, _SHARPNESS)
        arrays: tuple[Any, Any, Any] = (None, None, None) if heads is None else heads
        trees = _core.search_mixtures(
            texts,
            [one.max_draft_length for one in states],
            max_nodes,
            first.is_chain or first.model.target.refuses_tree() is not None,
            *arrays,
            times,
            allow,
            None if noise is None else (noise.keys, noise.positions, noise.sharpness),
            0 if len(states) >= _THREADED else 1,
        )
        return [PrefixTree.of(tree) for tree in trees]

    def _pause_heads(self, trees: Sequence[PrefixTree], *, were_read: bool) -> None:
        """Leave the heads out for some steps after one in which no draft paid."""
        if not were_read:
            self._pause -= 1
        elif max(map(len, trees)) > 1:
            self._next_pause = _PAUSES[0]
        else:
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _PAUSES[1])
