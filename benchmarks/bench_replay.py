"""Replayed steps a second on one core, for 16-best 4-gram drafts of 8 slots x 16, and beside it.

    python benchmarks/bench_replay.py            250 texts of 64 tokens
    python benchmarks/bench_replay.py --quick

Texts are WikiText-2 (GPT-2 tokens, else Zipf text); the heads' candidates are drawn as frequent as
in the corpus, and hold what the text says with a chance that falls slot by slot, so that replays
stop at places as uneven as real ones. First the walk is compared with one that rescores every
position on its own; then it is timed: CPU time of the process, one thread. A step is one verifying
call. Results go to benchmarks/results/replay.json.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from corpus import ROOT, Corpus, load_corpus
from engines import make_lm
from lattices import draw_lattices
from machine import describe_machine
from report import print_table, write_json

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.record.texts import RecordedText
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Recording
from lattice_bpd_kim2024.replay.strategies import STRATEGIES

SLOTS, TOP_K, TOKENS, PROMPT = 8, 16, 64, 16
GOAL = 10_000  # steps a second on one core, 16-best 4-gram
ROUNDS = 5


def main() -> None:
    """Compare, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer texts and rounds")
    args = parser.parse_args()
    corpus = load_corpus()
    lm = make_lm("corpus.lm", corpus)
    recording = make_recording(corpus, 50 if args.quick else 250)
    rescorers = Rescorers(lm, threads=1)
    check_walk(recording, rescorers)
    rows = []
    for name, options in (
        ("bpd", DraftConfig()),
        ("ngram_1best", DraftConfig()),
        ("p_best_0gram", DraftConfig()),
        ("p_best_ngram", DraftConfig()),
        ("tree", DraftConfig()),
        ("oracle", DraftConfig()),
    ):
        rows.append(time_replay(recording, name, rescorers, options, 2 if args.quick else ROUNDS))
    print_table(
        f"{corpus.name}, {len(recording):,} positions, {SLOTS} x {TOP_K}, one core",
        ["strategy", "block eff.", "steps", "steps/s", "90 %", "positions/s"],
        [[r[k] for k in ("strategy", "block_efficiency", "steps", "steps_per_second",
                         "steps_per_second_p10", "positions_per_second")] for r in rows],
    )  # fmt: skip
    main_row = next(row for row in rows if row["strategy"] == "p_best_ngram")
    met = main_row["steps_per_second"] >= GOAL
    print(f"\ngoal: {GOAL:,} steps/s of p_best_ngram: {'met' if met else 'missed'}")
    results = {"machine": describe_machine(), "corpus": corpus.name, "rows": rows}
    write_json(Path(ROOT) / "benchmarks" / "results" / "replay.json", results)


def make_recording(corpus: Corpus, count: int) -> Recording:
    """Texts of the corpus with candidates that hold what follows with a falling chance."""
    rng = np.random.default_rng(0)
    lattices = draw_lattices(corpus, count * TOKENS, SLOTS, TOP_K)
    shape = (count, TOKENS, SLOTS, TOP_K)
    ids, scores = lattices.token_ids.reshape(shape), lattices.scores.reshape(shape)
    starts = rng.integers(0, len(corpus.token_ids) - PROMPT - TOKENS - SLOTS, count)
    chance = 0.9 ** np.arange(1, SLOTS + 1)
    texts = []
    for number, start in enumerate(starts.tolist()):
        tokens = corpus.token_ids[start : start + PROMPT + TOKENS + SLOTS]
        text_ids = ids[number].copy()
        follows = np.lib.stride_tricks.sliding_window_view(tokens[PROMPT + 1 :], SLOTS)[:TOKENS]
        held = rng.random((len(follows), SLOTS)) < chance
        ranks = np.minimum(rng.geometric(0.5, held.shape) - 1, TOP_K - 1)
        for step, slot in zip(*np.nonzero(held), strict=True):
            row, token = text_ids[step, slot], follows[step, slot]
            where = np.flatnonzero(row == token)
            row[where[0] if len(where) else 0], row[ranks[step, slot]] = (
                row[ranks[step, slot]], token,
            )  # fmt: skip
        texts.append(
            RecordedText(
                tokens[:PROMPT].astype(np.int32), tokens[PROMPT : PROMPT + TOKENS].astype(np.int32),
                TOKENS, text_ids, scores[number], np.ones((TOKENS, SLOTS + 1), np.float32),
                np.ones(TOKENS, np.float32),
            )
        )  # fmt: skip
    return Recording(texts)


def check_walk(recording: Recording, rescorers: Rescorers) -> None:
    """Assert that the walk of all texts together is that of each position on its own."""
    strategy, options = STRATEGIES["p_best_ngram"], DraftConfig()
    few = recording.select(range(8))
    accepted, _ = few.draft(strategy, rescorers, options)
    walked = few.replay(strategy, rescorers, options)
    for number, length in enumerate(few.lengths):
        position, calls = 0, 1
        while position < length - 1:
            position += int(accepted[few.starts[number] + position]) + 1
            calls += 1
        assert calls == walked.calls[number]


def time_replay(
    recording: Recording, name: str, rescorers: Rescorers, options: DraftConfig, rounds: int
) -> dict[str, Any]:
    """Steps a second of one strategy: median, and what 90 % of the rounds reach."""
    strategy = STRATEGIES[name]
    replayed = recording.replay(strategy, rescorers, options)
    rates = []
    for _ in range(rounds):
        start = time.process_time()
        recording.replay(strategy, rescorers, options)
        rates.append(len(replayed.places) / (time.process_time() - start))
    median = float(np.median(rates))
    return {
        "strategy": name,
        "block_efficiency": replayed.block_efficiency,
        "steps": len(replayed.places),
        "steps_per_second": median,
        "steps_per_second_p10": float(np.percentile(rates, 10)),
        "positions_per_second": median * len(recording) / len(replayed.places),
    }


if __name__ == "__main__":
    main()
