"""A failed draft costs its step, never the decode; sampled trees carry their distributions."""

import warnings

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import POSITIONS, VOCAB, model_of, plain_greedy
from lattice_bpd.decode import DecodeStats, DraftError, DraftWarning, decode
from lattice_bpd.decode.loop.loop import propose_trees
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
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


def test_nothing_is_warned_of_where_nothing_fails():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = decode(model_of("llama"), PROMPT, Fixed([1], [-1]), max_new_tokens=5)
    assert result.stats.draft_failures == {}


def test_the_vocabulary_is_still_checked():
    with pytest.raises(ValueError, match=f"token id {VOCAB}"):
        decode(model_of("llama"), PROMPT, Fixed([VOCAB], [-1]), max_new_tokens=5)
