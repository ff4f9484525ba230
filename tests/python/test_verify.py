"""Verification: worked examples with a fake target, then trees and rows on real architectures."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import DynamicCache

from blockwise_models import ARCHITECTURES, CACHE_NAME, VOCAB, model_of, plain_greedy
from lattice_bpd import _core
from lattice_bpd.verify import (
    CausalLMTarget,
    PrefixTree,
    greedy_tokens,
    verify_drafts,
    verify_trees,
)
from lattice_bpd.verify.batch_cache import BatchCache, StackedCache
from lattice_bpd.verify.cache import check_cache
from lattice_bpd.verify.greedy import DraftCandidates
from lattice_bpd.verify.target import TargetOutput
from lattice_bpd.verify.verification import choose_layout, follow_greedy


class CountingCache:
    """Records the calls of a cache's methods."""

    is_croppable = True
    layers = ()

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.length = 7

    def get_seq_length(self) -> int:
        return self.length

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self.calls.append(("select", indices.tolist()))

    def crop(self, length: int) -> None:
        self.calls.append(("crop", length))


class PlusOneTarget:
    """A target that always continues token t with t+1; its hidden state is the token itself."""

    device, dtype, sliding_window = torch.device("cpu"), torch.float32, None

    def __init__(self, refusal: str | None = None) -> None:
        self.refusal = refusal
        self.seen: list[list[list[int]]] = []
        self.options: list[dict] = []

    def __call__(self, input_ids, cache, **options):  # noqa: ARG002
        self.seen.append(input_ids.tolist())
        self.options.append(options)
        logits = torch.nn.functional.one_hot((input_ids + 1) % 10, 10).float()
        return TargetOutput(logits, input_ids.unsqueeze(-1).float())

    def refuses_tree(self):
        return self.refusal


DRAFTS = torch.tensor([[4, 9, 6], [4, 5, 0], [9, 5, 6]])


def test_rows_keep_the_longest_accepted_prefix():
    # exact token 3; the target would write 4 5 6 7
    target, cache = PlusOneTarget(), CountingCache()
    verified = verify_drafts(target, cache, 3, DRAFTS, layout="rows")
    assert (verified.accept_length, verified.token_ids) == (2, [4, 5, 6])
    assert verified.hidden.tolist() == [5.0]  # the state that predicted the bonus token 6
    assert target.seen == [[[3, 4, 9, 6], [3, 4, 5, 0], [3, 9, 5, 6]]]  # one call
    assert cache.calls == [("select", [0, 0, 0]), ("select", [1]), ("crop", -1)]
    assert target.options[0]["attention_mask"] is None


class SlotCache(CountingCache):
    """A cache whose keys are the numbers of their slots."""

    def __init__(self, size: int) -> None:
        super().__init__()
        keys = torch.arange(self.length + size, dtype=torch.float32).view(1, 1, -1, 1)
        self.layers = [type("Layer", (), {"keys": keys, "values": keys.clone()})()]


def test_a_tree_reads_shared_prefixes_once():
    #  3 - 4 - 9 - 6
    #  |   `-- 5 - 0         nodes 0..8 in the order 3, 4 9 6, 5 0, 9 5 6
    #  `-- 9 - 5 - 6
    target, cache = PlusOneTarget(), SlotCache(9)
    verified = verify_drafts(target, cache, 3, DRAFTS)
    assert (verified.accept_length, verified.token_ids, verified.hidden.tolist()) == (
        2,
        [4, 5, 6],
        [5.0],
    )
    assert target.seen == [[[3, 4, 9, 6, 5, 0, 9, 5, 6]]]
    options = target.options[0]
    assert options["position_ids"].tolist() == [[7, 8, 9, 10, 9, 10, 8, 9, 10]]
    mask = options["attention_mask"]
    assert mask.shape == (1, 1, 9, 7 + 9)
    assert (mask[..., :7] == 0).all()
    sees = [np.flatnonzero(row == 0).tolist() for row in mask[0, 0, :, 7:]]
    assert sees == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5],
                    [0, 6], [0, 6, 7], [0, 6, 7, 8]]  # fmt: skip
    # positions 7 (exact token) and 8 (token 4) stay, 11 (token 5) moves to 9, others are dropped
    assert cache.calls == [("crop", -6)]
    assert cache.layers[0].keys[0, 0, 7:10, 0].tolist() == [7.0, 8.0, 11.0]


def test_the_best_draft_is_kept_without_a_copy():
    target, cache = PlusOneTarget(), SlotCache(5)
    verified = verify_drafts(target, cache, 3, torch.tensor([[4, 5], [4, 1], [2, 3]]))
    assert verified.token_ids == [4, 5, 6]
    assert cache.layers[0].keys.flatten().tolist() == list(range(12))  # as it was
    assert cache.calls == [("crop", -3)]


def test_equal_rows_are_read_once():
    target, cache = PlusOneTarget(), CountingCache()
    drafts = torch.tensor([[9, 9], [9, 9], [4, 9], [4, 8], [4, 9]])
    assert verify_drafts(target, cache, 3, drafts, layout="rows").accept_length == 1
    assert target.seen == [[[3, 9, 9], [3, 4, 9], [3, 4, 8]]]


def test_whole_draft_and_empty_draft_need_no_mask():
    target, cache = PlusOneTarget(), CountingCache()
    assert verify_drafts(target, cache, 3, torch.tensor([[4, 5]])).token_ids == [4, 5, 6]
    assert verify_drafts(target, cache, 3, torch.empty((1, 0), dtype=torch.int64)).token_ids == [4]
    assert verify_drafts(target, cache, 3, torch.tensor([[4, 5, -1]])).token_ids == [4, 5, 6]
    assert cache.calls == []  # one row: nothing to copy; all accepted: nothing to forget
    assert all(option["attention_mask"] is None for option in target.options)


def test_drafts_become_a_prefix_tree():
    tree = PrefixTree.from_drafts(3, [[5, 7, 9], [5, 7, 2], [1, 7, -1], [5]])
    assert tree.token_ids == [3, 5, 7, 9, 2, 1, 7]
    assert tree.parents == [-1, 0, 1, 2, 2, 0, 5]
    assert tree.depths == [0, 1, 2, 3, 3, 1, 2]
    assert tree.list_paths() == [[0, 1, 2, 3], [0, 1, 2, 4], [0, 5, 6]]
    assert (len(tree), tree.count_leaves(), tree.max_depth) == (7, 3, 3)


def test_nodes_are_cut_by_depth_and_checked():
    # 8 below the root, 6 below 8, 5 below 6, 4 below 8
    tree = PrefixTree.from_nodes(3, [8, 6, 5, 4], [-1, 0, 1, 0], max_depth=2)
    assert (tree.token_ids, tree.parents) == ([3, 8, 6, 4], [-1, 0, 1, 1])
    whole = PrefixTree.from_nodes(3, [8, 6, 5, 4], [-1, 0, 1, 0], max_depth=3)
    mask = _core.node_masks([whole], 6)[0]
    assert mask[4].tolist() == [1, 1, 0, 0, 1, 0]
    assert mask[5].tolist() == [0] * 5 + [1]
    with pytest.raises(ValueError, match=r"node 1 has parent 1; expected -1\.\.0"):
        PrefixTree.from_nodes(3, [8, 6], [-1, 1], max_depth=3)
    with pytest.raises(ValueError, match="2 token ids and 1 parents"):
        PrefixTree.from_nodes(3, [8, 6], [-1], max_depth=3)


@pytest.mark.parametrize("seed", range(5))
def test_masks_are_those_of_ancestors(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.choice([1, 7, 8, 9, 64, 65, 200]))
    parents = [int(rng.integers(-1, node)) for node in range(size)]
    tree = PrefixTree.from_nodes(0, list(range(1, size + 1)), parents, max_depth=size)
    expected = np.eye(size + 3, dtype=bool)
    for node in range(1, size + 1):
        expected[node] |= expected[tree.parents[node]]
    np.testing.assert_array_equal(_core.node_masks([tree], size + 3)[0].view(bool), expected)


@pytest.mark.parametrize(
    ("drafts", "layout"),
    [
        ([[[4, 5, 6]]], "rows"),  # one path: as many tokens either way, and rows need no mask
        ([[[4, 5, 6], [4, 5, 7]]], "tree"),  # 5 tokens against 8
        ([[]], "rows"),
        ([[[4, 5, 6]], [[1, 2, 3]]], "rows"),
        ([[[4, 5, 6], [1, 2, 3]], [[1]]], "rows"),  # 3 rows of 4 against 2 of 7
        ([[[4, 5, 6], [4, 2, 3]], [[1], [2], [3]]], "tree"),  # 2 of 6 against 5 of 4
    ],
)
def test_auto_uses_the_layout_with_fewer_tokens(drafts, layout):
    trees = [PrefixTree.from_drafts(3, rows) for rows in drafts]
    state = BatchCache(CountingCache(), [7] * len(trees))
    assert choose_layout(PlusOneTarget(), state, trees) == layout
    assert choose_layout(PlusOneTarget("no masks here"), state, trees) == "rows"


def test_a_tree_is_refused_by_name():
    with pytest.raises(ValueError, match=r"not possible: no masks here; or use layout='rows'"):
        verify_drafts(PlusOneTarget("no masks here"), CountingCache(), 3, DRAFTS, layout="tree")
    with pytest.raises(ValueError, match="layout is 'bush'; expected one of auto, tree, rows"):
        verify_drafts(PlusOneTarget(), CountingCache(), 3, DRAFTS, layout="bush")


def test_greedy_takes_the_smallest_id_of_a_tie():
    assert greedy_tokens(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab_size", [3, 16, 40])
def test_trees_are_followed_by_the_choice_at_each_node(dtype, vocab_size):
    rng, generator = np.random.default_rng(vocab_size), torch.Generator().manual_seed(vocab_size)
    for _ in range(20):
        logits = torch.randint(0, 3, (2, 30, vocab_size), generator=generator).to(dtype)  # ties
        logits[0, :, -1] = -torch.inf
        drafts = [rng.integers(0, vocab_size, (6, 4)) for _ in range(3)]
        drafts[0][0] = greedy_tokens(logits)[0, :4].numpy()
        trees = [PrefixTree.from_drafts(3, rows) for rows in drafts]
        indices = [rng.permutation(60)[: len(tree)].astype(np.int64) for tree in trees]
        indices[0][:5] = range(5)  # so that the first draft is right
        wanted = greedy_tokens(logits).flatten().tolist()
        followed = follow_greedy(trees, logits, indices)
        assert len(followed[0][0]) == 5
        for tree, at, (nodes, tokens, end) in zip(trees, indices, followed, strict=True):
            assert end == at[nodes[-1]]
            assert tokens == [wanted[at[node]] for node in nodes]
            paths = {tuple(path[: len(nodes)]) for path in tree.list_paths()}
            assert tuple(nodes) in paths
            assert [tree.token_ids[node] for node in nodes[1:]] == tokens[:-1]
            assert tokens[-1] not in tree.children(nodes[-1])


def test_nan_counts_where_it_is_looked_at():
    tree = PrefixTree.from_drafts(3, [[1, 2]])
    logits = torch.zeros(1, 3, 40)
    logits[0, 0, 1] = 1.0
    logits[0, 1, 39] = torch.nan
    with pytest.raises(ValueError, match="logits hold NaN"):
        follow_greedy([tree], logits, [np.arange(3)])
    logits[0, 0, 1] = -1.0  # now the draft ends before
    assert follow_greedy([tree], logits, [np.arange(3)]) == [([0], [0], 0)]
    assert follow_greedy([tree], logits, None) == [([0], [0], 0)]


@pytest.mark.parametrize("shape", [(0, 3), (3,), (1, 2, 3)])
def test_wrong_draft_shapes_are_refused(shape):
    drafts = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"drafts has shape .*expected \(drafts, slots\)"):
        verify_drafts(PlusOneTarget(), CountingCache(), 3, drafts)


def test_a_cache_that_forgets_is_refused():
    cache = CountingCache()
    check_cache(cache)
    cache.is_croppable = False
    with pytest.raises(ValueError, match="cannot be rolled back"):
        check_cache(cache)


class FullMachine(PlusOneTarget):
    def __call__(self, *_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 1 EiB")


@pytest.mark.parametrize(("layout", "cure"), [("rows", "num_drafts"), ("tree", "max_nodes")])
def test_lack_of_memory_says_what_to_lower(layout, cure):
    with pytest.raises(MemoryError, match=rf"call of \d rows x \d tokens.*1 EiB.*lower {cure}"):
        verify_drafts(FullMachine(), CountingCache(), 3, DRAFTS, layout=layout)


class BrokenTarget(PlusOneTarget):
    def __call__(self, *_, **__):
        raise RuntimeError("something else")


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match=r"^something else$"):
        verify_drafts(BrokenTarget(), CountingCache(), 3, DRAFTS)


class SmallestToken:
    """Chooses argmax, and ends the text at a token."""

    def __init__(self, last: int) -> None:
        self.last, self.ended, self.asked = last, False, 0
        self.offers: list[DraftCandidates] = []

    def choose(self, logits, candidates):
        if self.ended:
            return None
        self.offers.append(candidates)
        self.asked += 1
        token = int(logits.argmax())
        self.ended = token == self.last
        return token


def test_selectors_are_called_along_the_accepted_path_only():
    for last, tokens in ((99, [4, 5, 6]), (5, [4, 5]), (4, [4])):
        selector = SmallestToken(last)
        tree = PrefixTree.from_drafts(3, DRAFTS.tolist())
        state = BatchCache(SlotCache(9))
        verified = verify_trees(PlusOneTarget(), state, [tree], selectors=[selector])
        assert verified.sequences[0].token_ids == tokens
        assert selector.asked == len(tokens)
        wanted = [DraftCandidates([4, 9], 0), DraftCandidates([9, 5], 1), DraftCandidates([0], 2)]
        assert selector.offers == wanted[: len(tokens)]


def read(target: CausalLMTarget, tokens: list[int]):
    return target.read_prompts(torch.tensor([tokens]))


def draft_around(rng: np.random.Generator, wanted: list[int]) -> list[list[int]]:
    """Drafts that agree with the target for a while, and drafts that don't, in any order."""
    drafts = []
    for _ in range(int(rng.integers(1, 7))):
        draft = rng.integers(0, VOCAB, 4)
        agree = int(rng.integers(0, 5))
        draft[:agree] = wanted[:agree]
        drafts.append(draft.tolist())
    return drafts


def assert_cache_is_that_of(model, cache, tokens: list[int], slots: list[int]):
    """Slots of one sequence hold the keys and values of reading its tokens at once."""
    with torch.inference_mode():
        fresh = DynamicCache()
        model.base(input_ids=torch.tensor([tokens]), **{CACHE_NAME: fresh})
    for number, expected in enumerate(fresh.layers):
        if isinstance(cache, StackedCache):
            keys, values = cache.keys[number], cache.values[number]
        else:
            keys, values = cache.layers[number].keys, cache.layers[number].values
        for kept, wanted in ((keys, expected.keys), (values, expected.values)):
            torch.testing.assert_close(kept[:1, :, slots], wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize("stacked", [True, False], ids=["stacked", "dynamic"])
def test_both_layouts_accept_the_same_and_leave_the_same_cache(kind, layout, stacked):
    model = model_of(kind)
    target = CausalLMTarget(model)
    rng = np.random.default_rng(5)
    for length in (1, 5, 14):  # the last is beyond the sliding windows
        prompt = rng.integers(0, VOCAB, length).tolist()
        wanted = plain_greedy(model, prompt, 13)
        first, cache = read(target, prompt)
        tokens = [*prompt, int(first.logits[0, -1].argmax())]
        state = BatchCache(StackedCache.from_cache(cache, 3) if stacked else cache)
        for _ in range(2):
            rest = wanted[len(tokens) - length :]
            drafts = draft_around(rng, rest)
            tree = PrefixTree.from_drafts(tokens[-1], drafts)
            verified = verify_trees(target, state, [tree], layout=layout).sequences[0]
            agree = max(sum(np.cumprod(np.equal(d, rest[:4]))) for d in drafts)
            assert verified.accept_length == agree
            assert verified.token_ids == rest[: agree + 1]
            tokens += verified.token_ids
            assert state.lengths == [len(tokens) - 1]
            assert int(state.cache.get_seq_length()) == len(tokens) - 1 == state.width
            assert_cache_is_that_of(model, state.cache, tokens[:-1], list(range(len(tokens) - 1)))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_ragged_batches_are_each_what_they_are_alone(kind, layout):
    model = model_of(kind)
    target = CausalLMTarget(model)
    rng = np.random.default_rng(6)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (3, 11, 1, 7)]
    wanted = [plain_greedy(model, prompt, 22) for prompt in prompts]
    longest = max(map(len, prompts))
    rows = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    padding = torch.tensor([longest - len(p) for p in prompts])[:, None]
    steps = torch.arange(longest).expand(len(prompts), -1)
    first, cache = target.read_prompts(
        rows, (steps >= padding).long(), (steps - padding).clamp(min=0)
    )
    state = BatchCache(StackedCache.from_cache(cache, 40), [len(p) for p in prompts])
    tokens = [[*p, int(t)] for p, t in zip(prompts, first.logits[:, -1].argmax(-1), strict=True)]
    going = list(range(len(prompts)))
    for step in range(4):
        if step == 2:  # one sequence leaves
            state.keep_sequences([0, 1, 3])
            going.remove(2)
        trees = []
        for number in going:
            rest = wanted[number][len(tokens[number]) - len(prompts[number]) :]
            trees.append(PrefixTree.from_drafts(tokens[number][-1], draft_around(rng, rest)))
        results = verify_trees(target, state, trees, layout=layout).sequences
        for number, verified in zip(going, results, strict=True):
            tokens[number] += verified.token_ids
            decoded = tokens[number][len(prompts[number]) :]
            assert decoded == wanted[number][: len(decoded)]
    assert state.lengths == [len(tokens[number]) - 1 for number in going]
    assert state.positions is not None
    one = type(state.cache)(state.cache.keys[:, :1], state.cache.values[:, :1], state.width)
    slots = np.flatnonzero(state.positions[0] >= 0).tolist()
    assert state.positions[0][slots].tolist() == list(range(state.lengths[0]))
    assert_cache_is_that_of(model, one, tokens[0][:-1], slots)


def test_layers_of_different_shapes_stay_in_their_cache():
    cache = DynamicCache()
    for number, heads in enumerate((2, 4)):
        states = torch.zeros(1, heads, 3, 8)
        cache.update(states, states, number)
    assert StackedCache.from_cache(cache, 8) is None


def test_a_target_without_masks_of_its_callers_falls_back_to_rows():
    import copy

    model = copy.deepcopy(model_of("llama"))
    model.base.config._attn_implementation = "flash_attention_2"
    target = CausalLMTarget(model)
    assert "takes no custom mask" in target.refuses_tree()
    model.base.config._attn_implementation = "eager"
    inner = model.base.base_model.forward

    def forget_mask(*args, attention_mask=None, **options):
        return inner(*args, **options)

    target = CausalLMTarget(model)
    model.base.base_model.forward = forget_mask
    assert "does not keep to a four-dimensional mask" in target.refuses_tree()


def test_a_tree_probe_without_memory_is_tried_again(monkeypatch):
    import copy

    model = copy.deepcopy(model_of("llama"))
    target, inner = CausalLMTarget(model), model.base.base_model
    read = inner.forward

    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    def forget_mask(*args, attention_mask=None, **options):
        return read(*args, **options)

    monkeypatch.setattr(inner, "forward", full)
    assert target.refuses_tree() is None
    monkeypatch.setattr(inner, "forward", forget_mask)
    assert "does not keep to a four-dimensional mask" in target.refuses_tree()
    monkeypatch.setattr(inner, "forward", read)
    assert "does not keep" in target.refuses_tree()  # an answer is remembered


def test_a_sliding_cache_is_refused():
    model = model_of("mistral")
    cache = DynamicCache(config=model.base.config)
    with torch.inference_mode():
        model.base(input_ids=torch.tensor([[1, 2, 3]]), **{CACHE_NAME: cache})
    with pytest.raises(ValueError, match="keeps all tokens of a sliding window"):
        check_cache(cache)
    with pytest.raises(ValueError, match="cannot be rolled back"):
        verify_drafts(CausalLMTarget(model), cache, 1, torch.tensor([[2]]))
