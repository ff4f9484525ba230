"""Drafts that come as prefix trees: the same as from arrays, and what is refused of them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import NGramLM
from lattice_bpd.decode import (
    BlockDrafter,
    DecodeState,
    DecodeStats,
    LatticeDrafter,
    TreeDrafter,
    decode,
    generate,
)
from lattice_bpd.decode.drafters.failures import DraftWarning
from lattice_bpd.decode.drafters.proposals import has_prefix_trees, propose_trees
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify import PrefixTree

pytestmark = pytest.mark.filterwarnings("ignore:Katz")  # corpora made up for tests


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
        states[-1].update_num_slots()
    return states


def by_arrays(drafter):
    """The same drafter as one that knows nothing of prefix trees."""

    class Plain:
        propose = drafter.propose
        propose_batch = drafter.propose_batch

    return Plain()


@pytest.mark.parametrize(
    "drafter",
    [
        BlockDrafter(),
        LatticeDrafter(None, top_k=4, num_drafts=1),
        LatticeDrafter(trigram(), top_k=8, num_drafts=16, alpha=0.7),
        TreeDrafter(None, top_k=4, max_nodes=9),
        TreeDrafter(trigram(), top_k=8, max_nodes=36, alpha=0.7),
        TreeDrafter(trigram(), top_k=8, max_nodes=20, temperature=1.7),
        LatticeDrafter(trigram(), top_k=8, num_drafts=5, cache=True),
        TreeDrafter(trigram(), top_k=8, max_nodes=20, cache=True),
        TreeDrafter(None, top_k=4, max_nodes=30, cache=2),
    ],
)
@pytest.mark.parametrize("limits", [[40], [3], [40, 40, 40], [40, 3, 2]])
def test_prefix_trees_are_those_of_the_arrays(drafter, limits):
    lengths = [4, 19, 9][: len(limits)]
    results = []
    for one in (drafter, by_arrays(drafter)):
        states = states_of(lengths)
        for state, limit in zip(states, limits, strict=True):
            state.limit = limit
        assert has_prefix_trees(type(one)) is (one is drafter)
        results.append((propose_trees([one] * len(states), states), states))
    (quick, states), (plain, others) = results
    for tree, wanted, state, other in zip(quick, plain, states, others, strict=True):
        assert tree.max_depth <= state.room
        if getattr(drafter, "_repeats", None) is not None and len(set(limits)) > 1:
            assert len(tree) >= len(wanted)  # no node beyond the room takes another's place
            continue
        assert tree.token_ids == wanted.token_ids
        assert tree.parents == wanted.parents
        assert len(tree) > 1
        if isinstance(drafter, TreeDrafter):
            np.testing.assert_array_equal(tree.log_probs, wanted.log_probs)
            assert (np.diff(tree.log_probs) <= 0.0).all()
        else:
            assert tree.log_probs is None
        assert (state.stats.repeats, state.stats.neighbours) == (
            other.stats.repeats,
            other.stats.neighbours,
        )
        assert state.stats.verified_tokens == other.stats.verified_tokens == len(tree) - 1
        assert state.stats.seconds.keys() == other.stats.seconds.keys()


def test_a_cut_tree_is_the_smaller_tree():
    large = propose_trees([TreeDrafter(trigram(), max_nodes=30)], states_of([6]))[0]
    small = propose_trees([TreeDrafter(trigram(), max_nodes=11)], states_of([6]))[0]
    cut = large.cut(11, 99)
    assert cut.token_ids == small.token_ids
    assert cut.parents == small.parents
    np.testing.assert_array_equal(cut.log_probs, small.log_probs)
    assert large.cut(30, 2).max_depth == 2
    assert large.cut(0, 99).token_ids == large.token_ids[:1]


def test_a_cut_tree_knows_what_its_nodes_were_drawn_from():
    tree = PrefixTree([9, 1, 2, 3, 4], [-1, 0, 1, 2, 0])
    assert tree.cut(2, 99).drawn_from is None
    tree.drawn_from = lambda node: ([node], [1.0])
    assert tree.cut(3, 99).drawn_from(3) == ([3], [1.0])
    flat = tree.cut(4, 1)
    assert flat.token_ids == [9, 1, 4]
    assert flat.drawn_from(2) == ([4], [1.0])


def test_a_subclass_that_proposes_otherwise_is_heard():
    class Nothing(TreeDrafter):
        def propose(self, state):  # noqa: ARG002
            return None

    assert not has_prefix_trees(Nothing)
    assert propose_trees([Nothing(None)], states_of([3]))[0].parents == [-1]

    class Smaller(TreeDrafter):
        pass

    assert has_prefix_trees(Smaller)


class Proposes:
    def __init__(self, make):
        self.make = make

    def propose(self, state):
        return self.make(state)


def test_a_prefix_tree_is_a_proposal():
    model, prompt = model_of("llama"), [3, 8, 13]
    output = plain_greedy(model, prompt, 12)

    def foresee(state):
        done = len(state.new_tokens)
        return PrefixTree.from_drafts(state.tokens[-1], [output[done:], [0]])

    found = decode(model, prompt, Proposes(foresee), max_new_tokens=12)
    assert found.token_ids == output
    assert found.stats.target_calls == 2  # the prompt, and the rest in one, cut to its room


def test_prefix_trees_are_checked():
    model, prompt = model_of("llama"), [3, 8, 13]
    wanted = plain_greedy(model, prompt, 6)
    with pytest.warns(DraftWarning, match="node 0 of a PrefixTree holds"):
        found = decode(model, prompt, Proposes(lambda _: PrefixTree([VOCAB + 5], [-1])),
                       max_new_tokens=6)  # fmt: skip
    assert found.token_ids == wanted
    assert found.stats.draft_failures == {"shape": 4}

    def outside(state):
        return PrefixTree.from_drafts(state.tokens[-1], [[VOCAB]])

    with pytest.raises(ValueError, match=f"token id {VOCAB}"):
        decode(model, prompt, Proposes(outside), max_new_tokens=6)


def test_failing_heads_are_counted_by_the_quick_way_too():
    calls = []

    def heads(hidden):
        calls.append(hidden)
        if len(calls) > 1:  # the first looks at their shape
            raise MemoryError
        return torch.zeros(len(hidden), 3, VOCAB)

    model = model_of("llama")
    with pytest.warns(DraftWarning, match="memory"):
        found = generate(model.base, [3, 8], "tree", heads=heads, max_new_tokens=6)
    assert found.token_ids == plain_greedy(model, [3, 8], 6)
    assert found.stats.draft_failures == {"memory": 4}
    assert len(calls) == 5  # not asked anew by the other way


def test_wrong_options_of_the_quick_way():
    with pytest.raises(ValueError, match="max_nodes is 0"):
        propose_trees([TreeDrafter(None, max_nodes=0)], states_of([3]))
    other = NGramLM.train([np.arange(7)], order=2, vocab_size=7, smoothing="witten_bell")
    with pytest.raises(ValueError, match="LM has a vocabulary of 7"):
        propose_trees([TreeDrafter(other)], states_of([3]))
    with pytest.raises(ValueError, match="top_k is 99"):
        propose_trees([LatticeDrafter(None, top_k=99)], states_of([3]))
