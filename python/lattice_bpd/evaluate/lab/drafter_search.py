"""The drafts of the least predicted time for a token: sizes, LM, weights, heads' factors.

A replay tells the draft tokens of every call, a cost curve what such a call takes. Texts are split
in three: numbers are searched on the first part, factors for single heads and entropies are kept
only if they win on the second, and the third says what to expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.strategies.drafter_file import weigh_heads
from lattice_bpd.evaluate.costs.cost_curve import CostCurve
from lattice_bpd.evaluate.lab.options import DEFAULT_ALPHAS, split_texts
from lattice_bpd.evaluate.replay.positions import PositionBatch, Proposal, Rescorers
from lattice_bpd.evaluate.replay.replay import Recording, Replayed
from lattice_bpd.evaluate.replay.settings import DraftOptions
from lattice_bpd.evaluate.replay.strategies import STRATEGIES, Strategy
from lattice_bpd.evaluate.replay.sweep import Point, sweep
from lattice_bpd.evaluate.statistics.bootstrap import PairedTest, compare_paired
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM

_FAMILIES = ("greedy", "bpd", "p_best_0gram", "p_best_ngram", "tree_0gram", "tree")
_ROUNDS = 3  # over all knobs; most searches end after two
_FACTORS = (0.5, 0.7, 1.4, 2.0)
_ENTROPY_WEIGHTS = (-1.0, -0.5, -0.25, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Choice:
    """A way of drafting.

    Attributes:
        name: a strategy of `STRATEGIES`.
        options: its numbers.
        lm: name of the LM; empty without.
        head_scales: see `weigh_heads`.
        entropy_weight: see `weigh_heads`.
    """

    name: str
    options: DraftOptions
    lm: str = ""
    head_scales: tuple[float, ...] | None = None
    entropy_weight: float = 0.0

    @property
    def point(self) -> Point:
        """What to replay."""
        strategy = STRATEGIES[self.name]
        if self.head_scales is not None or self.entropy_weight != 0.0:
            strategy = _weighed(strategy, self.head_scales, self.entropy_weight)
        return Point(strategy, self.options, self.lm)

    def with_knob(self, knob: str, value: Any) -> Choice:
        """The same with another number or LM."""
        if knob == "lm":
            return replace(self, lm=value)
        return replace(self, options=replace(self.options, **{knob: value}))


@dataclass(frozen=True)
class Knobs:
    """Values to try.

    Attributes:
        top_k: k.
        num_drafts: p.
        max_nodes: N.
        alpha: weight of the LM.
        temperature: of trees.
    """

    top_k: tuple[int, ...] = (4, 8, 16)
    num_drafts: tuple[int, ...] = (1, 2, 4, 8, 16)
    max_nodes: tuple[int, ...] = (4, 8, 12, 18, 24, 36, 54, 72)
    alpha: tuple[float, ...] = DEFAULT_ALPHAS
    temperature: tuple[float, ...] = (0.7, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        choice: the best.
        plain: the best without factors of heads; the same where those did not win.
        adopted: factors or entropies against plain, on the second part.
        milliseconds: predicted for a token, on the third part.
        over_greedy: gain in predicted tokens a second over greedy decoding, third part.
        over_bpd: the same over BPD.
        block_efficiency: tokens a call, third part.
        texts: of each part.
    """

    choice: Choice
    plain: Choice
    adopted: PairedTest | None
    milliseconds: float
    over_greedy: PairedTest
    over_bpd: PairedTest
    block_efficiency: float
    texts: tuple[int, int, int]


@dataclass
class DrafterSearch:
    """Searches on replays.

    Args:
        lms: n-gram LMs by name.
        curve: seconds of a call by its draft tokens.
        knobs: values to try.
        on_replay: called after each replay.
        seed: of the split and of the draws.
    """

    lms: Mapping[str, NGramLM]
    curve: CostCurve
    knobs: Knobs = field(default_factory=Knobs)
    on_replay: Callable[[], None] | None = None
    seed: int = 0

    def run(self, recording: Recording) -> Tuned:
        """The best drafts for what was recorded.

        Args:
            recording: three texts or more.

        Raises:
            ValueError: fewer texts, or an LM of another vocabulary.
        """
        parts = self._split(recording)
        plain = self._search_all(parts[0])
        weighed = self._search_factors(parts[0], plain)
        adopted = None
        if weighed != plain:
            adopted = self._compare(parts[1], weighed, plain)
        choice = weighed if adopted is not None and adopted.gain.low > 0.0 else plain
        return self._confirm(parts, choice, plain, adopted)

    def milliseconds(self, replayed: Replayed) -> npt.NDArray[np.float64]:
        """(N,) predicted time of each text; the prompt's call counts as one without drafts."""
        steps = 1e3 * self.curve.seconds(replayed.nodes.tolist())
        prompt = 1e3 * float(self.curve.seconds([0])[0])
        found = np.bincount(replayed.texts, steps, minlength=len(replayed.tokens))
        return np.asarray(prompt + found, np.float64)

    def _split(self, recording: Recording) -> list[Recording]:
        count = len(recording.texts)
        if count < 3:
            raise ValueError(
                f"tune: {count} texts; expected three or more: numbers are searched on some, "
                "chosen on others and confirmed on others; record more"
            )
        third, rest = split_texts(count, count // 3, self.seed)
        second, first = split_texts(len(rest), len(rest) // 2, self.seed + 1)
        chosen = ([rest[n] for n in first], [rest[n] for n in second], third)
        return [recording.select(part) for part in chosen]

    def _search_all(self, recording: Recording) -> Choice:
        """The best numbers of the best family."""
        known = [n for n in _FAMILIES if self.lms or not STRATEGIES[n].uses_lm]
        top_k = max((k for k in self.knobs.top_k if k <= recording.top_k), default=recording.top_k)
        first_lm = next(iter(self.lms), "")
        starts = [
            Choice(name, DraftOptions(top_k=top_k), first_lm if STRATEGIES[name].uses_lm else "")
            for name in known
        ]
        ends = [self._descend(recording, start) for start in starts]
        return ends[int(np.argmin(self._times(recording, ends)))]

    def _descend(self, recording: Recording, start: Choice) -> Choice:
        """One knob after the other, until none helps."""
        strategy = STRATEGIES[start.name]
        values: dict[str, Sequence[Any]] = {}
        if strategy.uses_lm and len(self.lms) > 1:
            values["lm"] = tuple(self.lms)
        for knob in ("max_nodes", "num_drafts", "alpha", "temperature", "top_k"):
            if knob in strategy.knobs:
                values[knob] = getattr(self.knobs, knob)
        if "top_k" in values:
            values["top_k"] = [k for k in values["top_k"] if k <= recording.top_k]
        best = start
        for _ in range(_ROUNDS):
            before = best
            for knob, tried in values.items():
                best = self._best(recording, best, [best.with_knob(knob, v) for v in tried])
            if best == before:
                break
        return best

    def _search_factors(self, recording: Recording, plain: Choice) -> Choice:
        """Entropies first, then one factor for each head."""
        if plain.name in ("greedy", "bpd"):
            return plain
        tried = [replace(plain, entropy_weight=weight) for weight in _ENTROPY_WEIGHTS]
        best = self._best(recording, plain, tried)
        for slot in range(recording.num_slots):
            scales = best.head_scales or (1.0,) * recording.num_slots
            tried = [
                replace(best, head_scales=(*scales[:slot], scales[slot] * f, *scales[slot + 1 :]))
                for f in _FACTORS
            ]
            best = self._best(recording, best, tried)
        return best

    def _best(self, recording: Recording, known: Choice, tried: list[Choice]) -> Choice:
        """The fastest; the known one unless another is faster."""
        choices = [known, *(choice for choice in tried if choice != known)]
        times = self._times(recording, choices)
        return choices[int(np.argmin(times))]

    def _times(self, recording: Recording, choices: Sequence[Choice]) -> list[float]:
        """Predicted milliseconds a token of each."""
        return [
            float(self.milliseconds(found).sum() / found.tokens.sum())
            for found in self._replay(recording, choices)
        ]

    def _replay(self, recording: Recording, choices: Sequence[Choice]) -> list[Replayed]:
        points = [choice.point for choice in choices]
        return sweep([recording], points, self.lms, on_point=self.on_replay)[0]

    def _compare(self, recording: Recording, one: Choice, other: Choice) -> PairedTest:
        """Gain in predicted tokens a second."""
        first, second = self._replay(recording, [one, other])
        times = self.milliseconds(first), self.milliseconds(second)
        return compare_paired(first.tokens, *times, seed=self.seed)

    def _confirm(
        self, parts: Sequence[Recording], choice: Choice, plain: Choice, adopted: PairedTest | None
    ) -> Tuned:
        test = parts[2]
        (found,) = self._replay(test, [choice])
        greedy, bpd = (Choice(name, DraftOptions()) for name in ("greedy", "bpd"))
        return Tuned(
            choice, plain, adopted,
            float(self.milliseconds(found).sum() / found.tokens.sum()),
            self._compare(test, choice, greedy), self._compare(test, choice, bpd),
            found.block_efficiency,
            (len(parts[0].texts), len(parts[1].texts), len(test.texts)),
        )  # fmt: skip


def _weighed(
    strategy: Strategy, head_scales: tuple[float, ...] | None, entropy_weight: float
) -> Strategy:
    """A strategy over scores that `weigh_heads` has changed, as WeighedDrafter drafts."""

    def draft(batch: PositionBatch, rescorers: Rescorers, options: DraftOptions) -> Proposal:
        found = batch.top(options.top_k)
        scores = weigh_heads(found.scores, head_scales, entropy_weight)
        weighed = replace(batch, candidates=Candidates(found.token_ids, scores))
        return strategy.draft(weighed, rescorers, options)

    return replace(strategy, draft=draft)
