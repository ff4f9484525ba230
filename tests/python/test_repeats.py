"""Trees extended with earlier continuations: worked trees, brute force, laws of decoding."""

import gc
import math
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, model_of, plain_greedy
from lattice_bpd import NGramLM
from lattice_bpd.decode import DecodeStats, TreeDrafter, decode
from lattice_bpd.decode.drafters.growing_tree import GrowingTree
from lattice_bpd.decode.drafters.repeats import Repeats
from lattice_bpd.decode.drafters.suffix_index import LONGEST_MATCH, SuffixIndex
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify import PrefixTree, Sampled

CYCLE = [index * 5 % VOCAB for index in range(VOCAB + 2)]
PROMPTS = [CYCLE, [40, 2, 40, 2, 40, 2], [5]]


def state_of(tokens, num_slots=2, max_length=40):
    model = SimpleNamespace(vocab_size=VOCAB)
    state = DecodeState(model, list(tokens), len(tokens), torch.zeros(1), 99, DecodeStats())
    state.num_slots, state.max_draft_length = num_slots, max_length
    return state


def tree_of(prefixes, exact_token=0):
    """A tree of prefixes and their probabilities, parents first."""
    order = sorted(prefixes, key=lambda prefix: (-prefixes[prefix], len(prefix)))
    parents = [order.index(prefix[:-1]) if len(prefix) > 1 else -1 for prefix in order]
    log_probs = np.array([math.log(prefixes[prefix]) for prefix in order], np.float32)
    return PrefixTree.from_nodes(
        exact_token, [prefix[-1] for prefix in order], parents, 99, log_probs
    )


def prefixes_of(tree):
    paths = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        if node:
            paths[node] = (*paths[parent], token)
    prefixes = list(paths.values())[1:]
    assert len(set(prefixes)) == len(prefixes)
    return dict(zip(prefixes, np.exp(tree.log_probs.astype(float)).tolist(), strict=True))


def test_a_loop_is_followed_beyond_the_last_slot():
    # 1 2 3 1 2 3 1: the second 1 matched nothing, so 2 was predicted after a match of 1 and came,
    # 3 after 1 2, 1 after 1 2 3. Rates (1 + 1) / (1 + 2) = 2/3 for matches of 1, 2, 3 tokens,
    # 1/2 for longer ones. The match is now 1 2 3 1, of 4 tokens: 2 3 1 .. each with 1/2.
    tree = tree_of({(2,): 0.6, (7,): 0.2, (2, 9): 0.1})
    state = state_of([1, 2, 3, 1, 2, 3, 1])
    prefixes = prefixes_of(Repeats().extend(tree, state, 5))
    assert prefixes == pytest.approx(
        {(2,): 0.6, (2, 3): 0.3, (7,): 0.2, (2, 3, 1): 0.15, (2, 9): 0.1}, rel=1e-6
    )
    assert list(prefixes_of(Repeats().extend(tree, state, 3))) == [(2,), (2, 3), (7,)]


def test_nodes_of_the_last_slot_are_extended():
    # The text ends in 9, which is new; the tree continues with 1 2, which 3 4 followed earlier.
    # Nothing was foreseen yet, so each further token has half the probability of its parent.
    tree = tree_of({(1,): 0.8, (1, 2): 0.6, (5,): 0.1})
    state = state_of([1, 2, 3, 4, 9])
    prefixes = prefixes_of(Repeats().extend(tree, state, 5))
    assert prefixes == pytest.approx(
        {(1,): 0.8, (1, 2): 0.6, (1, 2, 3): 0.3, (1, 2, 3, 4): 0.15, (5,): 0.1}, rel=1e-6
    )
    three_slots = state_of([1, 2, 3, 4, 9], num_slots=3)
    assert Repeats().extend(tree, three_slots, 5) is tree  # the last slot is another


def test_what_says_nothing_leaves_the_tree_as_it_is():
    tree = tree_of({(1,): 0.8, (1, 2): 0.7})
    assert Repeats().extend(tree, state_of([3, 4, 5]), 2) is tree  # no match
    assert Repeats().extend(tree, state_of([3, 4, 3]), 2) is tree  # 4 has 1/2, less than 0.7
    late = tree_of({(1,): 0.9, (1, 2): 0.1})
    assert Repeats().extend(late, state_of([1, 2, 9, 0]), 9) is late  # 0.05 + 0.025
    assert Repeats().extend(tree, state_of([1, 2, 9, 1], max_length=2), 2) is tree  # known already


def test_nothing_is_drafted_past_the_max_draft_length():
    tree = tree_of({(2,): 0.6, (2, 3): 0.5})
    for max_length in (2, 3, 5):
        extended = Repeats().extend(tree, state_of([1, 2, 3] * 4 + [1], max_length=max_length), 30)
        assert max(map(len, prefixes_of(extended))) == max_length


def test_rates_fade_and_a_cut_text_is_read_anew():
    repeats, tree = Repeats(), tree_of({(8,): 0.001})
    state = state_of([4, 5, 4])
    repeats.extend(tree, state, 9)
    state.tokens += [5, 4, 6]  # after 4: 5 came, as predicted; after 4 5 4: 5 was predicted, not 6
    repeats.extend(tree, state, 9)
    rates = repeats._texts.of(state).rates
    assert rates[1:4] == [(1.0, 1.0), (1.0, 1.0), (0.0, 1.0)]
    del state.tokens[3:]
    repeats.extend(tree, state, 9)
    assert len(repeats._texts.of(state)) == 3
    assert len(repeats) == 1
    del state
    gc.collect()
    assert len(repeats) == 0


def find_by_hand(text, path):
    """The longest suffix of text and path in text[:-1], and where it ended last."""
    whole = [*text, *path]
    for size in range(min(LONGEST_MATCH, len(whole)), 0, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == whole[len(whole) - size :]:
                return end, size
    return 0, 0


def extend_by_hand(prefixes, text, num_slots, max_length, max_nodes):
    """The definition: every continuation to its end, then the best nodes."""
    seen, rates = [], np.tile([0.0, 0.0], (LONGEST_MATCH + 1, 1))
    for token in text:
        position, size = find_by_hand(seen, [])
        if size:
            rates[size] = 0.99 * rates[size] + [seen[position] == token, 1.0]
        seen.append(token)
    extended = dict(prefixes)
    last = [prefix for prefix in prefixes if len(prefix) == num_slots]
    for start in [(), *last]:
        whole, path = [*text, *start], start
        position, size = find_by_hand(text, start)
        while size and len(path) < min(max_length, max_nodes):
            right, tried = rates[min(size, LONGEST_MATCH)]
            above = extended[path] if path else 1.0
            path, size = (*path, whole[position]), size + 1
            whole.append(whole[position])
            position += 1
            extended[path] = max(extended.get(path, 0.0), above * (right + 1) / (tried + 2))
    floor = max(0.02, min(prefixes.values()) if len(prefixes) >= max_nodes else 0.0)
    best = {path: p for path, p in extended.items() if path in prefixes or p > floor}
    if sum(p for path, p in best.items() if path not in prefixes) < 0.1:
        return prefixes
    return dict(sorted(best.items(), key=lambda item: -item[1])[:max_nodes])


@pytest.mark.parametrize("seed", range(12))
def test_extended_trees_are_the_best_nodes_of_all_continuations(seed):
    rng = np.random.default_rng(seed)
    rows, states, wanted = [], [], []
    for _ in range(4):
        text = rng.integers(0, 3, 14).tolist() * 2
        text = text[: rng.integers(3, 28)]
        prefixes = {}
        for token in range(3):
            prefixes[token,] = rng.uniform(0.2, 0.9)
            for second in range(2):
                prefixes[token, second] = prefixes[token,] * rng.uniform(0.1, 0.9)
        num_slots, max_length = 2, int(rng.integers(2, 9))
        max_nodes = int(rng.integers(9, 20))
        wanted.append(extend_by_hand(prefixes, text, num_slots, max_length, max_nodes))
        states.append(state_of(text, num_slots, max_length))
        rows.append(tree_of(prefixes))
        extended = prefixes_of(Repeats().extend(rows[-1], states[-1], max_nodes))
        assert extended == pytest.approx(wanted[-1], rel=1e-5), seed
        assert list(extended.values()) == sorted(extended.values(), reverse=True)
    shared = Repeats()
    for tree, state in zip(rows, states, strict=True):
        alone = Repeats().extend(tree, state, 12)
        assert prefixes_of(shared.extend(tree, state, 12)) == prefixes_of(alone)


@pytest.mark.parametrize("seed", range(6))
def test_matches_after_texts_and_paths(seed):
    rng = np.random.default_rng(seed)
    index, text = SuffixIndex(), rng.integers(0, 3, 60).tolist()
    for end in range(60):
        path = rng.integers(0, 3, end % 4).tolist()
        assert index.find() == find_by_hand(text[:end], [])
        match = index.find(path)
        assert match == find_by_hand(text[:end], path)
        if match[1] > 0:
            whole = [*text[:end], *path]
            for token in index.follow(match[0], 9, path):
                assert token == whole[match[0] + len(whole) - end - len(path)]
                whole.append(token)
        assert index.append(text[end]) == find_by_hand(text[:end], [])


@pytest.fixture(scope="module")
def lm():
    return NGramLM.train([looping_text(2000, 1)], 3, vocab_size=VOCAB, smoothing="witten_bell")


@pytest.mark.parametrize("kind", ["llama", "mistral", "trained"])
def test_loops_take_fewer_calls_and_the_output_stays(kind, lm):
    def drafter(cache=True):
        return TreeDrafter(lm, top_k=4, max_nodes=36, ngram_cache=cache)

    model = model_of(kind)
    wanted = [plain_greedy(model, prompt, 14) for prompt in PROMPTS]
    together = decode(model, PROMPTS, drafter(), max_new_tokens=14)
    assert [result.token_ids for result in together] == wanted
    for prompt, result in zip(PROMPTS, together, strict=True):
        alone = decode(model, prompt, drafter(), max_new_tokens=14)
        assert alone.stats.accept_lengths == result.stats.accept_lengths
        assert alone.stats.verified_tokens <= 36 * (alone.stats.target_calls - 1)
        plain = decode(model, prompt, drafter(False), max_new_tokens=14)
        assert alone.stats.target_calls <= plain.stats.target_calls
    if kind == "trained":
        assert max(together[0].stats.accept_lengths) > model.num_slots


def test_sampling_by_seed_keeps_its_tokens(lm):
    model, rule = model_of("trained"), Sampled(temperature=0.1, seed=3)
    results = {}
    for cache in (False, True):
        drafter = TreeDrafter(lm, top_k=4, max_nodes=12, ngram_cache=cache)
        results[cache] = decode(model, CYCLE, drafter, max_new_tokens=14, acceptance=rule)
    assert results[True].token_ids == results[False].token_ids
    assert max(results[True].stats.accept_lengths) > model.num_slots


def test_a_growing_tree_merges_equal_prefixes():
    tree = GrowingTree()
    first = tree.merge(4, -1, -1.0)
    second = tree.merge(5, first, -2.0)
    assert tree.merge(4, -1, -1.5) == first
    assert tree.merge(5, first, -1.25) == second
    assert tree.log_probs == [-1.0, -1.25]
    assert tree.path(second) == [4, 5]
    assert tree.path(-1) == []
    tree.merge(6, -1, -1.1)
    tree.keep_best(2)
    assert tree.children == {(-1, 4): 0, (-1, 6): 1}
