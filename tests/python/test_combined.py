"""Continuations by the LM and combinations: enumeration, worked merges, what is learned."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy, random_model
from lattice_bpd import NGramLM
from lattice_bpd.decode import DecodeStats, DraftError, DraftWarning, TreeDrafter, decode
from lattice_bpd.decode.adaptive import Controller
from lattice_bpd.decode.drafters import (
    ArgmaxDrafter,
    CombinedDrafter,
    ContinuationDrafter,
    DraftModelDrafter,
    LookupDrafter,
)
from lattice_bpd.decode.drafters.acceptance_rates import Rate
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify import PrefixTree

PROMPTS = [looping_text(40)[3:15].tolist(), [5, 6, 5], [7]]


@pytest.fixture(scope="module")
def lm():
    return NGramLM.train([looping_text(2000, 1)], 3, vocab_size=VOCAB, smoothing="witten_bell")


def state_of(tokens, limit=50, kind="llama", heads=True):
    model = DraftingModel(model_of(kind) if heads else model_of(kind).base)
    hidden = torch.linspace(-1.0, 1.0, 32)
    state = DecodeState(model, list(tokens), len(tokens), hidden, limit, DecodeStats())
    state.update_limits()
    return state


def paths_of(tree):
    """Each prefix of a tree and its log probability."""
    paths = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        if node:
            paths[node] = (*paths[parent], token)
    return dict(zip(list(paths.values())[1:], tree.log_probs.tolist(), strict=True))


def draft(drafter, state):
    (tree,) = drafter.propose([state])
    return tree


def with_continuations(prefixes, depth, context, lm):
    """All prefixes, and those of `depth` tokens again with each token after them."""
    log_probs = dict(prefixes)
    for path, log_prob in prefixes.items():
        if len(path) == depth:
            for token in range(VOCAB):
                log_probs[(*path, token)] = log_prob + lm.log_prob(token, [*context, *path])
    return log_probs


def assert_best(tree, prefixes, count):
    paths = paths_of(tree)
    assert len(paths) == count
    wanted = sorted(prefixes.values(), reverse=True)[:count]
    np.testing.assert_allclose(list(paths.values()), wanted, atol=1e-5)
    for path, log_prob in paths.items():
        assert prefixes[path] == pytest.approx(log_prob, abs=1e-5)


@pytest.mark.parametrize("context", [[5], [3, 8, 13, 18]])
def test_the_lm_alone_drafts_its_most_probable_prefixes(context, lm):
    first = with_continuations({(): 0.0}, 0, context, lm)
    both = with_continuations(first, 1, context, lm)
    del both[()]
    drafter = ContinuationDrafter(None, lm, num_slots=2, top_k=VOCAB, max_nodes=30)
    assert_best(draft(drafter, state_of(context, heads=False)), both, 30)


def test_continuations_compete_with_the_prefixes_of_the_heads(lm):
    state = state_of(PROMPTS[0])
    heads = TreeDrafter(lm, top_k=2, max_nodes=30, alpha=1.0, temperature=20.0)
    prefixes = paths_of(draft(heads, state))
    assert len(prefixes) == 2 + 4 + 8 + 16
    both = with_continuations(prefixes, 4, state.tokens, lm)
    drafter = ContinuationDrafter(heads, lm, num_slots=1, top_k=VOCAB, max_nodes=40)
    tree = draft(drafter, state)
    assert_best(tree, both, 40)
    assert 0 < sum(len(path) == 5 for path in paths_of(tree)) < 40
    short = state_of(PROMPTS[0], limit=5)  # 4 remaining positions
    assert max(map(len, paths_of(draft(drafter, short)))) == 4


class Fixed:
    """Proposes the given trees."""

    def __init__(self, proposal=None):
        self.proposal = proposal

    def propose(self, states):
        return [self.proposal(state.tokens[-1]) for state in states]


def as_drafts(*drafts):
    return lambda exact_token: PrefixTree.from_drafts(exact_token, drafts)


def as_tree(token_ids, parents, log_probs):
    log_probs = np.array(log_probs, np.float32)
    return lambda token: PrefixTree.from_nodes(token, token_ids, parents, 9, log_probs)


def test_equal_prefixes_become_one_node_of_the_greater_probability():
    #  tree  1 (0.6) - 2 (0.4)     chain  1 - 2 - 3, each right with 1/2 at first
    #        `- 4 (0.1)            so  1/2  1/4  1/8
    log_probs = np.log([0.6, 0.4, 0.1]).tolist()
    tree = as_tree([1, 2, 4], [-1, 0, 0], log_probs)
    drafter = CombinedDrafter([Fixed(tree), Fixed(as_drafts([1, 2, 3]))], max_nodes=9)
    paths = paths_of(draft(drafter, state_of([9])))
    assert {path: round(math.exp(lp), 6) for path, lp in paths.items()} == {
        (1,): 0.6, (1, 2): 0.4, (1, 2, 3): 0.125, (1, 4): 0.1,
    }  # fmt: skip
    turned = CombinedDrafter([Fixed(as_drafts([1, 2, 3])), Fixed(tree)], max_nodes=9)
    assert paths_of(draft(turned, state_of([9]))) == paths
    drafter.max_nodes = 3
    assert list(paths_of(draft(drafter, state_of([9])))) == [(1,), (1, 2), (1, 2, 3)]


def test_rates_follow_what_was_right():
    drafter, state = CombinedDrafter([Fixed(as_drafts([1, 2, 3], [4, 5, 6]))]), state_of([9])
    draft(drafter, state)
    state.tokens += [1, 2, 7]  # two of the first draft were right and the third was wrong
    draft(drafter, state)
    assert drafter.rate(0, 0) == (2 + 1) / (3 + 2)
    assert drafter.rate(0, 1) == (0 + 1) / (1 + 2)
    state.tokens += [1]  # nothing is known of what is deeper
    draft(drafter, state)
    assert drafter.rate(0, 0) == pytest.approx((0.99 * 2 + 1 + 1) / (0.99 * 3 + 1 + 2))
    rate = Rate(3.0, 4.0)
    assert rate.value == 4.0 / 6.0


def test_probabilities_of_trees_follow_what_was_kept():
    def tree(log_prob):
        return as_tree([1, 2], [-1, 0], [log_prob, log_prob - 0.01])

    drafter, state = CombinedDrafter([Fixed(tree(-0.1))]), state_of([9])
    for _ in range(30):
        draft(drafter, state)
        state.tokens += [1, 5]  # the first node is kept, the second is not
    paths = paths_of(draft(drafter, state))
    assert math.exp(paths[1,]) == pytest.approx(0.5, abs=0.05)  # both are in one bin

    def share():  # of nodes that are as sure as these
        return drafter._calibrations[0].probabilities(np.array([-0.1], np.float32))[0]

    before = share()
    state.tokens += [1]  # whether 2 would have been kept is not known, and does not count
    draft(drafter, state)
    assert share() > before
    for _ in range(99):
        state.tokens += [1]
        draft(drafter, state)
    assert share() > 0.75


def test_lookups_are_calibrated_by_match_length():
    drafter, state = CombinedDrafter([LookupDrafter(3, draft_length=2)]), state_of([4, 5, 6, 4])
    draft(drafter, state)
    state.tokens += [5]
    draft(drafter, state)  # 4 5 matches two tokens
    assert drafter.rate(0, 1) == (1 + 1) / (1 + 2)
    state.tokens += [1]
    draft(drafter, state)
    assert drafter.rate(0, 2) == (0 + 1) / (1 + 2)


def parts(kind, lm):
    heads = TreeDrafter(lm, top_k=4, max_nodes=16)
    return [
        ContinuationDrafter(heads, lm, max_nodes=16),
        LookupDrafter(),
        DraftModelDrafter(random_model("gpt2"), draft_length=3),
        ArgmaxDrafter(),
    ]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral", "gemma2", "trained"])
def test_combinations_are_lossless_alone_and_in_a_batch(kind, lm):
    wanted = [plain_greedy(model_of(kind), prompt, 16) for prompt in PROMPTS]
    together = decode(
        model_of(kind), PROMPTS, CombinedDrafter(parts(kind, lm), max_nodes=12), max_new_tokens=16
    )
    assert [result.token_ids for result in together] == wanted
    for prompt, tokens in zip(PROMPTS, wanted, strict=True):
        drafter = CombinedDrafter(parts(kind, lm), max_nodes=12)
        result = decode(model_of(kind), prompt, drafter, max_new_tokens=16)
        assert result.token_ids == tokens
        assert result.stats.verified_tokens <= 12 * (result.stats.target_calls - 1)


def test_a_continuation_is_accepted_beyond_the_last_head(lm):
    model, prompt = model_of("trained"), PROMPTS[0]
    heads = TreeDrafter(lm, top_k=4, max_nodes=12)
    result = decode(model, prompt, ContinuationDrafter(heads, lm, max_nodes=12), max_new_tokens=30)
    alone = decode(model, prompt, heads, max_new_tokens=30)
    assert max(result.stats.accept_lengths) > model.num_slots >= max(alone.stats.accept_lengths)
    assert result.stats.target_calls < alone.stats.target_calls


def test_a_failing_part_leaves_the_others_and_is_counted():
    class Failing:
        def propose(self, _states):
            raise DraftError("tired", "not today")

    prompt = [index * 5 % VOCAB for index in range(VOCAB + 2)]
    drafter = CombinedDrafter([Failing(), LookupDrafter()])
    with pytest.warns(DraftWarning, match="Failing drafted nothing"):
        result = decode(model_of("trained"), prompt, drafter, max_new_tokens=12)
    assert result.token_ids == plain_greedy(model_of("trained"), prompt, 12)
    assert result.stats.draft_failures["tired"] > 0
    assert max(result.stats.accept_lengths) > 4


def test_the_controller_cuts_combined_trees(lm):
    drafter = Controller(CombinedDrafter(parts("trained", lm), max_nodes=16))
    results = decode(model_of("trained"), PROMPTS, drafter, max_new_tokens=16)
    wanted = [plain_greedy(model_of("trained"), prompt, 16) for prompt in PROMPTS]
    assert [result.token_ids for result in results] == wanted


def test_bad_parts_are_refused(lm):
    with pytest.raises(ValueError, match="0 drafters and max_nodes 36"):
        CombinedDrafter([])
    with pytest.raises(ValueError, match="max_nodes 0"):
        CombinedDrafter([LookupDrafter()], max_nodes=0)
    drawing = DraftModelDrafter(random_model("gpt2"), shape="sampled")
    with pytest.raises(
        TypeError, match=r"proposed a sampled tree; expected drafts that are not sampled"
    ):
        draft(CombinedDrafter([drawing]), state_of([9]))
    with pytest.raises(TypeError, match="Fixed proposed a tree without probabilities"):
        draft(ContinuationDrafter(Fixed(as_drafts([1])), lm), state_of([9]))
    for options, message in (
        ({"num_slots": 0}, "num_slots is 0"),
        ({"top_k": VOCAB + 1}, f"expected 1..{VOCAB}"),
        ({"max_nodes": 0}, "max_nodes is 0"),
    ):
        with pytest.raises(ValueError, match=message):
            ContinuationDrafter(None, lm, **options)
    other = NGramLM.train([[1, 2, 1, 2]], 2, vocab_size=9, smoothing="witten_bell")
    with pytest.raises(ValueError, match="the LM has a vocabulary of 9"):
        draft(ContinuationDrafter(None, other), state_of([9]))
