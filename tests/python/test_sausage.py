"""The sausage lattice as a value: its rules, its text and its graph."""

import itertools

import numpy as np
import pytest

from lattice_bpd import SausageLattice
from oracles import top_k_slots

INF = float("inf")


@pytest.mark.parametrize("seed", range(40))
def test_from_logits_as_sorting_finds_them(seed: int, rng: np.random.Generator) -> None:
    logits = rng.integers(-2, 3, (3, 30)).astype(np.float32)
    logits[rng.random(logits.shape) < rng.random()] = -INF
    top_k = int(rng.integers(1, 31))
    lattice = SausageLattice.from_logits(logits, top_k=top_k)
    slots = list(itertools.takewhile(lambda slot: slot[1][0] > -INF, top_k_slots(logits, top_k)))
    assert [ids.tolist() for ids in lattice.token_ids] == [ids for ids, _ in slots]
    assert [scores.tolist() for scores in lattice.scores] == [scores for _, scores in slots]


@pytest.mark.parametrize("seed", range(20))
def test_candidates_may_come_in_any_order(seed: int, rng: np.random.Generator) -> None:
    ids = rng.choice(1000, 12, replace=False)
    scores = rng.integers(0, 4, 12).astype(np.float64)
    lattice = SausageLattice([(ids, scores)])
    order = sorted(range(12), key=lambda i: (-scores[i], ids[i]))
    assert lattice.token_ids[0].tolist() == ids[order].tolist()
    assert lattice.scores[0].tolist() == scores[order].tolist()


def test_masked_tokens_are_left_out_and_a_slot_without_others_ends_the_lattice() -> None:
    slots = [([5, 4], [-INF, 0.0]), ([3, 2], [1.0, 2.0]), ([9, 8], [-INF, -INF]), ([1], [0.0])]
    lattice = SausageLattice(slots)
    assert [ids.tolist() for ids in lattice.token_ids] == [[4], [2, 3]]
    assert lattice.num_paths == 2
    none = SausageLattice(slots[2:])
    assert (none.num_slots, none.num_paths, none.token_ids) == (0, 0, [])
    with pytest.raises(ValueError, match="nan of token 7 in slot 4"):
        SausageLattice([*slots, ([7], [np.nan])])
