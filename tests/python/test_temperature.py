"""A temperature divides all of the score: what the heads say and what the LM says."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of
from lattice_bpd import NGramLM, draw_tree, rescore_tree
from lattice_bpd.decode import DecodeState, DecodeStats, TreeDrafter
from lattice_bpd.decode.drafters.sampled import DrawnTreeDrafter
from lattice_bpd.decode.drafters.target_noise import keys_of_draws
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.evaluate import DraftOptions
from lattice_bpd.evaluate.replay.positions import PositionBatch, Rescorers, draft_tree
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify import Rejection

SIZES = {"top_k": 6, "max_nodes": 20}


@functools.cache
def trigram() -> NGramLM:
    return NGramLM.train([looping_text()], order=3, vocab_size=VOCAB, smoothing="witten_bell")


def state_of(seed: int) -> DecodeState:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (5,), generator=generator).tolist()
    hidden = torch.randn(32, generator=generator)
    model = DraftingModel(model_of("trained"))
    state = DecodeState(model, tokens, len(tokens), hidden, 40, DecodeStats())
    state.update_num_slots()
    return state


def assert_same_nodes(found, wanted) -> None:
    for name in ("token_ids", "parents", "counts"):
        assert getattr(found, name).tolist() == getattr(wanted, name).tolist()
    np.testing.assert_allclose(found.log_probs, wanted.log_probs, atol=1e-5)


# The temperature of the drafter, of sampling, and what both come to.
TEMPERATURES = [(2.0, None, 2.0), (0.5, None, 0.5), (0.5, 4.0, 2.0), (2.0, 0.25, 0.5)]


@pytest.mark.parametrize(("own", "sampling", "whole"), TEMPERATURES)
@pytest.mark.parametrize("seed", range(3))
def test_trees_of_drafters(own, sampling, whole, seed):
    state = state_of(seed)
    if sampling is not None:
        state.chooser = Rejection(sampling).start(0, state.tokens)
    logits = state.head_logits().detach().numpy() / whole
    options = {**SIZES, "alpha": 0.8 / whole}
    wanted = rescore_tree(logits, state.tokens, trigram(), **options)
    drafter = TreeDrafter(trigram(), **SIZES, alpha=0.8, temperature=own)
    assert_same_nodes(drafter.propose(state), wanted)
    if sampling is None:
        tree = drafter.propose_prefix_trees([state])[0]
        assert tree.token_ids[1:] == wanted.token_ids[0, : wanted.counts[0]].tolist()
    # else the LM would not matter here
    unscaled = rescore_tree(logits, state.tokens, trigram(), **{**options, "alpha": 0.8})
    assert np.abs(unscaled.log_probs - wanted.log_probs).max() > 1e-3


@pytest.mark.parametrize(("own", "sampling", "whole"), TEMPERATURES)
def test_drawn_trees_of_drafters(own, sampling, whole):
    state = state_of(4)
    if sampling is not None:
        state.chooser = Rejection(sampling).start(0, state.tokens)
    wanted = draw_tree(
        state.head_logits().detach() / whole, state.tokens, trigram(), **SIZES,
        alpha=0.8 / whole, seed=keys_of_draws([state])[0],
    )  # fmt: skip
    drafter = DrawnTreeDrafter(trigram(), **SIZES, alpha=0.8, temperature=own)
    found = drafter.propose(state)
    assert_same_nodes(found, wanted)
    np.testing.assert_allclose(found.child_probs, wanted.child_probs, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_trees_of_replays(temperature):
    logits = np.random.default_rng(0).normal(0, 2, (2, 4, VOCAB)).astype(np.float32)
    contexts = [np.array([5, 10], np.int32), np.array([7], np.int32)]
    batch = PositionBatch(
        select_top_k(logits, 8, log_softmax=False, where="test"), contexts,
        np.zeros((2, 4), np.int32), [], np.zeros(2, np.int64), np.zeros(2, np.int64),
    )  # fmt: skip
    options = DraftOptions(**SIZES, alpha=0.8, temperature=temperature)
    found = draft_tree(batch, Rescorers(trigram()), options)
    wanted = rescore_tree(
        logits / temperature, contexts, trigram(), **SIZES, alpha=0.8 / temperature
    )
    assert found.nodes.tolist() == wanted.counts.tolist()
    for row in range(2):
        leaves = [
            [int(wanted.token_ids[row, node]) for node in path if node >= 0]
            for path in wanted.leaf_paths[row]
        ]
        paths = [[int(token) for token in path if token >= 0] for path in found.paths[row]]
        assert paths == leaves
