"""Proposals of drafters: those of the public searches, cut to fit; a failure costs its step."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import DraftConfig, NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.decode import (
    DecodeState,
    DecodeStats,
    DraftError,
    DraftWarning,
    PBestDrafter,
    TreeDrafter,
    decode,
)
from lattice_bpd.decode.drafters import ArgmaxDrafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.decode.loop.loop import propose_trees
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify import PrefixTree

PROMPT = [3, 8, 13]


class Failing:
    """Drafts what it likes, but for every third step, where it raises."""

    def __init__(self, error):
        self.error, self.steps = error, 0

    def propose(self, states):
        self.steps += 1
        if self.steps % 3 == 0:
            raise self.error
        return [PrefixTree.from_drafts(state.tokens[-1], [[1, 2]]) for state in states]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FloatingPointError("NaN in the logits"), "nan"),
        (MemoryError("no memory"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (IndexError("no such row"), "shape"),
        (DraftError("tired", "not today"), "tired"),
    ],
)
def test_a_failed_draft_costs_one_step(error, kind):
    drafter = Failing(error)
    with pytest.warns(DraftWarning, match=f"Failing drafted nothing .{kind}: ") as caught:
        result = decode(model_of("llama"), PROMPT, drafter, max_new_tokens=20)
    assert len(caught) == 1  # of many failures
    assert result.token_ids == plain_greedy(model_of("llama"), PROMPT, 20)
    assert result.stats.draft_failures == {kind: drafter.steps // 3}


@functools.cache
def trigram() -> NGramLM:
    return NGramLM.train([looping_text()], order=3, vocab_size=VOCAB, smoothing="witten_bell")


def states_of(lengths: list[int], limit: int = 40) -> list[DecodeState]:
    generator = torch.Generator().manual_seed(5)
    model = DraftingModel(model_of("trained"))
    states = []
    for length in lengths:
        tokens = (torch.randint(0, VOCAB, (4,), generator=generator).tolist() * length)[:length]
        hidden = torch.randn(32, generator=generator)
        states.append(DecodeState(model, tokens, length, hidden, limit, DecodeStats()))
        states[-1].update_limits()
    return states


def by_arrays(drafter, state: DecodeState, logits: torch.Tensor) -> tuple[PrefixTree, Any]:
    """The same tree by the public searches of one text, and its log probabilities."""
    config = getattr(drafter, "config", DraftConfig("bpd", top_k=1, num_drafts=1))
    lattice = select_top_k(logits[None], config.top_k, log_softmax=False, where="")
    lattice = lattice.at_temperature(config.temperature)
    given = (lattice, [state.tokens], getattr(drafter, "lm", None))
    alpha, exact = config.alpha / config.temperature, state.tokens[-1]
    if not isinstance(drafter, TreeDrafter):
        drafts = rescore_lattice(*given, num_drafts=config.num_drafts, alpha=alpha)
        lists = drafts.token_ids[0, : drafts.counts[0], : state.max_draft_length]
        return PrefixTree.from_drafts(exact, np.asarray(lists)), None
    arrays = rescore_tree(*given, max_nodes=config.max_nodes, alpha=alpha)
    nodes = (arrays.token_ids[0, : arrays.counts[0]], arrays.parents[0, : arrays.counts[0]])
    log_probs = arrays.log_probs[0, : arrays.counts[0]]
    tree = PrefixTree.from_nodes(exact, *nodes, state.max_draft_length, log_probs)
    return tree, tree.log_probs


@pytest.mark.parametrize(
    "drafter",
    [
        ArgmaxDrafter(),
        PBestDrafter(None, top_k=4, num_drafts=1),
        PBestDrafter(trigram(), top_k=8, num_drafts=16, alpha=0.7),
        TreeDrafter(None, top_k=4, max_nodes=9),
        TreeDrafter(trigram(), top_k=8, max_nodes=36, alpha=0.7),
        TreeDrafter(trigram(), top_k=8, max_nodes=20, temperature=1.7),
    ],
)
@pytest.mark.parametrize("limits", [[40], [3], [40, 40, 40], [40, 3, 2]])
def test_trees_of_drafters_are_those_of_the_public_searches(drafter, limits):
    states = states_of([4, 19, 9][: len(limits)])
    for state, limit in zip(states, limits, strict=True):
        state.limit = limit
    trees = propose_trees([drafter] * len(states), states)
    stages = {"heads", "top_k", *(() if isinstance(drafter, ArgmaxDrafter) else ("rescore",))}
    others = [set()] * (len(limits) - 1)
    assert [state.stats.seconds.keys() for state in states] == [stages, *others]
    for tree, state, logits in zip(trees, states, batch_head_logits(states), strict=True):
        wanted, log_probs = by_arrays(drafter, state, logits)
        assert tree.max_depth <= state.max_draft_length
        assert (tree.token_ids, tree.parents) == (wanted.token_ids, wanted.parents)
        assert len(tree) > 1
        if log_probs is None:  # of drafts, repeated tokens are counted
            assert tree.log_probs is None
            assert (state.stats.repeats, state.stats.neighbours) == wanted.count_repeats()
        else:
            np.testing.assert_allclose(tree.log_probs, log_probs, rtol=1e-4)
        assert state.stats.verified_tokens == len(tree) - 1
