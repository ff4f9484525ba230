"""What the random numbers of sampling depend on, and cut-offs that are met exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from blockwise_models import model_of, small_lm
from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters import chain as sampled_drafter
from lattice_bpd.verify import Rejection, Sampled
from lattice_bpd.verify.acceptance.warp import Warp

RULES = (Sampled, Rejection)


@pytest.mark.parametrize("rule", RULES)
def test_the_key_of_a_text_depends_on_seed_and_prompt_alone(rule):
    texts = [(0, [1, 2]), (0, [1, 3]), (0, [2, 1]), (0, [1, 2, 2]), (1, [1, 2]), (-1, [1, 2])]
    keys = [rule(seed=seed).start(0, prompt).key for seed, prompt in texts]
    assert len(set(keys)) == len(texts)
    assert (
        keys[0] == rule(0.5, top_k=3, seed=0).start(7, [1, 2]).key
    )  # its number in a batch is not
    assert keys[4] == rule(seed=[5, 1]).start(1, [1, 2]).key
    assert all(0 <= key < 1 << 64 for key in keys)


def test_texts_of_one_seed_are_sampled_independently():
    """From a flat distribution, other prompts sample other tokens at the same position."""
    flat = torch.zeros(1000)
    samples = [Sampled(seed=3).start(0, [prompt]).choose(flat, None) for prompt in range(20)]
    assert len(set(samples)) > 15
    selector = Sampled(seed=3).start(0, [1])  # and so does each position of a text
    assert len({selector.choose(flat, None) for _ in range(20)}) > 15


def test_each_step_samples_new_drafts(monkeypatch):
    seeds: list[list[int]] = []
    sample = sampled_drafter.sample_tree

    def note(*arguments, **options):
        seeds.append(list(options["seed"]))
        return sample(*arguments, **options)

    monkeypatch.setattr(sampled_drafter, "sample_tree", note)
    prompts = [[1, 2, 3], [4, 5, 6]]
    rule = Rejection(1.2, seed=4)
    options = {"lm": small_lm(), "top_k": 6, "max_nodes": 8, "max_new_tokens": 16}
    results = generate(model_of("trained"), prompts, "sampled", acceptance=rule, **options)
    assert len(seeds) > 3
    each = [seed for step in seeds for seed in step]
    assert len(set(each)) == len(each)  # of every text in every step
    keys = {rule.start(n, prompt).key for n, prompt in enumerate(prompts)}
    assert not keys & set(each)  # nor that of the target's own samples
    alone = generate(model_of("trained"), prompts[1], "sampled", acceptance=rule, **options)
    assert alone.token_ids == results[1].token_ids


@pytest.mark.parametrize("kept", [1, 2, 3, 4])
@pytest.mark.parametrize("impossible", [0, 4, 3000])
def test_top_p_that_is_met_exactly_keeps_no_token_more(kept, impossible):
    logits = torch.full((4 + impossible,), -math.inf)
    logits[:4] = 2.5  # 1/4 each, exactly
    warped = Warp(top_p=kept / 4).apply(logits)
    assert np.isfinite(warped).nonzero()[0].tolist() == list(range(kept))  # ties: smaller ids
    wanted = TopPLogitsWarper(kept / 4)(None, logits[None])[0]
    assert int(wanted.isfinite().sum()) == kept
    more = Warp(top_p=min(kept / 4 + 1e-6, 1.0)).apply(logits)
    assert np.isfinite(more).sum() == min(kept + 1, 4)


def test_top_k_keeps_ties_with_the_last():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0])
    for k, kept in ((1, [1]), (2, [1, 2, 3]), (3, [1, 2, 3]), (4, [0, 1, 2, 3])):
        warped = Warp(top_k=k).apply(logits)
        assert np.isfinite(warped).nonzero()[0].tolist() == kept
        wanted = TopKLogitsWarper(k)(None, logits[None])[0]
        assert wanted.isfinite().nonzero()[:, 0].tolist() == kept


def test_min_p_keeps_what_meets_it():
    logits = torch.tensor([0.0, math.log(0.5) + 1e-6, math.log(0.5) - 1e-6])
    assert np.isfinite(Warp(min_p=0.5).apply(logits)).tolist() == [True, True, False]
