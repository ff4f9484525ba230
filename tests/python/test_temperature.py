"""A temperature divides all of the score: what the heads say and what the LM says."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import DraftTree, NGramLM, SampledTree, rescore_tree, sample_tree
from lattice_bpd.decode import DecodeState, DecodeStats, TreeDrafter
from lattice_bpd.decode.drafters.target_noise import (
    WIDER,
    draft_keys,
    select_with_noise,
    target_noise,
)
from lattice_bpd.decode.drafters.tree import SHARPNESS, SampledTreeDrafter
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify import PrefixTree, Rejection, Sampled

SIZES = {"top_k": 6, "max_nodes": 20}


@functools.cache
def trigram() -> NGramLM:
    return NGramLM.train([looping_text()], order=3, vocab_size=VOCAB, smoothing="witten_bell")


def state_of(seed: int) -> DecodeState:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (5,), generator=generator).tolist()
    hidden = torch.randn(32, generator=generator)
    trained = model_of("trained")
    model = DraftingModel(trained.base, trained.heads)
    state = DecodeState(model, tokens, len(tokens), hidden, 40, DecodeStats())
    state.update_limits()
    return state


def head_logits_of(state: DecodeState) -> torch.Tensor:
    """(H, V) raw logits of the heads."""
    return state.model.read_heads([state])[0, : state.num_slots].detach()


def assert_same_nodes(tree: PrefixTree, wanted: DraftTree | SampledTree, state) -> None:
    """A proposed tree holds the nodes of a search's only row, below the state's exact token."""
    count = int(wanted.counts[0])
    assert tree.exact_token == state.tokens[-1]
    assert tree.token_ids[1:] == wanted.token_ids[0, :count].tolist()
    assert [parent - 1 for parent in tree.parents[1:]] == wanted.parents[0, :count].tolist()
    np.testing.assert_allclose(tree.log_probs, wanted.log_probs[0, :count], atol=1e-5)


# The temperature of the drafter, of sampling, and what both come to.
TEMPERATURES = [(2.0, None, 2.0), (0.5, None, 0.5), (0.5, 4.0, 2.0), (2.0, 0.25, 0.5)]


@pytest.mark.parametrize(("own", "sampling", "whole"), TEMPERATURES)
@pytest.mark.parametrize("kind", ["tree", "samples", "shared noise"])
def test_trees_of_drafters(kind, own, sampling, whole):
    if kind == "shared noise" and sampling is None:
        pytest.skip("noise is that of sampling")
    state = state_of(4)
    if sampling is not None:
        rule = Sampled if kind == "shared noise" else Rejection
        state.selector = rule(sampling).start(0, state.tokens)
    made = SampledTreeDrafter if kind == "samples" else TreeDrafter
    drafter = made(trigram(), **SIZES, alpha=0.8, temperature=own)
    logits = head_logits_of(state).numpy()

    def search(alpha):
        if kind == "tree":
            return rescore_tree(logits / whole, state.tokens, trigram(), **SIZES, alpha=alpha)
        options = {"max_nodes": SIZES["max_nodes"], "alpha": alpha}
        if kind == "samples":
            options |= {"top_k": SIZES["top_k"], "seed": draft_keys([state])[0]}
            return sample_tree(logits / whole, state.tokens, trigram(), **options)
        noise = target_noise([state], SHARPNESS)
        top_k = WIDER * SIZES["top_k"]
        widest = select_top_k(logits[None], top_k, log_softmax=False, where="test")
        candidates = select_with_noise(widest.at_temperature(whole), noise, SIZES["top_k"])
        return sample_tree(candidates, [state.tokens], trigram(), **options, noise=noise)

    (tree,) = drafter.propose([state])
    wanted = search(0.8 / whole)
    assert_same_nodes(tree, wanted, state)
    if kind != "samples":
        assert tree.sampled_from is None
        unscaled = search(0.8)  # else the LM would not matter here
        assert np.abs(unscaled.log_probs - wanted.log_probs).max() > 1e-3
        return
    for node in range(len(tree)):
        actual, expected = tree.sampled_from(node), wanted.sampled_from(0, node - 1)
        assert (actual is None) == (expected is None)
        if actual is not None:
            assert actual[0].tolist() == expected[0].tolist()
            np.testing.assert_allclose(actual[1], expected[1], atol=1e-6)
