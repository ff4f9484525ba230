"""Search for the drafting strategy and options with the lowest predicted time per token.

A replay gives the number of draft tokens of every call, and a cost curve the time of such a call;
rescoring by a causal LM adds its own time to each call that verifies drafts.
Texts are split in two parts: one is searched on, the other gives an unbiased estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.build.call_costs import interpolate_costs
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.scorers.protocol import TransitionScorer
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.lab.lab import DEFAULT_ALPHAS, SCORER_ALPHAS, split_texts
from lattice_bpd_kim2024.lab.paired import PairedTest, compare_paired
from lattice_bpd_kim2024.replay.replay import Recording, Replayed
from lattice_bpd_kim2024.replay.scorers import (
    MIXTURE_WEIGHTS,
    Scorers,
    make_mixtures,
    mixture_name,
)
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.replay.sweep import Point, sweep

FAMILIES = (
    "greedy", "bpd", "p_best_0gram", "p_best_ngram", "tree_0gram", "tree", "neural", "mixture",
)  # fmt: skip
"""Strategies to search, names of `STRATEGIES`."""
CHAIN_FAMILIES = ("greedy", "bpd", "chain")
"""Strategies for engines that verify one draft; without an LM the chain of heads is BPD's."""
_ROUNDS = 3  # over all options; most searches end after two


@dataclass(frozen=True)
class Choice:
    """A way of drafting.

    Attributes:
        name: a strategy of `STRATEGIES`.
        options: its options.
        lm: name of the LM; empty without one.
        scorer: name of the rescorer; empty without one.
        lm_weight: of the LM in a mixture with the rescorer, whose weight is 1; else 0.
    """

    name: str
    options: DraftConfig = field(default_factory=DraftConfig)
    lm: str = ""
    scorer: str = ""
    lm_weight: float = 0.0

    @property
    def point(self) -> Point:
        """What to replay."""
        is_mixture = self.lm and self.scorer
        scorer = mixture_name(self.scorer, self.lm_weight, self.lm) if is_mixture else self.scorer
        return Point(STRATEGIES[self.name], self.options, self.lm, scorer)

    def with_option(self, name: str, value: Any) -> Choice:
        """The same with another value of one option, or another LM, LM weight or rescorer."""
        if name in ("lm", "lm_weight", "scorer"):
            return replace(self, **{name: value})
        return replace(self, options=replace(self.options, **{name: value}))


@dataclass(frozen=True)
class SearchSpace:
    """Values to try: k, p, N, weights of LM, rescorer and mixtures, and temperatures of trees."""

    top_k: tuple[int, ...] = (4, 8, 16)
    num_drafts: tuple[int, ...] = (1, 2, 4, 8, 16)
    max_nodes: tuple[int, ...] = (4, 8, 12, 18, 24, 36, 54, 72)
    alpha: tuple[float, ...] = DEFAULT_ALPHAS
    scorer_alpha: tuple[float, ...] = SCORER_ALPHAS
    lm_weight: tuple[float, ...] = MIXTURE_WEIGHTS
    temperature: tuple[float, ...] = (0.7, 1.0, 1.5, 2.0, 3.0)


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        choice: the best.
        milliseconds: predicted time per token on the second part.
        over_greedy: gain in predicted tokens per second over greedy decoding, second part.
        over_bpd: the same over BPD.
        block_efficiency: tokens per call, second part.
        texts: number of texts in each part.
    """

    choice: Choice
    milliseconds: float
    over_greedy: PairedTest
    over_bpd: PairedTest
    block_efficiency: float
    texts: tuple[int, int]


@dataclass
class DrafterSearch:
    """Searches by replaying a recording.

    Args:
        lms: n-gram LMs by name.
        costs: milliseconds of a call by its number of draft tokens.
        space: values to try.
        on_replay: called after each replay.
        seed: of the split and of the bootstrap.
        scorers: rescorers by name, for strategies "neural" and, with LMs, "mixture".
        rescoring: milliseconds that rescoring of one draft takes, by the rescorer's name.
        families: strategies to search, names of `STRATEGIES`, where their LM and scorer are given.
    """

    lms: Mapping[str, NGramLM]
    costs: Mapping[int, float]
    space: SearchSpace = field(default_factory=SearchSpace)
    on_replay: Callable[[], None] | None = None
    seed: int = 0
    scorers: Mapping[str, TransitionScorer] = field(default_factory=dict)
    rescoring: Mapping[str, float] = field(default_factory=dict)
    families: tuple[str, ...] = FAMILIES

    def __post_init__(self) -> None:
        """Make the mixtures of rescorers and n-gram LMs."""
        mixtures = make_mixtures(self.scorers, self.lms, self.space.lm_weight)
        self._scorers: Scorers = {"neural": self.scorers, "mixture": mixtures}

    def run(self, recording: Recording) -> Tuned:
        """The best way of drafting for the recorded texts.

        Args:
            recording: two texts or more.

        Raises:
            ValueError: fewer texts, or an LM of another vocabulary.
        """
        used = {k: v for name in self.families for k, v in self._scorers.get(name, {}).items()}
        recording = recording.read_with(used) if used else recording
        searched, test = self._split(recording)
        choice = self._search_strategies(searched)
        (replayed,) = self._replay(test, [choice])
        return Tuned(
            choice,
            self._time_per_token(choice, replayed),
            self._compare(test, choice, Choice("greedy")),
            self._compare(test, choice, Choice("bpd")),
            replayed.block_efficiency,
            (len(searched.texts), len(test.texts)),
        )  # fmt: skip

    def milliseconds(self, replayed: Replayed, scorer: str = "") -> npt.NDArray[np.float64]:
        """(N,) predicted time of each text; the prompt's call counts as one without drafts.

        Args:
            replayed: a replay.
            scorer: name of the rescorer that drafted, alone or in a mixture, whose time is added
                to each call with drafts.
        """
        calls = interpolate_costs(self.costs, replayed.nodes.tolist())
        if scorer:
            calls = calls + self.rescoring[scorer] * (replayed.nodes > 0)
        decoding = np.bincount(replayed.texts, calls, minlength=len(replayed.tokens))
        return np.asarray(interpolate_costs(self.costs, [0]) + decoding, np.float64)

    def _split(self, recording: Recording) -> tuple[Recording, Recording]:
        count = len(recording.texts)
        if count < 2:
            raise ValueError(
                f"tune: {count} texts; expected two or more, since texts are split in two parts: "
                "to search and to confirm; record more"
            )
        test, searched = split_texts(count, max(count // 3, 1), self.seed)
        return recording.select(searched), recording.select(test)

    def _search_strategies(self, recording: Recording) -> Choice:
        """The best options of the best strategy."""
        top_k = max((k for k in self.space.top_k if k <= recording.top_k), default=recording.top_k)
        starts = []
        for strategy in map(STRATEGIES.__getitem__, self.families):
            lm = next(iter(self.lms), "") if strategy.uses_lm else ""
            scorer = next(iter(self.scorers), "") if strategy.uses_scorer else ""
            if (strategy.uses_lm, strategy.uses_scorer) != (bool(lm), bool(scorer)):
                continue  # no LM or no rescorer is given
            weight = self.space.lm_weight[0] if lm and scorer else 0.0
            starts.append(Choice(strategy.name, DraftConfig(top_k=top_k), lm, scorer, weight))
        return self._fastest(recording, [self._descend(recording, start) for start in starts])

    def _descend(self, recording: Recording, best: Choice) -> Choice:
        """Coordinate descent: one option after the other, until none improves."""
        strategy = STRATEGIES[best.name]
        values: dict[str, Sequence[Any]] = {}
        if strategy.uses_lm and len(self.lms) > 1:
            values["lm"] = tuple(self.lms)
        if best.scorer and len(self.scorers) > 1:
            values["scorer"] = tuple(self.scorers)
        if best.lm and best.scorer:
            values["lm_weight"] = self.space.lm_weight
        for name in ("max_nodes", "num_drafts", "alpha", "temperature", "top_k"):
            if name in strategy.option_names:
                values[name] = getattr(self.space, name)
        if best.scorer:
            values["alpha"] = self.space.scorer_alpha
        if "top_k" in values:
            values["top_k"] = [k for k in values["top_k"] if k <= recording.top_k]
        for _ in range(_ROUNDS):
            start = best
            for name, tried in values.items():
                best = self._fastest(recording, [best, *(best.with_option(name, v) for v in tried)])
            if best == start:
                break
        return best

    def _fastest(self, recording: Recording, choices: Sequence[Choice]) -> Choice:
        """The choice with the lowest predicted time per token, the first of several."""
        distinct = list(dict.fromkeys(choices))
        replays = self._replay(recording, distinct)
        times = [self._time_per_token(*pair) for pair in zip(distinct, replays, strict=True)]
        return distinct[int(np.argmin(times))]

    def _time_per_token(self, choice: Choice, replayed: Replayed) -> float:
        """Predicted milliseconds."""
        milliseconds = self.milliseconds(replayed, choice.scorer).sum()
        return float(milliseconds / replayed.tokens.sum())

    def _replay(self, recording: Recording, choices: Sequence[Choice]) -> list[Replayed]:
        points = [choice.point for choice in choices]
        (replayed,) = sweep(
            [recording], points, self.lms, scorers=self._scorers, on_point=self.on_replay
        )
        return replayed

    def _compare(self, recording: Recording, one: Choice, other: Choice) -> PairedTest:
        """Gain in predicted tokens per second."""
        first, second = self._replay(recording, [one, other])
        times = self.milliseconds(first, one.scorer), self.milliseconds(second, other.scorer)
        return compare_paired(*times, seed=self.seed)
