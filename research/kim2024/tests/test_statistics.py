"""Statistics of replays, against small worked examples and brute force."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import NGramLM
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.evaluate import Recording, record
from lattice_bpd_kim2024.replay.positions import Rescorers
from lattice_bpd_kim2024.replay.replay import Replayed
from lattice_bpd_kim2024.replay.strategies import STRATEGIES
from lattice_bpd_kim2024.statistics import (
    FirstDrafts,
    accept_histogram,
    acceptance_by_slot,
    compare_drafts,
    correlate,
    fit_line,
    h_max,
    measure_calibration,
    measure_entropies,
    measure_repetition,
)


def replayed(tokens, calls, steps=()) -> Replayed:
    columns = np.array(list(steps) or np.zeros((0, 5)), np.int64).T
    return Replayed(np.array(tokens), np.array(calls), *columns)


@functools.cache
def recording() -> Recording:
    text, model = looping_text(600, seed=5).tolist(), model_of("trained")
    prompts = [text[start : start + 9] for start in range(0, 300, 23)]
    return record(model, prompts, [plain_greedy(model, p, 20) for p in prompts], top_k=8)


@functools.cache
def rescorers() -> Rescorers:
    return Rescorers(
        NGramLM.train([looping_text(2000, seed=1)], 3, vocab_size=VOCAB, smoothing="witten_bell")
    )


def test_statistics_repetition_counts_neighbours_and_runs():
    # Exact 7, draft 7 7 2: two of three pairs, a run of three. Exact 1, draft 2: none of one.
    drafts = FirstDrafts(np.array([[7, 7, 7, 2], [1, 2, -1, -1]], np.int32), np.zeros(2, np.int64))
    result = measure_repetition(drafts)
    assert result == {"consecutive": 2 / 4, "longest_run": (3 + 1) / 2, "drafts": 2}


def test_statistics_wins_and_losses_count_repairs():
    # A repair eliminates repetition and a regression introduces it: less or more of it is neither.
    pairs = [
        ([1, 1, 1], [1, 2, 3], 0, 2),  # win, repaired
        ([1, 2, 3], [1, 2, 2], 0, 1),  # win, regressed
        ([1, 1, 1], [1, 1, 3], 0, 1),  # win, repeats less than before but still does
        ([1, 1, 3], [4, 4, 4], 0, 1),  # win, repeats more than before
        ([1, 1, 3], [1, 4, 3], 2, 0),  # loss, repaired
        ([1, 2, 3], [1, 2, 3], 1, 1),  # tie
    ]
    before, after = (
        FirstDrafts(
            np.array([pair[side] for pair in pairs], np.int32),
            np.array([pair[2 + side] for pair in pairs]),
        )
        for side in (0, 1)
    )
    assert compare_drafts(before, after) == {
        "ties": 1, "wins": 4, "losses": 1, "win_repair": 0.25, "win_regress": 0.25,
        "loss_repair": 1.0, "loss_regress": 0.0,
    }  # fmt: skip


def test_statistics_entropies_and_h_max():
    assert [h_max(m) for m in ([1, 2, 3, 2], [2, 1], [1.0], [1, 1, 1])] == [3, 1, 1, 3]
    result = measure_entropies(recording(), bins=7)
    columns = np.concatenate([text.entropies for text in recording().texts])
    assert result["means"] == pytest.approx(columns.mean(axis=0).tolist(), rel=1e-5)
    assert len(result["means"]) == recording().num_slots + 1
    sums = [sum(shares) for shares in result["histograms"]]
    assert sums == pytest.approx([1.0] * len(result["means"]))


def test_statistics_correlation():
    assert correlate([1, 2, 3], [2, 4, 6]) == pytest.approx(1.0)
    assert correlate([1, 2], [2, 4]) is None
    assert correlate([1, 1, 1], [2, 4, 5]) is None
    with pytest.raises(ValueError, match="expected as many"):
        correlate([1], [])
    assert fit_line([1, 2, 4], [3.0, 5.0, 9.0]) == pytest.approx((2.0, 1.0))


def test_statistics_acceptance_by_length_and_slot():
    # Columns: text, position, slots, accepted, nodes.
    steps = [(0, 0, 2, 2, 2), (0, 3, 2, 0, 2), (1, 5, 1, 1, 1), (1, 7, 2, 1, 2)]
    result = replayed([4, 5], [3, 3], steps)
    assert accept_histogram(result, 2) == [1, 2, 1]
    assert acceptance_by_slot(result, 3) == [
        {"slot": 0, "calls": 4, "accepted": 0.75, "accepted_if_reached": 0.75},
        {"slot": 1, "calls": 3, "accepted": 1 / 3, "accepted_if_reached": 1 / 2},
    ]
    assert result.nodes_per_call == 7 / 4


def test_statistics_calibration_is_that_of_all_prefixes():
    """Brute force: with more nodes than prefixes of two slots, every prefix is judged."""
    known = recording().with_slots(2)
    options = DraftConfig(top_k=4, max_nodes=20, alpha=0.4, temperature=1.7)
    walk = known.replay(STRATEGIES["tree"], rescorers(), options)
    result = measure_calibration(known, rescorers(), options, walk, bins=5)
    lm, pairs = rescorers().lm, []
    for position in walk.places.tolist():
        if known.slots[position] < 2:
            continue
        ids = known.candidates.token_ids[position, :2, :4]
        scores = known.candidates.scores[position, :2, :4]
        context = known.contexts[position].tolist()
        paths = {}
        for i, j in itertools.product(range(4), range(4)):
            a, b = int(ids[0, i]), int(ids[1, j])
            language = lm.log_prob(a, context) + lm.log_prob(b, [*context, a])
            total = float(scores[0, i] + scores[1, j]) + 0.4 * language
            paths[a, b] = np.exp(total / 1.7)
        mass = sum(paths.values())
        wanted = tuple(known.wanted[position, :2].tolist())
        for a in ids[0].tolist():
            prefix = sum(value for path, value in paths.items() if path[0] == a) / mass
            pairs.append((prefix, a == wanted[0]))
        pairs += [(value / mass, path == wanted) for path, value in paths.items()]
    alone = sum(known.slots[position] == 1 for position in walk.places.tolist())
    assert sum(part["prefixes"] for part in result["bins"]) == len(pairs) + 4 * alone
    top = [pair for pair in pairs if pair[0] >= 0.8]
    best = result["bins"][-1]
    assert best["low"] == 0.8
    if not alone:
        assert best["prefixes"] == len(top)
        assert best["accepted"] == pytest.approx(np.mean([right for _, right in top]))
    assert 0.0 <= result["error"] <= 1.0
