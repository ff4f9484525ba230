"""Proposals of drafters: those of the public searches, cut to fit; a failure costs its step."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import POSITIONS, VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import DraftConfig, NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.decode import (
    DecodeState,
    DecodeStats,
    DraftError,
    DraftWarning,
    PBestDrafter,
    TreeDrafter,
    decode,
    generate,
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


@pytest.mark.parametrize("error", [ValueError("a wrong vocabulary"), KeyError("x"), TypeError("y")])
def test_what_is_wrong_in_every_step_is_raised(error):
    with pytest.raises(type(error)):
        decode(model_of("llama"), PROMPT, Failing(error), max_new_tokens=20)


class Fixed:
    """Proposes the same draft tokens below every exact token."""

    def __init__(self, token_ids, parents, **options):
        self.nodes, self.options = (token_ids, parents), options

    def propose(self, states):
        return [
            PrefixTree.from_nodes(state.tokens[-1], *self.nodes, 99, **self.options)
            for state in states
        ]


def test_failures_of_a_batch_are_counted_for_each_text():
    class Broken:
        def propose(self, _states):
            raise FloatingPointError("NaN")

    with pytest.warns(DraftWarning, match="Broken drafted nothing"):
        results = decode(model_of("llama"), [PROMPT, [5]], Broken(), max_new_tokens=5)
    assert [result.stats.draft_failures for result in results] == [{"nan": 3}, {"nan": 3}]
    merged = DecodeStats(draft_failures={"memory": 1, "nan": 1})
    merged.merge(results[0].stats)
    assert merged.draft_failures == {"memory": 1, "nan": 4}


def state_of(tokens, limit=50):
    model = DraftingModel(model_of("llama"))
    return DecodeState(model, list(tokens), len(tokens), torch.zeros(32), limit, DecodeStats())


def test_a_drafter_proposes_for_all_of_its_texts_in_one_call():
    class Listing:
        calls = 0

        def propose(self, states):
            self.calls += 1
            trees = [[[1, 2]], None, [[4, 5]]]
            return [
                None if drafts is None else PrefixTree.from_drafts(state.tokens[-1], drafts)
                for state, drafts in zip(states, trees, strict=True)
            ]

    states, drafter = [state_of([7]), state_of([8]), state_of([9])], Listing()
    trees = propose_trees([drafter] * 3, states)
    assert [tree.token_ids for tree in trees] == [[7, 1, 2], [8], [9, 4, 5]]
    assert drafter.calls == 1
    others = propose_trees([Fixed([1], [-1]), Fixed([2], [-1]), Fixed([3], [-1])], states)
    assert [tree.token_ids for tree in others] == [[7, 1], [8, 2], [9, 3]]


def test_draft_length_is_not_bounded_by_heads():
    state = state_of(range(4), limit=30)
    state.update_limits()
    assert (state.num_slots, state.max_draft_length) == (4, 29)  # 4 draft heads
    state = state_of([1] * (POSITIONS - 7), limit=30)
    state.update_limits()
    assert (state.num_slots, state.max_draft_length) == (4, 7)
    deep = Fixed(range(40), range(-1, 39))
    assert propose_trees([deep], [state])[0].max_depth == 7


def test_sampled_trees_keep_their_distributions():
    #  exact 9: sampled 1, 2;  after 1: sampled 3;  after 3: sampled 4;  after 2: sampled 5
    ids, half = np.array([1, 2]), np.array([0.5, 0.5])
    after_1, after_3, after_2 = ((np.array([token]), np.ones(1)) for token in (3, 4, 5))
    distributions = [(ids, half), after_1, after_3, None, after_2, None]
    sampled = Fixed([1, 3, 4, 2, 5], [-1, 0, 1, -1, 3], sampled_from=distributions)
    tree = propose_trees([sampled], [state_of([9])])[0]
    assert (tree.token_ids, tree.parents) == ([9, 1, 3, 4, 2, 5], [-1, 0, 1, 2, 0, 4])
    assert [tree.sampled_from(node) for node in range(6)] == distributions
    cut = propose_trees([sampled], [state_of([9], limit=3)])[0]  # at most 2 tokens: no 4
    assert cut.token_ids == [9, 1, 3, 2, 5]
    # The children of 3 are left out, whatever they are: the target then samples after 3 itself.
    assert [cut.sampled_from(node) for node in range(5)] == [
        (ids, half), after_1, after_3, after_2, None
    ]  # fmt: skip
    with pytest.raises(ValueError, match="2 token ids and 2 distributions; expected one"):
        PrefixTree.from_nodes(9, [1, 2], [-1, -1], 9, sampled_from=[None, None])


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
