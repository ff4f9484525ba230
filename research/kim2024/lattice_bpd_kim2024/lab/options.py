"""Options of an evaluation: tuning, held-out texts, curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.scorers import MIXTURE_WEIGHTS
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.replay.sweep import Point

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
