"""From records to results: all strategies on all tasks, with the tables and figures of the paper.

Weights of the LM are tuned on held-out texts of each task and everything is reported on the rest
(Kim et al. 2024, appendices C.2 and E).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lattice_bpd.evaluate.lab.options import LabOptions, curve_points, split_texts
from lattice_bpd.evaluate.replay.positions import Rescorers
from lattice_bpd.evaluate.replay.replay import Recording, Replayed
from lattice_bpd.evaluate.replay.settings import DraftOptions
from lattice_bpd.evaluate.replay.strategies import STRATEGIES, Strategy
from lattice_bpd.evaluate.replay.sweep import Point, sweep
from lattice_bpd.evaluate.statistics.acceptance import (
    accept_histogram,
    acceptance_by_slot,
    gains_by_loops,
    looping_shares,
    measure_calibration,
)
from lattice_bpd.evaluate.statistics.bootstrap import bootstrap_block_efficiency, compare_paired
from lattice_bpd.evaluate.statistics.drafts import (
    argmax_drafts,
    compare_drafts,
    first_drafts,
    measure_repetition,
)
from lattice_bpd.evaluate.statistics.heads import measure_entropies
from lattice_bpd.lm.ngram import NGramLM


@dataclass
class Lab:
    """The LMs and counts that all tasks share.

    Args:
        lms: n-gram LMs by name; the first is the one of the main table.
        rescorers: with the raw counts, if there are any.
        options: what to replay.
        on_stage: told each stage and its number of replays.
        on_replay: called after each replay.
    """

    lms: Mapping[str, NGramLM]
    rescorers: Rescorers = field(default_factory=Rescorers)
    options: LabOptions = field(default_factory=LabOptions)
    on_stage: Callable[[str, int], None] | None = None
    on_replay: Callable[[], None] | None = None

    @property
    def main_lm(self) -> str:
        """Name of the LM of the main table; empty without any."""
        return next(iter(self.lms), "")

    def strategies(self) -> list[Strategy]:
        """Those that can run with what there is, BPD first."""
        names = ["bpd", *(name for name in self.options.strategies if name != "bpd")]
        chosen = [STRATEGIES[name] for name in names]
        return [
            strategy for strategy in chosen
            if (self.lms or not strategy.uses_lm)
            and (self.rescorers.trie is not None or not strategy.uses_trie)
        ]  # fmt: skip

    def evaluate(self, task: str, recording: Recording) -> dict[str, Any]:
        """All of one task.

        Args:
            task: its name.
            recording: its texts.

        Returns:
            A task of results.json; see docs/evaluate.md.
        """
        tune, test = split_texts(len(recording.texts), self.options.held_out, self.options.seed)
        held_out, reported = recording.select(tune), recording.select(test)
        chosen, tuned = self._tune(task, held_out)
        shares = looping_shares(reported)
        points = [self._point(strategy, chosen) for strategy in self.strategies()]
        found = self._sweep(f"{task}: strategies", reported, points)
        baseline = found[0]
        lines = [
            self._line(point, replayed, baseline, reported.num_slots, shares)
            for point, replayed in zip(points, found, strict=True)
        ]
        results: dict[str, Any] = {
            "texts": len(reported.texts),
            "texts_held_out": len(held_out.texts),
            "tokens": len(reported),
            "loop_share": float(np.average(shares, weights=reported.lengths)),
            "tuned": {name: asdict(options) for name, options in chosen.items()},
            "block_efficiency_by_weights": tuned,
            "strategies": lines,
            "entropies": measure_entropies(reported).to_json(),
            "margins": _quantiles(reported),
            **self._figures(task, reported, chosen),
        }
        if "ngram_1best" in chosen:
            results.update(self._drafts(reported, chosen["ngram_1best"]))
        by_name = {point.strategy.name: walk for point, walk in zip(points, found, strict=True)}
        results["calibration"] = self._calibration(reported, chosen, by_name)
        return results

    def _tune(
        self, task: str, held_out: Recording
    ) -> tuple[dict[str, DraftOptions], dict[str, list[dict[str, Any]]]]:
        """The best weights of each strategy on held-out texts, and all that was tried."""
        plain = replace(self.options.options, top_k=min(self.options.options.top_k, held_out.top_k))
        points: list[Point] = []
        for strategy in self.strategies():
            alphas = self.options.alphas if "alpha" in strategy.knobs else (plain.alpha,)
            hot = self.options.temperatures if "temperature" in strategy.knobs else (1.0,)
            lm = self.main_lm if strategy.uses_lm else ""
            points += [
                Point(strategy, replace(plain, alpha=alpha, temperature=temperature), lm)
                for alpha in alphas
                for temperature in hot
            ]
        counts = {s.name: sum(p.strategy is s for p in points) for s in self.strategies()}
        chosen = {p.strategy.name: p.options for p in points if counts[p.strategy.name] == 1}
        points = [point for point in points if counts[point.strategy.name] > 1]
        found = self._sweep(f"{task}: tuning", held_out, points)
        tuned: dict[str, list[dict[str, Any]]] = {}
        best: dict[str, float] = {}
        for point, replayed in zip(points, found, strict=True):
            name, value = point.strategy.name, replayed.block_efficiency
            tuned.setdefault(name, []).append({**point.to_json(), "block_efficiency": value})
            if value > best.get(name, 0.0):
                best[name], chosen[name] = value, point.options
        return chosen, tuned

    def _line(
        self, point: Point, replayed: Replayed, baseline: Replayed, num_slots: int,
        shares: Sequence[float],
    ) -> dict[str, Any]:  # fmt: skip
        """A line of the main table."""
        seed = self.options.seed
        compared = compare_paired(replayed.tokens, replayed.calls, baseline.calls, seed=seed)
        interval = bootstrap_block_efficiency(replayed.tokens, replayed.calls, seed=seed)
        order = self.lms[point.lm].order if point.lm else 0
        names = {
            "p": point.options.num_drafts, "k": point.options.top_k,
            "nodes": point.options.max_nodes, "n": order,
        }  # fmt: skip
        return {
            "name": point.strategy.name,
            "label": point.strategy.label.format(**names),
            "options": point.to_json(),
            "block_efficiency": replayed.block_efficiency,
            "interval": interval.to_json(),
            "over_bpd": compared.to_json(),
            "tokens": int(replayed.tokens.sum()),
            "target_calls": int(replayed.calls.sum()),
            "draft_tokens_per_call": replayed.nodes_per_call,
            "accept_histogram": accept_histogram(replayed, num_slots),
            "acceptance_by_slot": [asdict(s) for s in acceptance_by_slot(replayed, num_slots)],
            "by_loop_share": [asdict(g) for g in gains_by_loops(shares, replayed, baseline)],
            "calls_by_text": replayed.calls.tolist(),
        }

    def _figures(
        self, task: str, reported: Recording, chosen: dict[str, DraftOptions]
    ) -> dict[str, Any]:
        """Block efficiency along the curves of `curve_points`."""
        tuned = {name: self._point(STRATEGIES[name], chosen) for name in chosen}
        wanted = curve_points(self.options, reported, tuned, tuple(self.lms))
        if self.on_stage is not None:
            self.on_stage(f"{task}: curves", sum(map(len, wanted.values())))
        found: dict[str, Any] = {name: [] for name in wanted}
        for name, rows in wanted.items():
            for heads in sorted({heads for heads, _ in rows}):
                points = [point for of, point in rows if of == heads]
                whole = heads == reported.num_slots + 1
                known = reported if whole else reported.with_slots(heads - 1)
                for point, replayed in zip(points, self._replay(known, points), strict=True):
                    found[name].append(
                        {
                            **point.to_json(),
                            "num_heads": heads,
                            "block_efficiency": replayed.block_efficiency,
                            "draft_tokens_per_call": replayed.nodes_per_call,
                        }
                    )
        return found

    def _drafts(self, reported: Recording, options: DraftOptions) -> dict[str, Any]:
        """Repetition before and after rescoring, and wins and losses (tables 3 and 5)."""
        lm = replace(self.rescorers, lm=self.lms[self.main_lm])
        before = argmax_drafts(reported, options)
        after = first_drafts(reported, STRATEGIES["ngram_1best"], lm, options)
        return {
            "repetition": {
                "before": measure_repetition(before).to_json(),
                "after": measure_repetition(after).to_json(),
            },
            "wins_and_losses": compare_drafts(before, after).to_json(),
        }

    def _calibration(
        self, reported: Recording, chosen: dict[str, DraftOptions], found: dict[str, Replayed]
    ) -> dict[str, Any]:
        used = {"tree_0gram": None, "tree": self.lms.get(self.main_lm)}
        return {
            name: measure_calibration(
                reported, replace(self.rescorers, lm=lm), chosen[name], found[name]
            ).to_json()
            for name, lm in used.items()
            if name in found
        }

    def _point(self, strategy: Strategy, chosen: dict[str, DraftOptions]) -> Point:
        return Point(strategy, chosen[strategy.name], self.main_lm if strategy.uses_lm else "")

    def _sweep(self, stage: str, recording: Recording, points: list[Point]) -> list[Replayed]:
        if self.on_stage is not None:
            self.on_stage(stage, len(points))
        return self._replay(recording, points)

    def _replay(self, recording: Recording, points: list[Point]) -> list[Replayed]:
        if not points:
            return []
        return sweep(
            [recording], points, self.lms, self.rescorers,
            workers=self.options.workers, on_point=self.on_replay,
        )[0]  # fmt: skip


def _quantiles(reported: Recording) -> dict[str, float]:
    """The target's margins: by how much its choice leads."""
    margins = np.concatenate([text.margins for text in reported.texts])
    places = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9)
    found = dict(zip(map(str, places), np.quantile(margins, places).tolist(), strict=True))
    return {**found, "share_below_0": float((margins < 0).mean())}
