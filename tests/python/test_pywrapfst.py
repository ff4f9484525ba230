"""pywrapfst reads what we export, and finds what we find."""

import warnings
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM, SausageLattice, rescore_lattice
from oracles import random_arpa

fst = pytest.importorskip("pywrapfst")
VOCAB = 9


@pytest.fixture
def lm(rng: np.random.Generator, seed: int, core_of: Any) -> NGramLM:
    """A random LM without ties and of each order in turn; every fourth a trained one."""
    if seed % 4 == 3:
        texts = [rng.integers(0, VOCAB, 30) for _ in range(20)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return NGramLM.train(texts, 1 + seed % 6, vocab_size=VOCAB)
    model: NGramLM = core_of(random_arpa(rng, VOCAB, 1 + seed % 6, exact=False), vocab_size=VOCAB)
    return model


def random_lattice(rng: np.random.Generator) -> SausageLattice:
    slots = []
    for _ in range(rng.integers(1, 5)):
        width = int(rng.integers(1, 6))
        slots.append((rng.choice(VOCAB, width, replace=False), 3 * rng.standard_normal(width)))
    return SausageLattice(slots)


def list_paths(shortest: Any) -> list[tuple[float, list[int]]]:
    """(cost, token ids) of each path, the best first."""
    paths = []
    stack = [(shortest.start(), 0.0, [])] if shortest.start() >= 0 else []
    while stack:
        state, cost, tokens = stack.pop()
        final = float(shortest.final(state))
        if final < float("inf"):
            paths.append((cost + final, tokens))
        for arc in shortest.arcs(state):
            more = [arc.ilabel - 1] if arc.ilabel else []
            stack.append((arc.nextstate, cost + float(arc.weight), tokens + more))
    return sorted(paths)


def walk(model: Any, state: int, label: int, failure: int) -> tuple[float, int]:
    """Cost of `label` and the next state; failure arcs only if nothing else matches."""
    cost = 0.0
    while True:
        arcs = {arc.ilabel: arc for arc in model.arcs(state)}
        if label in arcs:
            return cost + float(arcs[label].weight), arcs[label].nextstate
        cost += float(arcs[failure].weight)
        state = arcs[failure].nextstate


@pytest.mark.parametrize("seed", range(40))
def test_the_same_best_paths(seed: int, rng: np.random.Generator, lm: NGramLM) -> None:
    lattice, context = random_lattice(rng), rng.integers(0, VOCAB, rng.integers(0, 6)).tolist()
    num_drafts, bos = int(rng.integers(1, 40)), bool(rng.integers(2))
    model = lm.to_pywrapfst(context, bos=bos, expand_failures=True)
    composed = fst.compose(lattice.to_pywrapfst().arcsort(), model)
    theirs = list_paths(fst.shortestpath(composed, nshortest=num_drafts))
    drafts = rescore_lattice(lattice, context, lm, num_drafts=num_drafts, bos=bos, alpha=1.0)
    count = int(drafts.counts[0])
    assert count == len(theirs)
    costs = np.array([cost for cost, _ in theirs])
    np.testing.assert_allclose(-drafts.scores[0, :count], costs, rtol=1e-5, atol=1e-4)
    ours = drafts.token_ids[0, :count].tolist()
    near = np.abs(np.diff(costs)) < 1e-4  # float32 costs so near that their order is open
    for i, (_, tokens) in enumerate(theirs):
        if not near[max(i - 1, 0) : i + 1].any():
            assert ours[i] == tokens, f"rank {i}"


@pytest.mark.parametrize("seed", range(24))
def test_failure_arcs_are_the_backoffs(seed: int, rng: np.random.Generator, lm: NGramLM) -> None:
    for _ in range(6):
        context = rng.integers(0, VOCAB, rng.integers(0, 7)).tolist()
        bos = bool(rng.integers(2))
        model = lm.to_pywrapfst(context, bos=bos)
        state = model.start()
        text = list(context)
        for token in rng.integers(0, VOCAB, 5).tolist():
            cost, state = walk(model, state, token + 1, lm.failure_label)
            expected = lm.log_prob(token, text, bos=bos)
            assert -cost == pytest.approx(expected, rel=1e-5, abs=1e-5), (text, token)
            text.append(token)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_end_of_sentence(seed: int, rng: np.random.Generator, lm: NGramLM, expand: bool) -> None:
    context = rng.integers(0, VOCAB, seed).tolist()
    model = lm.to_pywrapfst(context, end_of_sentence=True, expand_failures=expand)
    expected = -lm.score(context, eos=True)[-1]
    assert float(model.final(model.start())) == pytest.approx(expected, rel=1e-5, abs=1e-5)
