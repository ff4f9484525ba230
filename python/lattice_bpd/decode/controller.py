"""Drafts that pay: the size of each step's tree, or none, from times and acceptance so far.

A step with N draft tokens takes draft + after(N) seconds (heads, top-k and rescoring; the target's
call and what follows it) and is expected to give 1 + kept(N) tokens. The controller takes the N of
the greatest rate, and decodes greedily for a while where greedy's rate is greater still.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from lattice_bpd import DraftTree, DrawnTree
from lattice_bpd.decode.acceptance import Calibration, kept_nodes
from lattice_bpd.decode.cost_curve import CostCurve
from lattice_bpd.decode.drafters import Drafter
from lattice_bpd.decode.proposals import to_numpy
from lattice_bpd.decode.state import DecodeState

Tree = DraftTree | DrawnTree

SIZES = (2, 4, 6, 8, 12, 18, 24, 36, 48, 72, 108, 144, 216, 288)

_SHORTEST_REST = 8  # greedy steps after drafts that did not pay, doubled each time ..
_LONGEST_REST = 256  # .. up to here, so that trying again costs a percent
_TRIED = 8  # draft tokens of a trial, at most: enough to see whether any are kept
_ALL_BUT = 0.8  # see _Book.pays
_ENOUGH = 2  # times of a size without which it is tried
_SHARE = 0.02  # of the time may go into all this; where steps are short, it is done more seldom ..
_MOST_HEEDLESS = 15  # .. but after so many steps at least
_LOOK_AROUND = 48  # how often a neighbouring size or plain greedy is measured anew
_REMEMBER = 0.9  # what a step with drafts still counts one such step later


@dataclass
class _Book:
    """What was measured at one batch size.

    Attributes:
        after: seconds from a proposal to the next one, by draft tokens of each sequence.
        tokens: of each sequence decoded by steps with drafts,
        promised: that they were expected to decode, and
        seconds: that they took; all three forget.
        trials: steps with drafts since the last rest.
        resting: greedy steps still to go.
        rest: how long the next rest will be.
        steps: all steps.
    """

    after: CostCurve = field(default_factory=CostCurve)
    tokens: float = 0.0
    promised: float = 0.0
    seconds: float = 0.0
    trials: int = 0
    resting: int = 0
    rest: int = _SHORTEST_REST
    steps: int = 0

    def pays(self) -> bool:
        """Whether drafts do: by what they gave of late, or all but that and by what they promise.

        What a few steps gave is chance in part; what they promised rests on more, but is slow to
        tell that the text has changed.
        """
        least = self.seconds / self.after.at(0)  # what greedy steps would give
        return self.tokens >= least or (self.tokens >= _ALL_BUT * least and self.promised >= least)

    def forget(self) -> None:
        """Drafts are to be tried anew."""
        self.tokens = self.promised = self.seconds = 0.0
        self.trials = 0


class Experience:
    """Times and acceptance that outlast a text; several controllers may share them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calibration = Calibration()
        self.books: dict[int, _Book] = {}

    def book(self, batch: int) -> _Book:
        """What is known for batches of this many sequences."""
        return self.books.setdefault(batch, _Book())


_OF_MODELS: WeakKeyDictionary[Any, Experience] = WeakKeyDictionary()


def experience_of(model: Any) -> Experience:
    """What decoding with strategy "auto" has learned of a model; kept as long as the model is.

    Args:
        model: a causal LM or a BlockwiseLM.
    """
    return _OF_MODELS.setdefault(model, Experience())


@dataclass
class _Step:
    """The step that the target is verifying.

    Attributes:
        states: of its sequences.
        lengths: tokens of each before it.
        calls: target calls of each before it.
        size: most draft tokens of a sequence.
        tree: None for a greedy step.
        promised: tokens expected of each sequence.
        draft: seconds that drafting took.
        heed: seconds that the controller took besides.
        end: when drafting ended.
    """

    states: list[DecodeState]
    lengths: list[int]
    calls: list[int]
    size: int
    tree: Tree | None
    promised: float
    draft: float
    heed: float
    end: float


class Controller(Drafter):
    """Cuts the trees of another drafter to the size that pays, or drafts nothing.

    Output stays the target's own; only speed changes. One controller serves one call of `decode` or
    `generate_batch` at a time; what it learns may be shared between threads.

    Args:
        drafter: proposes a DraftTree, such as TreeDrafter, for this controller alone. Its max_nodes
            is the largest size, and is set before each proposal.
        experience: what was learned from texts before; None to begin anew, which takes about ten
            steps.

    Raises:
        TypeError: in `propose`, a drafter that proposes no trees.
    """

    def __init__(self, drafter: Any, experience: Experience | None = None) -> None:
        self.drafter = drafter
        self.max_nodes = int(getattr(drafter, "max_nodes", SIZES[-1]))
        self.experience = Experience() if experience is None else experience
        self._sizes = [size for size in SIZES if size < self.max_nodes] + [self.max_nodes]
        self._last: _Step | None = None
        self._most = self.max_nodes  # nodes worth looking at
        self._size = 0  # of the last step that was chosen
        self._heedless = 0  # steps that go on as the last one
        self._aside = 1  # the neighbouring size to look at next: larger or smaller

    def propose(self, state: DecodeState) -> Tree | None:
        """A tree of at most max_nodes nodes, or None for a greedy step."""
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> Tree | None:
        """(B, N) nodes, of which `counts` says how many are to be verified."""
        start = time.perf_counter()
        book = self.experience.book(len(states))
        if self._last is not None:
            with self.experience.lock:
                self._learn(self._last, states, start)
            self._last = None
        if self._heedless > 0:
            self._heedless -= 1
            if book.resting > 1:
                book.resting -= 1
                return None
            return None if self._size == 0 else self._draft(states, self._size)
        with self.experience.lock:
            drafts = self._begin(book)
        begun = time.perf_counter()
        tree = self._draft(states, self._most) if drafts else None
        drafted = time.perf_counter()
        self._size, promised = 0, 1.0
        if tree is not None:
            with self.experience.lock:
                self._size, promised = self._choose(book, tree, drafted - begun)
        end = time.perf_counter()
        self._last = _Step(
            list(states), [len(s.tokens) for s in states], [s.stats.target_calls for s in states],
            self._size, tree, promised, drafted - begun, end - start - (drafted - begun), end,
        )  # fmt: skip
        if tree is None or self._size == 0:
            return None
        return replace(tree, counts=np.minimum(to_numpy(tree.counts), self._size))

    def _begin(self, book: _Book) -> bool:
        """Whether to draft in this step."""
        book.steps += 1
        if book.resting > 0:
            book.resting -= 1
            if book.resting == 0:
                book.forget()
            return False
        if book.after.count(0) < _ENOUGH:
            return book.steps % 2 == 1  # at first by turns
        if book.steps % (2 * _LOOK_AROUND) == 0:
            return False  # the text has grown, and with it the time of a greedy step
        if book.trials == 0 or book.pays():
            if book.trials > _LOOK_AROUND:
                book.rest = _SHORTEST_REST
            return True
        book.resting, book.rest = book.rest - 1, min(2 * book.rest, _LONGEST_REST)
        return False

    def _draft(self, states: Sequence[DecodeState], most: int) -> Tree | None:
        if hasattr(self.drafter, "max_nodes"):
            self.drafter.max_nodes = most
        together = getattr(self.drafter, "propose_batch", None)
        if together is None and len(states) > 1:
            raise TypeError(
                f"Controller: {type(self.drafter).__name__} has no propose_batch for the "
                f"{len(states)} sequences that share it; give each a controller of its own"
            )
        tree = together(states) if together else self.drafter.propose(states[0])
        if tree is not None and not isinstance(tree, (DraftTree, DrawnTree)):
            raise TypeError(
                f"Controller: {type(self.drafter).__name__} proposed a {type(tree).__name__}; "
                "expected a DraftTree, whose first nodes are a smaller tree; use TreeDrafter"
            )
        return tree

    def _choose(self, book: _Book, tree: Tree, draft: float) -> tuple[int, float]:
        """The size of the greatest rate, and the tokens of each sequence that it promises.

        At first and now and then a size that is less known.
        """
        counts: list[int] = to_numpy(tree.counts).tolist()
        most = max(counts, default=0)
        sizes = [0, *self._sizes[: bisect_left(self._sizes, most)], most]
        kept = [0.0] * len(sizes)
        for row, count in zip(to_numpy(tree.log_probs), counts, strict=True):
            expected = [0.0, *self.experience.calibration.expected(row[:count]).tolist()]
            for place, size in enumerate(sizes):
                kept[place] += expected[min(size, count)]
        tokens = [1.0 + total / len(counts) for total in kept]
        for place in (len(sizes) // 2, -1):
            if book.after.count(sizes[place]) < _ENOUGH:
                return sizes[place], tokens[place]
        tried = range(len(sizes))
        if book.trials == 0:  # a trial has to try something, but nothing dear
            tried = range(1, 1 + bisect_right(sizes[1:-1], _TRIED))
        rates = [
            tokens[place] / (draft + book.after.at(sizes[place])) if place in tried else 0.0
            for place in range(len(sizes))
        ]
        best = rates.index(max(rates))
        above = bisect_right(self._sizes, 2 * sizes[best])
        self._most = self._sizes[min(above, len(self._sizes) - 1)]
        if (book.steps + _LOOK_AROUND // 2) % _LOOK_AROUND == 0:
            best = min(max(best + self._aside, 1), len(sizes) - 1)
            self._aside = -self._aside
        return sizes[best], tokens[best]

    def _learn(self, last: _Step, states: Sequence[DecodeState], now: float) -> None:
        """Take note of what came of the last step, if these sequences were in it."""
        places = {id(state): place for place, state in enumerate(last.states)}
        pairs = [(state, places[id(state)]) for state in states if id(state) in places]
        if not pairs or pairs[0][0].stats.target_calls != last.calls[pairs[0][1]] + 1:
            return
        book = self.experience.book(len(last.states))
        after = now - last.end
        book.after.add(last.size, after)
        if last.tree is None:
            self._heedless = _MOST_HEEDLESS if book.resting > 0 else 0
        elif book.steps > _LOOK_AROUND // 2 and book.trials > _LOOK_AROUND // 8:
            heed = 2.0 * last.heed  # learning takes as long again
            share = heed / (_SHARE * (last.draft + after))
            self._heedless = min(int(share), _MOST_HEEDLESS)
        written = [(place, state.tokens[last.lengths[place] :]) for state, place in pairs]
        if last.tree is None:
            return
        gained = sum(len(tokens) for _, tokens in written) * len(last.states) / len(pairs)
        book.trials += 1
        book.tokens = _REMEMBER * book.tokens + gained / len(last.states)
        book.promised = _REMEMBER * book.promised + last.promised
        book.seconds = _REMEMBER * book.seconds + last.draft + after
        for place, tokens in written:
            self._learn_kept(last.tree, place, last.size, tokens)

    def _learn_kept(self, tree: Tree, row: int, size: int, written: list[int]) -> None:
        count = min(size, int(tree.counts[row]))
        if count == 0:
            return
        token_ids, parents, depths = (
            to_numpy(array)[row, :count].tolist()
            for array in (tree.token_ids, tree.parents, tree.depths)
        )
        kept = kept_nodes(token_ids, parents, depths, written)
        self.experience.calibration.add(to_numpy(tree.log_probs)[row, :count], kept)
