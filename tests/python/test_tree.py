"""Draft trees and chains against the probabilities of all paths, and arrays of tree attention."""

import math
from typing import Any

import numpy as np
import pytest

from lattice_bpd import DraftTree, NGramLM, SausageLattice, rescore_lattice, rescore_tree
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.verify.search import draft_chains, search_trees
from oracles import list_all_drafts, random_arpa, read_arpa
from test_rescore import ALPHAS, random_slots

Prefix = tuple[int, ...]


def masses_of(paths: list[tuple[Prefix, float]]) -> dict[Prefix, float]:
    """The probability of every prefix of the paths."""
    scores = np.array([score for _, score in paths])
    weights = np.exp(scores - scores.max(initial=-math.inf))
    masses: dict[Prefix, float] = {}
    for (tokens, _), weight in zip(paths, weights / weights.sum(), strict=True):
        for length in range(1, len(tokens) + 1):
            masses[tokens[:length]] = masses.get(tokens[:length], 0.0) + float(weight)
    return masses


def prefixes_of(tree: DraftTree, row: int = 0) -> list[Prefix]:
    """The token ids from the root to each node."""
    prefixes: list[Prefix] = []
    for node in range(int(tree.counts[row])):
        parent = int(tree.parents[row, node])
        assert parent < node
        above = prefixes[parent] if parent >= 0 else ()
        prefixes.append((*above, int(tree.token_ids[row, node])))
        assert tree.depths[row, node] == len(above)
    return prefixes


@pytest.mark.parametrize("seed", range(40))
def test_masses_are_those_of_all_paths(seed: int, rng: Any, core_of: Any) -> None:
    vocab_size = int(rng.integers(1, 12))
    text = random_arpa(
        rng,
        vocab_size,
        int(rng.integers(1, 7)),
        ngrams=int(rng.integers(1, 40)),
        exact=bool(rng.integers(2)),
        closed=bool(rng.random() < 0.8),
    )
    lm, oracle = core_of(text, vocab_size=vocab_size), read_arpa(text)
    for _ in range(8):
        slots, bos = random_slots(rng, vocab_size, 200), bool(rng.integers(2))
        context = rng.integers(0, vocab_size, rng.integers(0, 8)).tolist()
        alpha = float(rng.choice(ALPHAS))
        options: dict[str, Any] = {"alpha": alpha, "bos": bos, "context": context}
        has_lm = rng.random() < 0.9
        masses = masses_of(list_all_drafts(slots, oracle if has_lm else None, **options))
        max_nodes = int(rng.choice([1, 3, 10, 50, 4000]))
        lattice = SausageLattice(slots)
        tree = rescore_tree(lattice, lm=lm if has_lm else None, max_nodes=max_nodes, **options)
        prefixes = prefixes_of(tree)
        assert len(set(prefixes)) == len(prefixes) == min(max_nodes, len(masses))
        probabilities = np.exp(tree.log_probs[0, : len(prefixes)], dtype=np.float64)
        np.testing.assert_allclose(
            probabilities, [masses[p] for p in prefixes], rtol=1e-4, atol=1e-30
        )
        # Sorted by mass, the most there is: so no set of this size holds more.
        best = sorted(masses.values(), reverse=True)[: len(prefixes)]
        np.testing.assert_allclose(probabilities, best, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("alpha", [1.0, 0.0, -0.5])
def test_arrays_for_tree_attention(small_lm: NGramLM, alpha: float) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32)
    tree = rescore_tree(logits, [[0], [], [1, 2]], small_lm, max_nodes=90, top_k=3, alpha=alpha)
    assert tree.counts.tolist() == [90, 90, 90]
    for row in range(3):
        prefixes = prefixes_of(tree, row)
        paths = {
            tuple(int(tree.token_ids[row, node]) for node in path if node >= 0)
            for path in tree.leaf_paths[row]
        } - {()}
        inner = {prefix[:-1] for prefix in prefixes}
        assert paths == {prefix for prefix in prefixes if prefix not in inner}
        for node, prefix in enumerate(prefixes):
            seen = {prefixes[k] for k in np.flatnonzero(tree.attention_mask[row, node])}
            assert seen == {prefix[: n + 1] for n in range(len(prefix))}


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no nodes": ({"max_nodes": 0}, ValueError, r"max_nodes is 0; expected 1\.\.4096"),
    "alpha": ({"alpha": float("nan")}, ValueError, "alpha is nan"),
    "context": ({"context": [9]}, ValueError, "rescore_tree: context has token id 9"),
    "lm": ({"lm": "4-gram"}, TypeError, "rescore_tree: lm is the path '4-gram'"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case: str, small_lm: NGramLM) -> None:
    changes, error, message = BAD[case]
    arguments = {"head_logits": np.zeros((2, 4), np.float32), "context": [], "lm": small_lm}
    with pytest.raises(error, match=message):
        rescore_tree(**{**arguments, "top_k": 2, **changes})


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", ["candidates", "numpy", "torch"])
@pytest.mark.parametrize("normalization", ["global", "local"])
def test_draft_tokens_are_those_of_shorter_lattices(
    small_lm: NGramLM, kind: str, normalization: str, threads: int
) -> None:
    rng = np.random.default_rng(9)
    logits = rng.standard_normal((40, 5, 4)).astype(np.float32)
    best = select_top_k(logits, 3, log_softmax=False, where="test")
    start, pairs = rng.standard_normal((40, 3)), rng.standard_normal((40, 4, 3, 3))
    arrays = [best.token_ids, best.scores, start.astype(np.float32), pairs.astype(np.float32)]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        arrays = [torch.from_numpy(array) for array in arrays]
    lattice: Any = LatticeInput(*arrays, normalization=normalization)
    if kind == "candidates":
        lattice = best
    contexts, lengths = [[row % 4] for row in range(40)], [row % 7 for row in range(40)]
    options = {"alpha": 0.5, "temperature": 1.5, "threads": threads}
    drafts = draft_chains(lattice, contexts, small_lm, lengths, **options)
    cut = draft_chains(lattice, contexts, small_lm, lengths, min_prob=0.4, **options)
    assert 0 < sum(map(len, cut)) < sum(map(len, drafts))
    divided = lattice.at_temperature(1.5)
    for row, (draft, short) in enumerate(zip(drafts, cut, strict=True)):
        if lengths[row] == 0:
            assert draft == short == []
            continue
        of_row = slice(row, row + 1)
        if kind == "candidates":
            slots = of_row, slice(0, lengths[row])
            shorter: Any = Candidates(divided.token_ids[slots], divided.scores[slots])
        else:
            shorter = LatticeInput(
                divided.token_ids[of_row], divided.scores[of_row], divided.start[of_row],
                divided.transitions[of_row], normalization=normalization,
            ).cut(lengths[row], 3)  # fmt: skip
        given = {"kind": "chain", "alpha": 0.5 / 1.5}
        tree = search_trees(shorter, [contexts[row]], small_lm, [5], **given)[0]
        assert draft == tree.token_ids[1:]
        assert short == draft[: int(np.count_nonzero(np.exp(tree.log_probs) >= 0.4))]
    with pytest.raises(ValueError, match="found 2 maximum lengths for 40 lattices"):
        draft_chains(lattice, contexts, small_lm, [2, 2], alpha=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "length"}, "objective is 'length'; expected one of \"score\""),
        (
            {"objective": "accept_length", "num_drafts": 4},
            'objective "accept_length" gives one draft.* found num_drafts=4',
        ),
        (
            {"objective": "accept_length", "num_drafts": 1, "engine": "openfst"},
            'objective "accept_length" gives .* by the engine "fused"; found .*"openfst"',
        ),
        ({"temperature": 0.0}, "temperature is 0.0; expected a finite number above 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"rescore_lattice: {message}"):
        rescore_lattice(np.zeros((2, 4), np.float32), [], None, top_k=2, **options)
