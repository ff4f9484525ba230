"""A failed draft costs its step, never the decode; drawn trees carry their distributions."""

import warnings

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import POSITIONS, VOCAB, model_of, plain_greedy
from lattice_bpd import Drafts, DraftTree
from lattice_bpd.decode import (
    DecodeStats,
    DraftError,
    DraftWarning,
    DrawnNodes,
    decode,
    decode_batch,
)
from lattice_bpd.decode.drafters.proposals import propose_trees
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState

PROMPT = [3, 8, 13]


class Failing:
    """Drafts what it likes, but for every third step, where it raises."""

    def __init__(self, error):
        self.error, self.steps = error, 0

    def propose(self, _state):
        self.steps += 1
        if self.steps % 3 == 0:
            raise self.error
        return Drafts(np.array([[[1, 2]]]), None, np.array([1]))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FloatingPointError("NaN in the logits"), "nan"),
        (MemoryError("no room"), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (IndexError("no such row"), "shape"),
        (DraftError("tired", "not today"), "tired"),
    ],
)
def test_a_failed_draft_costs_one_step(error, kind):
    drafter = Failing(error)
    with pytest.warns(DraftWarning, match=f"Failing drafted nothing .{kind}: ") as caught:
        found = decode(model_of("llama"), PROMPT, drafter, max_new_tokens=20)
    assert len(caught) == 1  # of many failures
    assert found.token_ids == plain_greedy(model_of("llama"), PROMPT, 20)
    assert found.stats.draft_failures == {kind: drafter.steps // 3}


@pytest.mark.parametrize("error", [ValueError("a wrong vocabulary"), KeyError("x"), TypeError("y")])
def test_what_is_wrong_in_every_step_is_raised(error):
    with pytest.raises(type(error)):
        decode(model_of("llama"), PROMPT, Failing(error), max_new_tokens=20)


def tree_of(token_ids, parents):
    return DraftTree(
        np.array([token_ids]), np.array([parents]), None, None, np.array([len(token_ids)]), None,
        None,
    )  # fmt: skip


class Fixed:
    def __init__(self, proposal):
        self.proposal = proposal

    def propose(self, _state):
        return self.proposal

    def propose_batch(self, states):
        return [self.proposal] * len(states)


@pytest.mark.parametrize(
    "proposal",
    [
        tree_of([1, 2], [-1, 1]),  # a node that is its own parent
        Drafts(np.array([1, 2]), None, np.array([1])),  # axes are missing
        DrawnNodes(np.array([1]), np.array([3]), [None, None]),
    ],
)
def test_a_misshapen_draft_counts_as_none(proposal):
    with pytest.warns(DraftWarning, match="shape"):
        found = decode(model_of("llama"), PROMPT, Fixed(proposal), max_new_tokens=6)
    assert found.token_ids == plain_greedy(model_of("llama"), PROMPT, 6)
    assert found.stats.draft_failures == {"shape": 4}  # the prompt's and the last token need none


def test_failures_of_a_batch_are_counted_for_each_text():
    class Broken:
        def propose_batch(self, _states):
            raise FloatingPointError("NaN")

        def propose(self, _state):
            raise FloatingPointError("NaN")

    with pytest.warns(DraftWarning, match="Broken drafted nothing"):
        found = decode_batch(model_of("llama"), [PROMPT, [5]], Broken(), max_new_tokens=5)
    assert [result.stats.draft_failures for result in found] == [{"nan": 3}, {"nan": 3}]
    merged = DecodeStats(draft_failures={"memory": 1, "nan": 1})
    merged.merge(found[0].stats)
    assert merged.draft_failures == {"memory": 1, "nan": 4}


def state_of(tokens, limit=50):
    model = DraftingModel(model_of("llama"))
    return DecodeState(model, list(tokens), len(tokens), torch.zeros(32), limit, DecodeStats())


def test_a_list_of_proposals_has_one_for_each_text():
    drafts = Drafts(np.array([[[1, 2, -1, -1]]]), None, np.array([1]))

    class Listing(Fixed):
        def propose_batch(self, _states):
            return [drafts, None, tree_of([4, 5], [-1, 0])]

    states = [state_of([7]), state_of([8]), state_of([9])]
    trees = propose_trees([Listing(None)] * 3, states)
    assert [tree.token_ids for tree in trees] == [[7, 1, 2], [8], [9, 4, 5]]
    assert states[0].stats.neighbours == 2  # padding is no draft
    with pytest.raises(ValueError, match="Listing proposed a list of 3 for 2 sequences"):
        propose_trees([Listing(None)] * 2, states[:2])


def test_room_is_not_bounded_by_heads():
    state = state_of(range(4), limit=30)
    state.update_num_slots()
    assert (state.num_slots, state.room) == (4, 29)  # 4 draft heads
    state = state_of([1] * (POSITIONS - 7), limit=30)
    state.update_num_slots()
    assert (state.num_slots, state.room) == (4, 7)
    deep = Drafts(np.arange(40)[None, None], None, np.array([1]))
    assert propose_trees([Fixed(deep)], [state])[0].max_depth == 7


def test_drawn_nodes_hand_their_distributions_on():
    #  exact 9: drawn 1, 2;  behind 1: drawn 3;  behind 3: drawn 4;  behind 2: drawn 5
    ids, half = np.array([1, 2]), np.array([0.5, 0.5])
    behind_1, behind_3, behind_2 = ((np.array([token]), np.ones(1)) for token in (3, 4, 5))
    drawn = DrawnNodes(
        np.array([1, 3, 4, 2, 5]), np.array([-1, 0, 1, -1, 3]),
        [(ids, half), behind_1, behind_3, None, behind_2, None],
    )  # fmt: skip
    tree = propose_trees([Fixed(drawn)], [state_of([9])])[0]
    assert (tree.token_ids, tree.parents) == ([9, 1, 3, 4, 2, 5], [-1, 0, 1, 2, 0, 4])
    assert [tree.drawn_from(node) for node in range(6)] == drawn.drawn_from
    cut = propose_trees([Fixed(drawn)], [state_of([9], limit=3)])[0]  # room for 2: no 4
    assert cut.token_ids == [9, 1, 3, 2, 5]
    assert [cut.drawn_from(node) for node in range(5)] == [
        (ids, half), behind_1, None, behind_2, None
    ]  # fmt: skip
    with pytest.raises(ValueError, match="2 distributions; expected as many parents"):
        DrawnNodes(np.array([1, 2]), np.array([-1, -1]), [None, None])


def test_nothing_is_warned_of_where_nothing_fails():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = decode(model_of("llama"), PROMPT, Fixed(tree_of([1], [-1])), max_new_tokens=5)
    assert found.stats.draft_failures == {}


def test_the_vocabulary_is_still_checked():
    drawn = DrawnNodes(np.array([VOCAB]), np.array([-1]), [None, None])
    with pytest.raises(ValueError, match=f"token id {VOCAB}"):
        decode(model_of("llama"), PROMPT, Fixed(drawn), max_new_tokens=5)
