"""Drafts that pay: the size of each step's tree, or none, from times and acceptance so far.

A step with N draft tokens takes cost(N) seconds, drafting and all that follows, and is expected to
give 1 + kept(N) tokens. The controller looks at a step now and then, at each where steps are long:
it learns what the steps before gave and took, and finds the size of the greatest rate over the
trees of late. That size have the steps until the next look, or two sizes by turns where the costs
leave open which; this one has the size that is best for its own tree beside that rate. Where
greedy's rate is greater still, it decodes greedily for a while.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from lattice_bpd.decode.adaptive.experience import Book, Experience
from lattice_bpd.decode.adaptive.observed_steps import Before, Gap, Look
from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.drafters.proposals import draft_trees, has_prefix_trees
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree

SIZES = (2, 4, 6, 8, 12, 18, 24, 36, 48, 72, 108, 144, 216, 288)

_TRIED = 8  # draft tokens of a trial, at most: enough to see whether any are kept
_ENOUGH = 2  # times of a size without which it is tried
_SHARE = 0.0025  # of the time may go into looking; where steps are short, it is done more seldom ..
_LONGEST_GAP = 127  # .. but after so many steps at least, ..
_CHECKED = 8  # .. or after a multiple of so many where they bring news
_GREEDY_AGAIN = 48  # looks after which the time of greedy steps is measured anew, ..
_CLOSE = 8  # .. or so many where they are nearly as quick as drafts
_GREEDY_GAP = 2  # steps that it is measured by
_RESTING_GAP = 63  # steps between looks where greedy decoding is quicker
_COMPARED = 2  # sizes that steps between looks may have, by turns
_TRIALS = 2  # looks at drafts in a row after a rest
_SETTLED = 24  # looks before which every step is looked at


class Controller(Drafter):
    """Cuts the trees of another drafter to the size that pays, or drafts nothing.

    Output stays the target's own; only speed changes. One controller serves one call of `decode` or
    `generate_batch` at a time; what it learns may be shared between threads.

    Args:
        drafter: proposes trees with probabilities, such as TreeDrafter, for this controller alone.
            Its max_nodes is the largest size, and is set before each proposal.
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
        self._sets_size = hasattr(drafter, "max_nodes")
        kind: type = type(drafter)
        self._has_prefix_trees = has_prefix_trees(kind)
        self._look: Look | None = None  # the step that was looked at
        self._gap: Gap | None = None  # those behind it

    def propose(self, state: DecodeState) -> PrefixTree | None:
        """A tree of at most max_nodes draft tokens, or None for a greedy step."""
        return self.propose_prefix_trees([state])[0]

    def propose_batch(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """The same for each state."""
        return self.propose_prefix_trees(states)

    def propose_prefix_trees(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """The same for each state."""
        gap = self._gap
        if gap is not None and gap.book.gap > 0 and gap.before.is_of(states):
            return self._go_on(gap, states)
        start = time.perf_counter()
        book = self.experience.book(len(states))
        last = self._look or gap
        with self.experience.lock:
            if last is None or not last.before.has_any(states):
                book.begin_text()
            if self._look is not None:
                self._learn(book, self._look, states, start)
        self._look = None
        if book.gap > 0:
            sizes = tuple(min(size, self.max_nodes) for size in book.gap_sizes)
            self._gap = Gap(Before(states), sizes, book)
            return self._go_on(self._gap, states)
        with self.experience.lock:
            if gap is not None:
                self._learn_gap(book, gap, states, start)
            drafts = self._begin(book)
        self._gap = None
        begun = time.perf_counter()
        found = self._draft(states, self._most(book)) if drafts else _nothing(states)
        look = Look(Before(states), draft=time.perf_counter() - begun)
        trees = self._check(found, states)
        if trees is not None:
            with self.experience.lock:
                look.size, look.promised = self._choose(book, trees)
            trees = [
                tree.cut(look.size, state.room) for tree, state in zip(trees, states, strict=True)
            ]
        look.trees = trees
        look.start = time.perf_counter()
        look.heed = look.start - start - look.draft
        self._look = look
        return _nothing(states) if trees is None or look.size == 0 else [*trees]

    def _go_on(self, gap: Gap, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """A step that is not looked at. Most are, so this does as little as can be."""
        book = gap.book
        book.gap -= 1
        if book.resting > 1:
            book.resting -= 1
        starts, sizes = gap.starts, gap.sizes
        done = len(starts)
        size = sizes[done % len(sizes)]
        now = time.perf_counter()
        if done > 0 and done % _CHECKED == 0 and gap.is_news(now):
            book.gap = 0
        starts.append(now)
        return self._draft(states, size) if size > 0 else _nothing(states)

    def _begin(self, book: Book) -> bool:
        """Whether to draft in the step that is looked at."""
        book.looks += 1
        if book.resting > 0:
            book.resting -= 1
            if book.resting == 0:
                book.try_again()
            return False
        if book.costs.count(0) < _ENOUGH:
            return book.looks % 2 == 1  # at first by turns
        if book.looks % (_CLOSE if book.balance.is_close() else _GREEDY_AGAIN) == 0:
            return False  # the text has grown, and with it the time of a greedy step
        if book.trials == 0 or book.pays():
            return True
        book.begin_rest()
        return False

    def _most(self, book: Book) -> int:
        """Nodes worth looking at."""
        if book.size == 0:
            return self.max_nodes
        above = bisect_right(self._sizes, 2 * book.size)
        return self._sizes[min(above, len(self._sizes) - 1)]

    def _draft(self, states: Sequence[DecodeState], most: int) -> list[PrefixTree | None]:
        if self._sets_size:
            self.drafter.max_nodes = most
        if self._has_prefix_trees:
            found: list[PrefixTree | None] | None = self.drafter.propose_prefix_trees(states)
            if found is not None:
                return found
        return draft_trees(self.drafter, states)

    def _check(
        self, drafted: list[PrefixTree | None], states: Sequence[DecodeState]
    ) -> list[PrefixTree] | None:
        """A tree for each state; None where nothing is drafted for any of them."""
        if all(tree is None for tree in drafted):
            return None
        trees = [
            tree or PrefixTree(state.tokens[-1:], [-1])
            for tree, state in zip(drafted, states, strict=True)
        ]
        if any(tree.log_probs is None for tree in trees):
            raise TypeError(
                f"Controller: {type(self.drafter).__name__} proposed drafts without probabilities; "
                "expected a DraftTree, whose first nodes are a smaller tree; use TreeDrafter"
            )
        return trees

    def _choose(self, book: Book, trees: Sequence[PrefixTree]) -> tuple[int, float]:
        """The best size for these trees, and the tokens of each sequence that it promises.

        At first one that is less known. Sets the size of the book and of the steps that follow.
        """
        most = max(map(len, trees)) - 1
        sizes = [0, *self._sizes[: bisect_left(self._sizes, most)], most]
        kept = self._expect(trees, sizes)
        usual = book.usual(sizes, kept)
        for place in (len(sizes) // 2, -1):
            if book.costs.count(sizes[place]) < _ENOUGH:
                return sizes[place], 1.0 + usual[place]
        tried = range(len(sizes))
        if book.trials == 0:  # a trial has to try something, but nothing dear
            tried = range(1, max(2, bisect_right(sizes, _TRIED, hi=len(sizes) - 1)))
        found = []
        for _ in range(_COMPARED):
            costs = book.costs.seconds(sizes, drawn=True)
            rates = [(1.0 + usual[place]) / costs[place] for place in tried]
            rate = max(rates)
            found.append(sizes[tried[rates.index(rate)]])
        book.size, book.gap_sizes = found[-1], tuple(dict.fromkeys(found))
        gains = [kept[place] - rate * costs[place] for place in tried]
        best = tried[gains.index(max(gains))]
        return sizes[best], 1.0 + usual[best]

    def _expect(self, trees: Sequence[PrefixTree], sizes: list[int]) -> list[float]:
        """Draft tokens that the first nodes of a tree are expected to give, by their number."""
        kept = [0.0] * len(sizes)
        for tree in trees:
            expected = [0.0, *self.experience.calibration.expected(_log_probs(tree)).tolist()]
            most = len(expected) - 1
            for place, size in enumerate(sizes):
                kept[place] += expected[size if size < most else most]
        return [total / len(trees) for total in kept]

    def _learn(self, book: Book, look: Look, states: Sequence[DecodeState], now: float) -> None:
        """Take note of what came of the step that was looked at, if these sequences were in it."""
        book.gap = 0
        before = look.before
        places = {id(state): place for place, state in enumerate(before.states)}
        pairs = [(state, places[id(state)]) for state in states if id(state) in places]
        if not pairs or pairs[0][0].stats.target_calls != before.calls + 1:
            return
        mine = self.experience.book(len(before.states))
        after = now - look.start
        seconds = look.draft + after
        if book.looks > _SETTLED:
            looking = 2.0 * look.heed  # learning takes as long again
            book.gap = min(int(looking / (_SHARE * seconds)), _LONGEST_GAP)
        mine.costs.add(look.size, seconds if look.size > 0 else after, looked_at=True)
        if look.trees is None:
            book.gap_sizes = (0,)
            book.gap = (
                min(book.resting, _RESTING_GAP) if book.resting else min(book.gap, _GREEDY_GAP)
            )
            return
        written = [(place, state.tokens[before.lengths[place] :]) for state, place in pairs]
        gained = sum(len(tokens) for _, tokens in written) / len(pairs)
        mine.trials += 1
        if mine.trials <= _TRIALS:
            book.gap = 0
        mine.note(1, gained, look.promised, seconds)
        for place, tokens in written:
            tree = look.trees[place]
            if len(tree) > 1:
                self.experience.calibration.add(_log_probs(tree), tree.kept(tokens))

    def _learn_gap(self, book: Book, gap: Gap, states: Sequence[DecodeState], now: float) -> None:
        """Take note of the steps that were not looked at, if the same sequences were in all."""
        before, steps = gap.before, len(gap.starts)
        calls = states[0].stats.target_calls - before.calls
        if calls != steps or list(map(id, states)) != list(map(id, before.states)):
            return
        timings = gap.timings(now)
        book.costs.add_mixed(timings)
        if gap.sizes == (0,):
            return
        if gap.is_amiss():
            book.balance.doubt()
        book.note(steps, gap.gained() / steps, gap.promised, (now - gap.starts[0]) / steps)


def _log_probs(tree: PrefixTree) -> Any:
    """Of the nodes of a tree that was asked whether they are known."""
    return tree.log_probs


def _nothing(states: Sequence[DecodeState]) -> list[PrefixTree | None]:
    return [None] * len(states)
