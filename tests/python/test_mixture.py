"""The mixture of sources against a plain oracle, and decoding with it."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from lattice_bpd import NGramLM, _core
from lattice_bpd.draft import gates as gates_of
from lattice_bpd.draft.gates import Gates, fit_gates
from lattice_bpd.draft.mixture import make_mixture, source_names
from lattice_bpd.draft.replay import KnownText, replay_text
from lattice_bpd.lm import write_lm
from lattice_bpd.verify.prefix_tree import PrefixTree
from mixture_oracle import OracleMixture
from oracles import read_arpa

IDS = 12


def random_text(rng, length):
    """A text that repeats itself now and then."""
    text = rng.integers(0, IDS, max(length // 3, 1)).tolist()
    while len(text) < length:
        start = int(rng.integers(0, len(text)))
        text += text[start : start + int(rng.integers(1, 6))]
        text.append(int(rng.integers(0, IDS)))
    return text[:length]


def random_heads(rng, slots=3, k=4):
    ids = np.stack([rng.choice(IDS, k, replace=False) for _ in range(slots)]).astype(np.int32)
    probs = rng.dirichlet(np.ones(k + 1), slots)[:, :k]
    return ids, np.log(probs).astype(np.float32)


def make(rng, tmp_path, num_lms, heads, text, store, target=False):
    """A core mixture with random gates, and what the oracle needs."""
    lms, tables = [], []
    for number in range(num_lms):
        texts = [random_text(rng, 30) for _ in range(6)]
        lm = NGramLM.train(texts, order=3 + number, vocab_size=IDS, smoothing="witten_bell")
        write_lm(lm, tmp_path / "lm.arpa")
        lms.append(lm)
        tables.append(read_arpa("\n" + (tmp_path / "lm.arpa").read_text()))
    names = source_names(num_lms, heads=heads, text=text, store=store, target=target)
    num_bins = _core.gate_bins(list(names))[1]
    weights = rng.normal(size=(len(names) + 1, num_bins))
    kept = _core.TextStore(200) if store else None
    other = []
    for _ in range(3 if store else 0):
        tokens = random_text(rng, 25)
        kept.add(np.array(tokens, np.int32))
        other += [*tokens, -2]
    core = make_mixture(
        IDS, lms, heads=heads, text=text, store=kept, target=target, gates=Gates(names, weights)
    )
    return core, weights, tables, (other if store else None)


KINDS = [
    (0, False, True, False), (1, False, True, False), (0, True, True, False),
    (1, True, True, False), (2, True, True, True), (0, True, False, False),
    (1, False, False, False), (0, False, False, True), (0, False, False, False, True),
    (0, False, True, False, True), (1, True, True, False, True), (4, True, True, True, True),
]  # fmt: skip


def add_predictions(rng, of_text, text):
    """What a target predicts after the nodes of some trees, added to a text as it grows."""
    known, length = [], 0
    while length < len(text):
        step = min(int(rng.integers(1, 4)), len(text) - length)
        of_text.append(text[length : length + step])
        length += step
        parents = [-1] + [int(rng.integers(0, n)) for n in range(1, int(rng.integers(1, 6)))]
        paths, siblings = [[]], set()
        for parent in parents[1:]:
            token = int(rng.integers(0, IDS))
            while (parent, token) in siblings:
                token = int(rng.integers(0, IDS))
            siblings.add((parent, token))
            paths.append([*paths[parent], token])
        tree = PrefixTree([text[length - 1], *(path[-1] for path in paths[1:])], parents)
        ids = np.stack([rng.choice(IDS, 8, replace=False) for _ in parents]).astype(np.int32)
        probs = -np.sort(-rng.dirichlet(np.ones(10), len(parents))[:, :8]).astype(np.float32)
        ids[rng.random(len(ids)) < 0.1] = -1  # not known
        for path, row, of_row in zip(paths, ids, probs, strict=True):
            if row[0] >= 0:
                pairs = zip(row.tolist(), of_row.tolist(), strict=True)
                known.append(([*text[:length], *path], dict(pairs)))
        of_text.add_predictions(length, tree, ids, np.log(probs))
    return known


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("is_chain", [False, True])
def test_trees_are_those_of_the_oracle(kinds, is_chain, tmp_path):
    seed = 100 * KINDS.index(kinds) + is_chain
    rng = np.random.default_rng(seed)
    core, weights, tables, store = make(rng, tmp_path, *kinds)
    _, has_heads, has_text, _, has_target = (*kinds, False)[:5]
    for case in range(12):
        text = random_text(rng, int(rng.integers(1, 60)))
        heads = random_heads(rng) if has_heads else None
        of_text, known = _core.MixtureText(core), None
        if has_target and store is None:
            known = add_predictions(rng, of_text, text)
        else:
            of_text.append(text)
            known = [] if has_target else None  # those of a store are of all its texts
        oracle = OracleMixture(text, weights, tables, heads, has_text, store, known)
        arrays = (None, None) if heads is None else (heads[0][None], heads[1][None])
        depth = int(rng.integers(1, 8))
        tree = PrefixTree.of(_core.search_mixtures([of_text], [depth], 12, is_chain, *arrays)[0])
        expected = oracle.best_prefixes(12, depth, is_chain)
        token_ids, parents = tree.token_ids, tree.parents
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(token_ids[1:], parents[1:], strict=True):
            paths.append((*paths[parent], token))
        found = [] if tree.log_probs is None else np.exp(tree.log_probs)
        where = f"seed {seed}, case {case}"
        assert len(paths) - 1 == len(expected), where
        np.testing.assert_allclose(found, [p for _, p in expected], rtol=1e-4, err_msg=where)
        by_path = dict(expected)
        for path, prob in zip(paths[1:], found, strict=True):  # nearly equal ones may swap
            ends = [p for _, p in expected][-1]
            assert path in by_path or math.isclose(prob, ends, rel_tol=1e-4), where


def test_size_by_cost_is_the_best_of_all_sizes(tmp_path):
    rng = np.random.default_rng(5)
    core, *_ = make(rng, tmp_path, 1, False, True, False)
    for _ in range(40):
        texts = []
        for _ in range(int(rng.integers(1, 4))):
            text = _core.MixtureText(core)
            text.append(random_text(rng, 40))
            texts.append(text)
        depths = [6] * len(texts)
        whole = _core.search_mixtures(texts, depths, 20)
        costs = 1.0 + rng.uniform(0.0, 0.2) * np.arange(21) + rng.uniform(0, 0.3, 21)
        cut = _core.search_mixtures(texts, depths, 20, costs=np.maximum.accumulate(costs))
        expected = np.zeros(21)
        for tree in whole:
            probs = np.exp(np.array(tree.log_probs, np.float64))
            sums = 1.0 + np.concatenate([[0.0], np.cumsum(probs)])
            expected += np.append(sums, np.full(21 - len(sums), sums[-1]))
        ratios = expected / np.maximum.accumulate(costs)
        size = max(len(tree) for tree in cut) - 1
        # In a batch each text's search ends by its own ratio.
        assert ratios[size] >= ratios.max() * (1.0 - (1e-6 if len(texts) == 1 else 0.05))
        for tree, full in zip(cut, whole, strict=True):
            assert tree.token_ids == full.token_ids[: len(tree)]


def test_rejects_bad_input():
    names = source_names(0, heads=False, text=True, store=False)
    with pytest.raises(ValueError, match="gate weights; expected"):
        _core.Mixture(5, False, [], True, None, False, 0.0, np.zeros(3))
    with pytest.raises(ValueError, match="no source"):
        _core.Mixture(5, False, [], False)
    with pytest.raises(ValueError, match="expected some of heads"):
        Gates.read([{"sources": ["text", "lm"], "weights": [[0.0]]}])
    core = make_mixture(5, [], heads=False, text=True, store=None, gates=Gates.default(names))
    text = _core.MixtureText(core)
    with pytest.raises(ValueError, match="no tokens"):
        _core.search_mixtures([text], [1], 4)
    with pytest.raises(ValueError, match=r"token id 5; expected 0\.\.4"):
        text.append([5])
    text.append([1])
    tree, row = PrefixTree([1], [-1]), np.zeros((1, 8), np.int32)
    for length, ids in ((0, row), (2, row), (1, row[:, :0]), (1, np.zeros((2, 4), np.int32)[:1])):
        with pytest.raises(ValueError, match="predictions for a tree of 1 nodes"):
            text.add_predictions(length, tree, ids, np.zeros((1, 8), np.float32))
    with pytest.raises(ValueError, match="predictions for a tree"):  # of another text
        text.add_predictions(1, PrefixTree([2], [-1]), row, np.zeros((1, 8), np.float32))
    with pytest.raises(ValueError, match=r"predictions: token id 7; expected 0\.\.4"):
        text.add_predictions(1, tree, row + 7, np.zeros((1, 8), np.float32))
    with pytest.raises(ValueError, match="costs"):
        _core.search_mixtures([text], [1], 1, costs=np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match=r"expected 0\.\.4096"):
        _core.search_mixtures([text], [1], 5000)


def test_gates_follow_the_text_and_fit():
    """A source that is always right gets the weight; the fit finds it too."""
    names = source_names(0, heads=True, text=True, store=False)
    num_bins = _core.gate_bins(list(names))[1]
    gates = Gates(names, np.zeros((3, num_bins)))
    core = make_mixture(50, [], heads=True, text=True, store=None, gates=gates)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 8, 200).tolist()
    ids, log_probs = [], []
    for position in range(100, 200):  # the first candidate is right, the text is not
        true = tokens[position + 1] if position < 199 else 0
        ids.append([[true, 40]])
        log_probs.append([[math.log(0.9), math.log(0.1)]])
    candidates = np.array(ids, np.int32), np.array(log_probs, np.float32)
    text = KnownText(tokens, 100, candidates)
    result = replay_text(core, text, max_nodes=4)
    bins, active, probs = result.examples
    fitted = fit_gates(bins, active, probs, num_bins)

    def likelihood(weights):
        one_hot = np.zeros((len(bins), num_bins + 1))
        np.put_along_axis(one_hot, np.where(bins < 0, num_bins, bins), 1.0, axis=1)
        scores = np.where(active, one_hot[:, :num_bins] @ weights.T, -np.inf)
        shares = np.exp(scores - scores.max(1, keepdims=True))
        q = (shares / shares.sum(1, keepdims=True) * probs).sum(1)
        return float(np.log(q[q > 0]).mean())

    assert likelihood(fitted) > likelihood(np.zeros((3, num_bins))) + 0.1
    late, early = result.sizes[-20:], result.sizes[:20]
    assert len(late) == len(early)
    frozen = _core.Mixture(50, True, [], True, None, False, 0.0, gates.weights)
    assert result.calls <= replay_text(frozen, text, max_nodes=1).calls


def test_gates_are_fitted_by_adam():
    """Against torch's, by the gradients of autograd."""
    rng = np.random.default_rng(4)
    bins = np.stack([rng.permutation(5)[:3] for _ in range(60)]).astype(np.int32)
    bins[rng.random(bins.shape) < 0.2] = -1
    active = rng.random((60, 4)) < 0.7
    active[:, -1] = True
    probs, start = rng.random((60, 4)) * active, rng.normal(size=(4, 5))
    fitted = fit_gates(bins, active, probs, 5, start)
    one_hot = torch.tensor((bins[:, :, None] == np.arange(5)).sum(axis=1), dtype=torch.float64)
    theta, anchor = torch.tensor(start, requires_grad=True), torch.tensor(start)
    optimizer = torch.optim.Adam(
        [theta],
        gates_of._RATE,
        (gates_of._BETA1, gates_of._BETA2),
        gates_of._EPSILON,
    )
    for _ in range(gates_of._STEPS):
        scores = (one_hot @ theta.T).masked_fill(torch.tensor(~active), -torch.inf)
        q = (scores.softmax(dim=1) * torch.tensor(probs)).sum(dim=1)
        loss = 0.5 * gates_of._L2 * (theta - anchor).square().sum() - q.log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(fitted, theta.detach().numpy(), atol=1e-3)


def test_expected_tokens_are_those_accepted():
    """Matches in random text say little: the text alone must know it, and learn it."""
    gates = Gates.default(("text",))
    core = make_mixture(64, [], heads=False, text=True, store=None, gates=gates)
    tokens = np.random.default_rng(1).integers(0, 40, 900).tolist()
    text, start = _core.MixtureText(core), 100
    text.append(tokens[:start])
    expected, accepted = 0.0, 0
    for position in range(start, len(tokens)):
        tree = _core.search_mixtures([text], [1], 4)[0]
        expected += float(np.exp(tree.log_probs).sum())
        accepted += tree.child(0, tokens[position]) >= 0
        text.append([tokens[position]])
    assert 0.8 * accepted < expected < 2.0 * accepted


def test_predictions_of_a_store_are_for_texts_without_their_own():
    store = _core.TextStore(50)
    names = source_names(0, heads=False, text=False, store=True, target=True)
    weights = np.zeros((3, _core.gate_bins(list(names))[1]))
    core = make_mixture(
        IDS, [], heads=False, text=False, store=store, target=True, gates=Gates(names, weights)
    )
    half = np.log(np.full((1, 1), 0.5, np.float32))

    def predict(text, token):
        text.add_predictions(1, PrefixTree([3], [-1]), np.array([[token]], np.int32), half)

    def next_tokens(text):
        return sorted(_core.search_mixtures([text], [1], 4)[0].token_ids[1:])

    first, second, third = (_core.MixtureText(core) for _ in range(3))
    for text in (first, second):
        text.append([3])
    predict(first, 7)
    predict(second, 8)
    third.append([5, 3])
    assert next_tokens(first) == [7]
    assert next_tokens(second) == [8]
    assert next_tokens(third) == [7, 8]
    for token in range(100):  # the store keeps a limited number of keys
        text = _core.MixtureText(core)
        text.append([token % 10, 4])
        text.add_predictions(2, PrefixTree([4], [-1]), np.array([[1]], np.int32), half)
    assert next_tokens(third) == [7, 8]  # few different ones were added since
    for number in range(300):
        text = _core.MixtureText(core)
        text.append([number % IDS, number // IDS % IDS])
        tree = PrefixTree([number // IDS % IDS], [-1])
        if number // IDS % IDS != 3:
            text.add_predictions(2, tree, np.array([[1]], np.int32), half)
    assert next_tokens(third) == []


def test_gates_adapt_to_other_sources():
    """Weights of what both have stay; the source that a mixture gains has its default weights."""
    sources = ("heads", "lm", "lm", "text")
    rng = np.random.default_rng(3)
    shape = Gates.default(sources).weights.shape
    built = Gates(sources, rng.normal(size=shape))
    adapted, default = built.adapt((*sources, "target")), Gates.default((*sources, "target"))
    adapted.check((*sources, "target"))
    np.testing.assert_array_equal(adapted.weights[:4, : shape[1]], built.weights[:4])
    np.testing.assert_array_equal(adapted.weights[5, : shape[1]], built.weights[4])  # "none"
    np.testing.assert_array_equal(adapted.weights[4], default.weights[4])
    np.testing.assert_array_equal(adapted.weights[:, shape[1] :], default.weights[:, shape[1] :])
    back = adapted.adapt(sources)
    np.testing.assert_array_equal(back.weights, built.weights)
    without = built.adapt(("text",))
    np.testing.assert_array_equal(without.weights[0, :8], built.weights[3, :8])
    np.testing.assert_array_equal(without.weights[0, 8:], built.weights[3, -16:])
    fitting = Gates.fitting([without, built, adapted], ("lm", "text"))
    np.testing.assert_array_equal(fitting.weights, built.adapt(("lm", "text")).weights)
    exact = Gates.fitting([built, adapted], (*sources, "target"))
    assert exact is adapted
    none = Gates.fitting((), ("text", "target"))
    np.testing.assert_array_equal(none.weights, Gates.default(("text", "target")).weights)
