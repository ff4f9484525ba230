"""Samples of a draft model: sequences keep the target's distribution, and p = q accepts all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("torch")


from lattice_bpd.decode import decode, generate
from lattice_bpd.verify import Rejection, Sampled
from lattice_bpd_drafters.draft_model import DraftModelDrafter
from lattice_bpd_drafters.draft_model_trees import plan_draws
from sampled_sequences import (
    PROMPT,
    VOCAB,
    check_sequences,
    sequence_probabilities,
    tiny_model,
)

# What is sampled: options of the rule and of the drafter. Chains sample from all tokens.
WAYS = {
    "chain": ({"temperature": 1.6}, {"shape": "sampled", "draft_length": 2, "top_k": 1}),
    "hot drafts": ({"temperature": 0.7}, {"temperature": 2.5}),
    "top_p": ({"temperature": 2.5, "top_p": 0.8}, {}),
    "top_k": ({"top_k": 2, "temperature": 2.0}, {}),
    "min_p": ({"min_p": 0.2, "top_p": 0.95, "temperature": 2.0}, {}),
    "tree": ({"temperature": 1.6}, {"shape": "sampled", "draws": [3, 2], "top_k": VOCAB}),
    "cut tree": ({"temperature": 1.6}, {"shape": "sampled", "draws": [2, 1], "top_k": 2}),
    "tree, top_p": (
        {"temperature": 2.5, "top_p": 0.8},
        {"shape": "sampled_tree", "max_nodes": 7, "draft_length": 2, "top_k": 3},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_samples_of_a_draft_model_leave_the_targets_distribution(way):
    sampling, options = WAYS[way]
    drafter = DraftModelDrafter(tiny_model(5), **options)
    assert check_sequences(tiny_model(0), drafter, sampling) < 2.9  # drafts were accepted


@pytest.mark.parametrize("rule", [Rejection, Sampled])
@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.5}, {"temperature": 20.0}, {"temperature": 0.9, "top_p": 0.8},
     {"top_k": 30, "min_p": 0.05}],
)  # fmt: skip
def test_the_target_as_its_own_draft_model_keeps_every_token(rule, sampling):
    """Also where the distribution is nearly uniform, as at temperature 20 over 300 tokens."""
    target = tiny_model(2, 0.8, vocab=300)
    prompts = [[7], [8, 9, 10], [200] * 9]
    results = generate(
        target, prompts, "draft_model", lm=target, draft_length=4, max_new_tokens=36,
        acceptance=rule(**sampling, seed=3), stop_token_ids=[],
    )  # fmt: skip
    assert len({token for result in results for token in result.token_ids}) > 3
    for result in results:
        assert result.stats.accept_lengths == [4] * 7


@pytest.mark.parametrize("shape", [None, "sampled_tree", "chain"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "top_p": 0.9}])
def test_with_a_seed_the_output_is_that_of_plain_sampling(shape, sampling):
    target, small = tiny_model(0, 0.8, vocab=30), tiny_model(0, 0.75, vocab=30)
    rule, prompts = Sampled(**sampling, seed=9), [[1, 2], [5], [2, 7, 2]]
    plain = generate(target, prompts, "greedy", acceptance=rule, max_new_tokens=40)
    drafter = DraftModelDrafter(small, shape=shape, max_nodes=12, top_k=8)
    results = generate(target, prompts, drafter, acceptance=rule, max_new_tokens=40)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]
    alone = [generate(target, p, drafter, acceptance=rule, max_new_tokens=40) for p in prompts]
    assert [one.stats.accept_lengths for one in alone] == [
        one.stats.accept_lengths for one in results
    ]


def brute_force(max_nodes, length):
    """The greatest expected number of accepted samples over all plans of children."""
    best = 0.0
    for draws in itertools.product(range(1, 9), repeat=length):
        widths = np.cumprod(draws)
        if widths.sum() <= max_nodes and list(draws) == sorted(draws, reverse=True):
            best = max(best, np.cumprod([1 - 0.4**count for count in draws]).sum())
    return best


@pytest.mark.parametrize(("max_nodes", "length"), [(1, 1), (4, 3), (12, 3), (36, 4), (9, 4)])
def test_trees_have_the_children_that_get_most_samples_accepted(max_nodes, length):
    draws = plan_draws(max_nodes, length)
    assert len(draws) <= length
    assert np.cumprod(draws).sum() <= max_nodes
    expected = np.cumprod([1 - 0.4**count for count in draws]).sum()
    assert expected == pytest.approx(max(brute_force(max_nodes, n) for n in range(1, length + 1)))


def test_a_lenient_rule_keeps_its_bound():
    """By enumeration: at the first drafted position no token is too probable."""
    target, small, lenience = tiny_model(0, 0.4), tiny_model(5, 0.8), 0.5
    drafter = DraftModelDrafter(small, draft_length=1)
    counts = np.zeros((VOCAB, VOCAB))
    accepted = {}
    for used in (lenience, 1.0):
        rule = Rejection(seed=list(range(1500)), lenience=used)
        results = decode(target, [PROMPT] * 1500, drafter, max_new_tokens=3, acceptance=rule)
        accepted[used] = sum(sum(result.stats.accept_lengths) for result in results)
        assert {result.lossless for result in results} == {used == 1.0}
        if used < 1.0:
            for result in results:
                counts[tuple(result.token_ids[:2])] += 1
    assert accepted[lenience] > 1.05 * accepted[1.0]
    pairs = sequence_probabilities(target).reshape(VOCAB, VOCAB, VOCAB).sum(axis=2)
    plain = pairs / pairs.sum(axis=1, keepdims=True)
    after = counts.sum(axis=1, keepdims=True)
    seen = after[:, 0] > 0
    shares, plain, after = counts[seen] / after[seen], plain[seen], after[seen]
    error = 5 * np.sqrt(plain / after)
    assert (shares <= plain / lenience + error).all()
    assert (np.abs(shares - plain) > error).any()  # so it is another distribution
