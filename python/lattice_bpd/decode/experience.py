"""What strategy "auto" has learned of a model: what steps cost, and what drafts give."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from lattice_bpd.decode.acceptance import Calibration
from lattice_bpd.decode.step_costs import StepCosts

_SHORTEST_REST = 8  # greedy steps after drafts that did not pay, doubled each time ..
_LONGEST_REST = 512  # .. up to here, so that trying again costs half a percent
_TRUST = 4.0  # steps that a promise counts for, see Book.pays
_NEAR = 1.4  # see Book.is_close
_REMEMBER = 0.975  # what a step with drafts still counts one such step later
_USUAL = 0.9  # what the mean of the trees before counts beside a tree


@dataclass
class Book:
    """What was measured at one batch size.

    Attributes:
        costs: seconds of a step, by draft tokens of each sequence.
        kept: draft tokens that trees of a size were expected to give, a mean over those of late.
        largest: nodes of the last of those trees.
        steps: with drafts,
        tokens: of each sequence that they decoded,
        promised: that they were expected to decode, and
        least: that greedy steps would have given in their time; all four forget.
        size: draft tokens that paid best over the trees of late.
        gap: steps until the next look, and
        gap_sizes: their draft tokens, by turns.
        trials: looks at steps with drafts since the last rest.
        resting: greedy steps still to go.
        rest: how long the next rest will be.
        looks: looks at steps of any kind.
    """

    costs: StepCosts = field(default_factory=StepCosts)
    kept: dict[int, float] = field(default_factory=dict)
    largest: int = 0
    steps: float = 0.0
    tokens: float = 0.0
    promised: float = 0.0
    least: float = 0.0
    size: int = 0
    gap: int = 0
    gap_sizes: tuple[int, ...] = (0,)
    trials: int = 0
    resting: int = 0
    rest: int = _SHORTEST_REST
    looks: int = 0

    def pays(self) -> bool:
        """Whether drafts do: by what they gave of late, and a bit by what they promised.

        What a few steps gave is chance in part; what they promised rests on more, but is slow to
        tell that the text has changed. So the promise counts as if a few more steps had kept it.
        """
        more = _TRUST / max(self.steps, 1e-9)
        return self.tokens + more * self.promised >= (1.0 + more) * self.least

    def is_close(self) -> bool:
        """Whether greedy decoding is nearly as quick, so that its time has to be known well."""
        return self.promised < _NEAR * self.least

    def note(self, steps: int, tokens: float, promised: float, seconds: float) -> None:
        """Steps with drafts, one after the other, and what each gave and took in the mean."""
        fade = _REMEMBER**steps
        weight = (1.0 - fade) / (1.0 - _REMEMBER)
        self.steps = fade * self.steps + weight
        self.tokens = fade * self.tokens + weight * tokens
        self.promised = fade * self.promised + weight * promised
        self.least = fade * self.least + weight * seconds / self.costs.at(0)

    def usual(self, sizes: Sequence[int], kept: Sequence[float]) -> list[float]:
        """Draft tokens that trees of these sizes give, once this tree's are counted in.

        What the tree before had no nodes for, and may be of another text, begins anew.
        """
        usual, more = 0.0, 0.0  # of the size before; tokens that this tree has beyond that
        for size, tokens in zip(sizes, kept, strict=True):
            known = size in self.kept and size <= self.largest
            before = self.kept[size] if known else usual + tokens - more
            usual, more = _USUAL * before + (1.0 - _USUAL) * tokens, tokens
            self.kept[size] = usual
        self.largest = sizes[-1]
        return [self.kept[size] for size in sizes]

    def begin_rest(self) -> None:
        """Drafts did not pay."""
        self.resting, self.rest = self.rest - 1, min(2 * self.rest, _LONGEST_REST)

    def forget(self) -> None:
        """Drafts are to be tried anew."""
        self.steps = self.tokens = self.promised = self.least = 0.0
        self.trials = 0

    def rest_less(self) -> None:
        """Drafts have paid for long."""
        self.rest = _SHORTEST_REST


class Experience:
    """Times and acceptance that outlast a text; several controllers may share them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calibration = Calibration()
        self.books: dict[int, Book] = {}

    def book(self, batch: int) -> Book:
        """What is known for batches of this many sequences."""
        book = self.books.get(batch)
        return self.books.setdefault(batch, Book()) if book is None else book


_OF_MODELS: WeakKeyDictionary[Any, Experience] = WeakKeyDictionary()


def experience_of(model: Any) -> Experience:
    """What decoding with strategy "auto" has learned of a model; kept as long as the model is.

    Args:
        model: a causal LM or a BlockwiseLM.
    """
    return _OF_MODELS.setdefault(model, Experience())
