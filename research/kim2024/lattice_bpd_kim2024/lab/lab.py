"""Options of evaluations, and sweeps, tables and tests of one task.

LM weights are tuned on held-out texts of each task, and everything is reported on the rest
(Kim et al. 2024, appendices C.2 and E).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lattice_bpd.build.bootstrap import bootstrap_ratio
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.scorers.protocol import TransitionScorer
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.lab.paired import compare_paired
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording, Replayed
from lattice_bpd_kim2024.replay.scorers import (
    MIXTURE_WEIGHTS,
    Scorers,
    has_read,
    make_scorers,
    parts_of,
)
from lattice_bpd_kim2024.replay.strategies import STRATEGIES, Strategy
from lattice_bpd_kim2024.replay.sweep import Point, sweep
from lattice_bpd_kim2024.statistics import (
    accept_histogram,
    acceptance_by_slot,
    argmax_drafts,
    compare_drafts,
    first_drafts,
    gains_by_loops,
    looping_shares,
    measure_calibration,
    measure_entropies,
    measure_repetition,
)

DEFAULT_ALPHAS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0)
SCORER_ALPHAS = (0.1, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0)
"""The grid of Kim et al. 2024, appendix E."""
HELD_OUT = 100  # texts that alpha is tuned on


@dataclass(frozen=True)
class LabOptions:
    """What to replay.

    Attributes:
        strategies: by name; "bpd", the baseline of gains, is always among them.
        options: options that are not tuned.
        alphas: weights tried for strategies with an n-gram LM.
        scorer_alphas: weights tried for strategies with a scorer.
        mixture_weights: of the n-gram LM beside a weight of 1 of the rescorer.
        temperatures: tried for trees.
        held_out: texts of each task to tune on; at most half of them.
        top_ks: k of the oracle (figure 6).
        num_drafts: p of the curves (figure 7).
        max_nodes: N of the curves of trees.
        num_heads: h, the target's own head included (table 10).
        workers: threads; 0 for all cores.
        seed: of splits and bootstrap samples.
        rules: acceptance rules to compare by decoding live, as `parse_acceptance` reads them;
            the exact rule is added unless there are none.
        rule_texts: maximum number of texts of each task for that.
        speed_texts: maximum number of texts of each task whose live decoding is timed.
    """

    strategies: tuple[str, ...] = tuple(name for name in STRATEGIES if name != "greedy")
    options: DraftConfig = field(default_factory=DraftConfig)
    alphas: tuple[float, ...] = DEFAULT_ALPHAS
    scorer_alphas: tuple[float, ...] = SCORER_ALPHAS
    mixture_weights: tuple[float, ...] = MIXTURE_WEIGHTS
    temperatures: tuple[float, ...] = (0.5, 1.0, 2.0)
    held_out: int = HELD_OUT
    top_ks: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    num_drafts: tuple[int, ...] = (1, 2, 4, 8, 16)
    max_nodes: tuple[int, ...] = (4, 9, 18, 36, 72, 144)
    num_heads: tuple[int, ...] = (3, 6, 9)
    workers: int = 0
    seed: int = 0
    rules: tuple[str, ...] = ()
    rule_texts: int = 16
    speed_texts: int = 0


def curve_points(
    options: LabOptions,
    recording: Recording,
    tuned: Mapping[str, Point],
    lms: Sequence[str],
    scorers: Sequence[str] = (),
) -> dict[str, list[tuple[int, Point]]]:
    """The curves: oracle by k and heads, lists by p, trees by N, BPD by heads, LMs by name.

    Args:
        options: the sizes.
        recording: has heads and candidates.
        tuned: the point of each strategy that can run.
        lms: names of LMs; a single one gives no curve.
        scorers: names of rescorers; likewise.

    Returns:
        For each curve the number of heads (the target's own included) and the point of each value.
    """
    all_heads = recording.num_slots + 1
    heads = sorted({min(h, all_heads) for h in options.num_heads if h >= 2})
    top_ks = [k for k in options.top_ks if k <= recording.top_k]

    def by_size(size: str, *names: str) -> list[tuple[int, Point]]:
        return [
            (all_heads, replace(point, options=replace(point.options, **{size: value})))
            for name in names
            if (point := tuned.get(name)) is not None
            for value in getattr(options, size)
        ]

    return {
        "by_heads": [(h, tuned["bpd"]) for h in heads],
        "oracle_by_top_k": [
            (h, Point(STRATEGIES["oracle"], DraftConfig(top_k=k))) for h in heads for k in top_ks
        ],
        "by_num_drafts": by_size("num_drafts", "p_best_0gram", "p_best_ngram"),
        "by_max_nodes": by_size("max_nodes", "tree_0gram", "tree"),
        "by_lm": [
            (all_heads, replace(tuned[name], lm=lm))
            for lm in (lms if len(lms) > 1 else ())
            for name in ("ngram_1best", "p_best_ngram", "tree")
            if name in tuned
        ]
        + [
            (all_heads, replace(tuned["neural"], scorer=scorer))
            for scorer in (scorers if len(scorers) > 1 and "neural" in tuned else ())
        ],
    }


def split_texts(count: int, held_out: int, seed: int) -> tuple[list[int], list[int]]:
    """A random split into texts to tune on and texts to report on.

    Args:
        count: N texts.
        held_out: number of texts to tune on; at most half of N are taken.
        seed: of the split.

    Returns:
        Two disjoint sorted lists of text numbers.

    Raises:
        ValueError: fewer than two texts.
    """
    if count < 2:
        raise ValueError(
            f"evaluate: {count} text; expected two or more, since some are held out for tuning"
        )
    order = np.random.default_rng(seed).permutation(count)
    tune = max(1, min(held_out, count // 2))
    return sorted(order[:tune].tolist()), sorted(order[tune:].tolist())


Row = dict[str, Any]
_SINGLE_DRAFTS = ("ngram_1best", "neural", "mixture")  # compared with BPD at all positions
_QUANTILES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass
class Lab:
    """The LMs and counts that all tasks share.

    Args:
        lms: n-gram LMs by name; the main table uses the first.
        neural: rescorers by name; likewise.
        rescorers: for the number of threads.
        options: what to replay.
        on_stage: called with the name of each stage and its number of replays.
        on_replay: called after each replay.
    """

    lms: Mapping[str, NGramLM]
    neural: Mapping[str, TransitionScorer] = field(default_factory=dict)
    rescorers: Rescorers = field(default_factory=Rescorers)
    options: LabOptions = field(default_factory=LabOptions)
    on_stage: Callable[[str, int], None] | None = None
    on_replay: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        """Make the mixtures of rescorer and n-gram LM."""
        self.scorers: Scorers = make_scorers(self.neural, self.lms, self.options.mixture_weights)

    def strategies(self) -> list[Strategy]:
        """Those that can run with these LMs and rescorers, BPD first."""
        names = dict.fromkeys(["bpd", *self.options.strategies])
        return [
            strategy for strategy in map(STRATEGIES.__getitem__, names)
            if (self.lms or not strategy.uses_lm)
            and (self.scorers.get(strategy.name) or not strategy.uses_scorer)
        ]  # fmt: skip

    def read(self, recording: Recording) -> Recording:
        """The recording with the log probabilities of all scorers that strategies use."""
        used = [self.scorers[one.name] for one in self.strategies() if one.uses_scorer]
        scorers = {
            name: scorer for group in used for name, scorer in group.items()
            if not has_read(recording.rescored, scorer)
        }  # fmt: skip
        if not scorers:
            return recording
        parts = {part for one in scorers.values() for part, _ in parts_of(one)}
        self._begin("reading texts with rescorers", len(parts) * len(recording.texts))
        return recording.read_with(scorers, self.on_replay)

    def evaluate(self, recording: Recording) -> Row:
        """Everything about one task.

        Args:
            recording: its texts; best after `read`, which is called otherwise.

        Returns:
            A task of results.json; see research/kim2024/evaluate.md.
        """
        recording = self.read(recording)
        tune, test = split_texts(len(recording.texts), self.options.held_out, self.options.seed)
        held_out, reported = recording.select(tune), recording.select(test)
        points, tried = self._tune(held_out)
        replayed = self._replay("strategies", reported, points.values())
        replays = dict(zip(points, replayed, strict=True))
        shares = looping_shares(reported)
        results: Row = {
            "texts": len(reported.texts),
            "texts_held_out": len(held_out.texts),
            "tokens": len(reported),
            "loop_share": float(np.average(shares, weights=reported.lengths)),
            "tuned": {name: asdict(point.options) for name, point in points.items()},
            "block_efficiency_by_weights": tried,
            "strategies": [
                self._line(point, replays[name], replays["bpd"], reported.num_slots, shares)
                for name, point in points.items()
            ],
            "entropies": measure_entropies(reported),
            "margins": _quantiles(reported),
            **self._curves(reported, points),
        }
        results |= self._compare_drafts(reported, points)
        trees = {"tree_0gram": replace(self.rescorers, lm=None), "tree": self._main_rescorers}
        results["calibration"] = {
            name: measure_calibration(reported, rescorers, points[name].options, replays[name])
            for name, rescorers in trees.items()
            if name in points
        }
        return results

    def _tuned_scorers(self, strategy: Strategy) -> tuple[str, ...]:
        """The main rescorer, whose weight the others use too, or the mixtures with it."""
        if not strategy.uses_scorer:
            return ("",)
        names = tuple(self.scorers[strategy.name])
        return names[:1] if strategy.name == "neural" else names

    @property
    def _main_lm(self) -> str:
        return next(iter(self.lms), "")

    @property
    def _main_rescorers(self) -> Rescorers:
        return replace(self.rescorers, lm=self.lms.get(self._main_lm))

    def _tune(self, held_out: Recording) -> tuple[dict[str, Point], dict[str, list[Row]]]:
        """The best point of each strategy on held-out texts, and all that were tried."""
        plain = replace(self.options.options, top_k=min(self.options.options.top_k, held_out.top_k))
        best: dict[str, Point] = {}
        tried: list[Point] = []
        for strategy in self.strategies():
            tried_alphas = (
                self.options.scorer_alphas if strategy.uses_scorer else self.options.alphas
            )
            alphas = tried_alphas if "alpha" in strategy.option_names else (plain.alpha,)
            has_temperature = "temperature" in strategy.option_names
            temperatures = self.options.temperatures if has_temperature else (1.0,)
            points = [
                Point(
                    strategy,
                    replace(plain, alpha=alpha, temperature=temperature),
                    self._main_lm if strategy.uses_lm else "",
                    scorer,
                )
                for scorer in self._tuned_scorers(strategy)
                for alpha in alphas
                for temperature in temperatures
            ]
            best[strategy.name] = points[0]
            tried += points if len(points) > 1 else []
        rows: dict[str, list[Row]] = {}
        highest: dict[str, float] = {}
        replays = self._replay("tuning", held_out, tried)
        for point, replayed in zip(tried, replays, strict=True):
            name, value = point.strategy.name, replayed.block_efficiency
            rows.setdefault(name, []).append({**point.to_json(), "block_efficiency": value})
            if value > highest.get(name, 0.0):
                highest[name], best[name] = value, point
        return best, rows

    def _line(
        self, point: Point, replayed: Replayed, baseline: Replayed, num_slots: int,
        shares: Sequence[float],
    ) -> Row:  # fmt: skip
        """A line of the main table."""
        seed, options = self.options.seed, point.options
        order = self.lms[point.lm].order if point.lm else 0
        compared = compare_paired(replayed.calls, baseline.calls, seed=seed)
        interval = bootstrap_ratio(replayed.tokens, replayed.calls, seed=seed)
        return {
            "name": point.strategy.name,
            "label": point.strategy.label.format(
                p=options.num_drafts, k=options.top_k, nodes=options.tree_nodes, n=order
            ),
            "options": point.to_json(),
            "block_efficiency": replayed.block_efficiency,
            "interval": interval.to_json(),
            "over_bpd": asdict(compared),
            "tokens": int(replayed.tokens.sum()),
            "target_calls": int(replayed.calls.sum()),
            "draft_tokens_per_call": replayed.nodes_per_call,
            "accept_histogram": accept_histogram(replayed, num_slots),
            "acceptance_by_slot": acceptance_by_slot(replayed, num_slots),
            "by_loop_share": gains_by_loops(shares, replayed, baseline),
            "calls_by_text": replayed.calls.tolist(),
        }

    def _compare_drafts(self, reported: Recording, points: Mapping[str, Point]) -> Row:
        """Drafts of BPD and of single rescored drafts, at all positions."""
        single = [name for name in _SINGLE_DRAFTS if name in points]
        self._begin("comparing drafts", len(single))
        before = argmax_drafts(reported, points["bpd"].options)
        repetition, wins = {"bpd": measure_repetition(before)}, {}
        for name in single:
            point = points[name]
            used = point.rescorers(self.rescorers, self.lms, self.scorers)
            after = first_drafts(reported, point.strategy, used, point.options)
            repetition[name], wins[name] = measure_repetition(after), compare_drafts(before, after)
            if self.on_replay is not None:
                self.on_replay()
        bigrams = [lm for name, lm in self.lms.items() if lm.order == 2 and name != self._main_lm]
        if bigrams and "ngram_1best" in points:  # table 3; the weight is the main LM's (appendix E)
            point, used = points["ngram_1best"], replace(self.rescorers, lm=bigrams[0])
            after = first_drafts(reported, point.strategy, used, point.options)
            repetition["2gram_1best"] = measure_repetition(after)
        return {"repetition": repetition, "wins_and_losses": wins}

    def _curves(self, reported: Recording, tuned: Mapping[str, Point]) -> Row:
        """Block efficiency along the curves of `curve_points`."""
        curves = curve_points(
            self.options, reported, tuned, tuple(self.lms), tuple(self.scorers["neural"])
        )
        self._begin("curves", sum(map(len, curves.values())))
        rows: Row = {}
        for name, points in curves.items():
            rows[name] = []
            for heads in sorted({heads for heads, _ in points}):
                whole = heads == reported.num_slots + 1
                recording = reported if whole else reported.with_slots(heads - 1)
                chosen = [point for num_heads, point in points if num_heads == heads]
                for point, replayed in zip(chosen, self._sweep(recording, chosen), strict=True):
                    rows[name].append(
                        {
                            **point.to_json(),
                            "num_heads": heads,
                            "block_efficiency": replayed.block_efficiency,
                            "draft_tokens_per_call": replayed.nodes_per_call,
                        }
                    )
        return rows

    def _begin(self, stage: str, total: int) -> None:
        if self.on_stage is not None:
            self.on_stage(stage, total)

    def _replay(self, stage: str, recording: Recording, points: Iterable[Point]) -> list[Replayed]:
        points = list(points)
        self._begin(stage, len(points))
        return self._sweep(recording, points) if points else []

    def _sweep(self, recording: Recording, points: list[Point]) -> list[Replayed]:
        return sweep(
            [recording], points, self.lms, self.rescorers, scorers=self.scorers,
            workers=self.options.workers, on_point=self.on_replay,
        )[0]  # fmt: skip


def _quantiles(reported: Recording) -> dict[str, float]:
    """Quantiles of the target's margins."""
    margins = np.concatenate([text.margins for text in reported.texts])
    values = np.quantile(margins, _QUANTILES).tolist()
    return {
        **dict(zip(map(str, _QUANTILES), values, strict=True)),
        "share_below_0": float((margins < 0).mean()),
    }
