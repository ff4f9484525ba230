"""Drafts that come as prefix trees: the same as from arrays, and what is refused of them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import DraftConfig, NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.decode import DecodeState, DecodeStats, PBestDrafter, TreeDrafter, decode, generate
from lattice_bpd.decode.drafters import ArgmaxDrafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits
from lattice_bpd.decode.drafters.proposals import DraftWarning
from lattice_bpd.decode.loop.loop import propose_trees
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.lattice.logits import select_top_k
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
        states[-1].update_limits()
    return states


class ByArrays:
    """The same drafts by the public searches of a batch, whose arrays become trees."""

    def __init__(self, drafter):
        self.drafter, self.lm = drafter, getattr(drafter, "lm", None)
        self.config = getattr(drafter, "config", DraftConfig("bpd", top_k=1, num_drafts=1))

    def propose(self, states):
        logits = batch_head_logits(states)
        given = (logits, [state.tokens for state in states], self.lm)
        search = self.find_trees if isinstance(self.drafter, TreeDrafter) else self.find_drafts
        return search(states, *given)

    def find_drafts(self, states, *given):
        config = self.config
        drafts = rescore_lattice(
            *given, num_drafts=config.num_drafts, alpha=config.alpha, top_k=config.top_k
        )
        trees = []
        for row, state in enumerate(states):
            lists = drafts.token_ids[row, : drafts.counts[row], : state.max_draft_length].numpy()
            trees.append(PrefixTree.from_drafts(state.tokens[-1], lists))
            state.stats.add_repeats(*trees[-1].count_repeats())
        return trees

    def find_trees(self, states, logits, *given):
        config = self.config
        candidates = select_top_k(logits, config.top_k, log_softmax=False, where="test")
        arrays = rescore_tree(
            candidates.at_temperature(config.temperature), *given, max_nodes=config.max_nodes,
            alpha=config.alpha / config.temperature,
        )  # fmt: skip
        trees = []
        for row, state in enumerate(states):
            nodes = (
                array[row, : arrays.counts[row]] for array in (arrays.token_ids, arrays.parents)
            )
            log_probs = arrays.log_probs[row, : arrays.counts[row]]
            trees.append(
                PrefixTree.from_nodes(state.tokens[-1], *nodes, state.max_draft_length, log_probs)
            )
        return trees


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
def test_prefix_trees_are_those_of_the_arrays(drafter, limits):
    lengths = [4, 19, 9][: len(limits)]
    results = []
    for one in (drafter, ByArrays(drafter)):
        states = states_of(lengths)
        for state, limit in zip(states, limits, strict=True):
            state.limit = limit
        results.append((propose_trees([one] * len(states), states), states))
    (direct, states), (plain, others) = results
    for tree, wanted, state, other in zip(direct, plain, states, others, strict=True):
        assert tree.max_depth <= state.max_draft_length
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
    stages = {"heads", "top_k", "rescore"}
    if isinstance(drafter, ArgmaxDrafter):
        stages.remove("rescore")
    assert [state.stats.seconds.keys() for state in states] == [
        stages,
        *[set()] * (len(limits) - 1),
    ]


def test_a_cut_tree_is_the_smaller_tree():
    large = propose_trees([TreeDrafter(trigram(), max_nodes=30)], states_of([6]))[0]
    small = propose_trees([TreeDrafter(trigram(), max_nodes=11)], states_of([6]))[0]
    cut = large.cut(11, 99)
    assert cut.token_ids == small.token_ids
    assert cut.parents == small.parents
    np.testing.assert_array_equal(cut.log_probs, small.log_probs)
    assert large.cut(30, 2).max_depth == 2
    assert large.cut(0, 99).token_ids == large.token_ids[:1]


def test_a_cut_tree_knows_what_its_nodes_were_sampled_from():
    tree = PrefixTree([9, 1, 2, 3, 4], [-1, 0, 1, 2, 0])
    assert tree.cut(2, 99).sampled_from is None
    tree.sampled_from = lambda node: ([node], [1.0])
    assert tree.cut(3, 99).sampled_from(3) == ([3], [1.0])
    flat = tree.cut(4, 1)
    assert flat.token_ids == [9, 1, 4]
    assert flat.sampled_from(2) == ([4], [1.0])


@pytest.mark.parametrize(
    ("proposed", "error", "message"),
    [
        (None, TypeError, "a NoneType; expected a list with a PrefixTree or None"),
        ([], ValueError, "a list of 0 for 1 sequences"),
        ([[1, 2]], TypeError, "a list with a list; expected PrefixTree or None"),
    ],
)
def test_other_proposals_are_refused(proposed, error, message):
    class Other:
        def propose(self, _states):
            return proposed

    with pytest.raises(error, match=f"Other.propose returned {message}"):
        propose_trees([Other()], states_of([3]))


class Proposes:
    def __init__(self, make):
        self.make = make

    def propose(self, states):
        return [self.make(state) for state in states]


def test_a_prefix_tree_is_a_proposal():
    model, prompt = model_of("llama"), [3, 8, 13]
    output = plain_greedy(model, prompt, 12)

    def foresee(state):
        done = len(state.new_tokens)
        return PrefixTree.from_drafts(state.tokens[-1], [output[done:], [0]])

    result = decode(model, prompt, Proposes(foresee), max_new_tokens=12)
    assert result.token_ids == output
    assert result.stats.target_calls == 2  # the prompt, and one for all other tokens


def test_prefix_trees_are_checked():
    model, prompt = model_of("llama"), [3, 8, 13]
    wanted = plain_greedy(model, prompt, 6)
    with pytest.warns(DraftWarning, match="node 0 of the tree is"):
        result = decode(model, prompt, Proposes(lambda _: PrefixTree([VOCAB + 5], [-1])),
                       max_new_tokens=6)  # fmt: skip
    assert result.token_ids == wanted
    assert result.stats.draft_failures == {"shape": 4}

    def outside(state):
        return PrefixTree.from_drafts(state.tokens[-1], [[VOCAB]])

    with pytest.raises(ValueError, match=f"token id {VOCAB}"):
        decode(model, prompt, Proposes(outside), max_new_tokens=6)


def test_failing_heads_are_counted_by_the_direct_search():
    calls = []

    def heads(hidden):
        calls.append(hidden)
        if len(calls) > 1:  # the first checks their shape
            raise MemoryError
        return torch.zeros(len(hidden), 3, VOCAB)

    model = model_of("llama")
    with pytest.warns(DraftWarning, match="memory"):
        result = generate(model.base, [3, 8], "tree", heads=heads, max_new_tokens=6)
    assert result.token_ids == plain_greedy(model, [3, 8], 6)
    assert result.stats.draft_failures == {"memory": 4}
    assert len(calls) == 5  # not called again by the other search


def test_wrong_options_of_the_direct_search():
    with pytest.raises(ValueError, match="max_nodes is 0"):
        propose_trees([TreeDrafter(None, max_nodes=0)], states_of([3]))
    other = NGramLM.train([np.arange(7)], order=2, vocab_size=7, smoothing="witten_bell")
    with pytest.raises(ValueError, match="LM has a vocabulary of 7"):
        propose_trees([TreeDrafter(other)], states_of([3]))
    with pytest.raises(ValueError, match="top_k is 99"):
        propose_trees([PBestDrafter(None, top_k=99)], states_of([3]))
