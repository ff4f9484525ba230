"""What strategy "auto" has learned of a model: what steps cost, and what drafts give."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from lattice_bpd.decode.adaptive.step_costs import StepCosts
from lattice_bpd.decode.adaptive.throughput import Balance
from lattice_bpd.decode.drafters.acceptance_rates import Calibration

_SHORTEST_REST = 8  # greedy steps after drafts that did not pay, doubled each time ..
_LONGEST_REST = 512  # .. up to here, so that trying again costs half a percent
_PAID = 24.0  # steps of late with drafts that paid, behind which the next rest is short again
_PAYS = 0.98  # of the tokens of greedy steps, below which drafts rest ..
_HOPE = 0.75  # .. or this, in a trial ..
_TRIAL = 1.0 / 64.0  # .. which may take this share of the next rest
_TEXTS = 0.2  # what a text counts among those before it, see Book.worth
_WORTH = 0.2  # share of the texts, above which drafts are tried in each
_USUAL = 0.9  # what the mean of the trees before counts beside a tree


@dataclass
class Book:
    """What was measured at one batch size.

    Attributes:
        costs: seconds of a step, by draft tokens of each sequence.
        kept: draft tokens that trees of a size were expected to give, a mean over those of late.
        largest: nodes of the last of those trees.
        balance: of the steps with drafts of late.
        size: draft tokens that paid best over the trees of late.
        gap: steps until the next look, and
        gap_sizes: their draft tokens, by turns.
        trials: looks at steps with drafts since the last rest.
        resting: greedy steps still to go.
        rest: how long the next rest will be.
        looks: looks at steps of any kind.
        worth: share of the texts of late at whose end drafts paid.
    """

    costs: StepCosts = field(default_factory=StepCosts)
    kept: dict[int, float] = field(default_factory=dict)
    largest: int = 0
    balance: Balance = field(default_factory=Balance)
    size: int = 0
    gap: int = 0
    gap_sizes: tuple[int, ...] = (0,)
    trials: int = 0
    resting: int = 0
    rest: int = _SHORTEST_REST
    looks: int = 0
    worth: float = 0.5

    def begin_text(self) -> None:
        """Another text, in which drafts may be worth more, or less, than in the one before."""
        if self.resting > 0 or self.balance.is_known():
            paid = self.resting == 0 and self.pays()
            self.worth += _TEXTS * (paid - self.worth)
        self.balance.begin_text()
        if self.worth >= _WORTH:
            self.rest = _SHORTEST_REST
            if self.resting > 0:
                self.resting = self.gap = 0
                self.try_again()

    def pays(self) -> bool:
        """Whether drafts do, or may yet: the longer the rest would be, the longer the trial."""
        in_trial = self.balance.steps < _TRIAL * self.rest
        return self.balance.ratio() >= (_HOPE if in_trial else _PAYS)

    def note(self, steps: int, tokens: float, promised: float, seconds: float) -> None:
        """Steps with drafts, and what each gave, promised and took in the mean."""
        self.balance.note(steps, tokens, promised, seconds / self.costs.at(0))
        if self.balance.steps > _PAID and self.pays():
            self.rest = _SHORTEST_REST

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

    def try_again(self) -> None:
        """Drafts have rested."""
        self.balance.forget()
        self.trials = 0


class Experience:
    """Times and acceptance that outlast a text; several controllers may share them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calibration = Calibration()
        self.books: dict[int, Book] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """A new one: times belong to a process and its machine."""
        return type(self), ()

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
