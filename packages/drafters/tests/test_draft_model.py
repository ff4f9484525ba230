"""Draft models: every shape against fresh reads and enumeration, greedy's output, and failures."""

import copy
import itertools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from blockwise_models import (
    ARCHITECTURES,
    VOCAB,
    looping_text,
    model_of,
    plain_greedy,
    random_model,
    trained_model,
)
from lattice_bpd.decode import DecodeStats, DraftWarning, decode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify import PrefixTree
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd_drafters.draft_model import DraftModelDrafter
from lattice_bpd_drafters.draft_model_samples import DraftSampler
from lattice_bpd_drafters.draft_model_trees import DraftReader

PROMPTS = [looping_text(40)[3:15].tolist(), [5, 6, 5], [7]]
SHAPES = {
    "chain": {},
    "beam": {"max_nodes": 9, "top_k": 4},
    "sampled": {"draws": [3, 2, 1]},
    "sampled chain": {"shape": "sampled", "draft_length": 4},
    "sampled_tree": {"max_nodes": 9},
    "default": {"shape": None},
    "default tree": {"shape": None, "max_nodes": 9, "top_k": 4},
}


def drafter_of(model, shape, **options):
    return DraftModelDrafter(
        model, **{"shape": shape, "draft_length": 4, **SHAPES[shape], **options}
    )


def state_of(tokens, limit=50):
    model = DraftingModel(model_of("llama").base)
    state = DecodeState(model, list(tokens), len(tokens), torch.zeros(32), limit, DecodeStats())
    state.update_limits()
    return state


def tree_of(drafter, tokens) -> PrefixTree:
    """What a drafter proposes for one text, below its exact token."""
    (tree,) = drafter.propose([state_of(tokens)])
    assert tree.exact_token == tokens[-1]
    return tree


def prefixes_of(tree) -> list[tuple[int, ...]]:
    """The draft tokens down to each node, none for the exact token."""
    prefixes = [()]
    for token, parent in zip(tree.token_ids[1:], tree.parents[1:], strict=True):
        prefixes.append((*prefixes[parent], token))
    return prefixes


@torch.inference_mode()
def logits_behind(model, tokens):
    return model(input_ids=torch.tensor([tokens])).logits[0, -1]


@pytest.mark.parametrize("shape", ["chain", "beam"])
def test_the_target_as_its_own_draft_model_is_always_right(shape):
    model = trained_model()
    drafter = drafter_of(model.base, shape)
    found = decode(model.base, PROMPTS[0], drafter, max_new_tokens=26)
    assert found.stats.accept_lengths == [0, *[4] * 5][1:]
    assert found.stats.target_calls == 6


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_behind_a_rolled_back_cache_are_those_of_a_fresh_read(kind):
    rng, model = np.random.default_rng(3), random_model(kind).base
    reader, kept = DraftReader(model, "test"), None
    texts = [rng.integers(0, VOCAB, size).tolist() for size in (14, 1, 6)]
    for step in range(6):
        kept, logits = reader.go_on(kept, texts)
        for _ in range(2):
            new = [int(token) for token in rng.integers(0, VOCAB, len(texts))]
            if step % 2:
                new[1] = None
            logits = reader.extend(kept, new)
            for row, text in enumerate(kept.tokens):
                torch.testing.assert_close(
                    logits[row], logits_behind(model, text), atol=2e-4, rtol=0.0
                )
        cuts = rng.integers(0, 3, 3)
        texts = [text[: len(text) - int(cut)] for text, cut in zip(kept.tokens, cuts, strict=True)]
        texts = [[*text, *rng.integers(0, VOCAB, 2).tolist()] for text in texts]
        if step == 3:
            texts = texts[1:] + texts[:1]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logits_ahead_are_those_of_a_fresh_read(kind):
    #  behind the text: 4 - 5 - 6   and   7 - 8
    #                    `-- 9
    model = random_model(kind).base
    forest = PrefixTree([4, 7, 5, 9, 8, 6], [-1, -1, 0, 0, 1, 2])
    ways = [[4], [7], [4, 5], [4, 9], [7, 8], [4, 5, 6]]
    reader, kept = DraftReader(model, "test"), None
    for texts in (PROMPTS, [[*PROMPTS[0], 1, 2], [5, 6, 5, 9], [7, 8]]):
        kept, _ = reader.go_on(kept, texts)
        for _ in range(2):
            found = reader.look_ahead(kept, [forest, PrefixTree([3], [-1]), forest])
            for row in (0, 2):
                for node, way in enumerate(ways):
                    fresh = logits_behind(model, texts[row] + way)
                    torch.testing.assert_close(found[row, node], fresh, atol=2e-4, rtol=0.0)


def fresh_path(model, tokens, depth, top_k):
    """(depth, k) candidates and logits along the greedy path, the whole text read each time."""
    tokens, ids, scores = list(tokens), [], []
    for _ in range(depth):
        found = logits_behind(model, tokens).numpy()
        order = np.argsort(-found, kind="stable")[:top_k]
        ids.append(order.astype(np.int32))
        scores.append(found[order])
        tokens.append(int(order[0]))
    return np.array(ids)[None], np.array(scores)[None]


@pytest.mark.parametrize("max_nodes", ["auto", 9])
def test_a_number_of_nodes_makes_a_tree(max_nodes):
    small, wanted = random_model("gpt2").base, "chain" if max_nodes == "auto" else "beam"
    config = DraftConfig("draft_model", top_k=4, draft_length=4, max_nodes=max_nodes)
    drafter = make_drafter(config, DraftSources(small))
    tree, expected = (tree_of(one, PROMPTS[0]) for one in (drafter, drafter_of(small, wanted)))
    assert (tree.token_ids, tree.parents) == (expected.token_ids, expected.parents)
    assert drafter.max_nodes == (4 if wanted == "chain" else 9)


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, VOCAB), (2.5, VOCAB), (1.5, 5)])
def test_a_beam_holds_the_most_probable_prefixes(temperature, top_k):
    small, prompt = random_model("llama", 1).base, PROMPTS[1]

    def children(tokens):
        scaled = logits_behind(small, tokens).double() / temperature
        found = dict(enumerate(scaled.log_softmax(-1).tolist()))
        return {token: found[token] for token in sorted(found, key=lambda t: -found[t])[:top_k]}

    prefixes = {(token,): lp for token, lp in children(prompt).items()}
    for path in sorted(prefixes, key=lambda path: -prefixes[path])[:12]:
        for token, lp in children([*prompt, *path]).items():
            prefixes[(*path, token)] = prefixes[path] + lp
    wanted = sorted(prefixes.values(), reverse=True)[:12]
    drafter = drafter_of(
        small, "beam", draft_length=2, top_k=top_k, max_nodes=12, temperature=temperature
    )
    tree = tree_of(drafter, prompt)
    np.testing.assert_allclose(tree.log_probs, wanted, atol=1e-4)
    for path, lp in zip(prefixes_of(tree)[1:], tree.log_probs, strict=True):
        assert prefixes[path] == pytest.approx(lp, abs=1e-4)


@pytest.mark.parametrize("top_k", [None, 3])
def test_samples_without_replacement_have_their_exact_probabilities(top_k):
    logits = torch.tensor([0.5, 0.3, 0.0, 0.2]).log()
    shares, total = np.array([0.5, 0.3, 0.0, 0.2]), 20_000
    counts = dict.fromkeys(itertools.permutations([0, 1, 3], 2), 0)
    for node in range(total):
        children = DraftSampler(Warp(), 7, None).sample(logits, 2, top_k, node, 0)
        counts[tuple(children.token_ids)] += 1
        assert np.exp(children.log_probs) == pytest.approx(shares[children.token_ids])
    chi2 = 0.0
    for (first, second), count in counts.items():
        expected = total * shares[first] * shares[second] / (1.0 - shares[first])
        chi2 += (count - expected) ** 2 / expected
    assert chi2 < 25.7  # 5 degrees of freedom, significance 1e-4
    all_of_them = DraftSampler(Warp(), 7, None).sample(logits, 9, top_k, 0, 0)
    assert sorted(all_of_them.token_ids) == [0, 1, 3]


@pytest.mark.parametrize("draws", [[1, 1, 1], [3, 2]])
def test_sampled_trees_keep_what_they_were_sampled_from(draws):
    """Chains sample from all tokens, trees from the k most likely."""
    small, prompt = random_model("gpt2").base, PROMPTS[0]
    top_k = VOCAB if max(draws) == 1 else 6
    options = {"shape": "sampled", "draws": draws, "top_k": 6, "temperature": 0.8}
    tree = tree_of(DraftModelDrafter(small, **options), prompt)
    assert tree.token_ids == tree_of(DraftModelDrafter(small, **options), prompt).token_ids
    paths = prefixes_of(tree)
    assert len(paths) == 1 + sum(np.cumprod(draws))
    for node, path in enumerate(paths):
        distribution = tree.sampled_from(node)
        if len(path) == len(draws):
            assert distribution is None
            continue
        ids, scores = fresh_path(small, [*prompt, *path], 1, top_k)
        wanted = dict(zip(ids[0, 0].tolist(), np.exp(scores[0, 0] / 0.8), strict=True))
        total = sum(wanted.values())
        assert set(distribution[0].tolist()) == set(wanted)
        for token, probability in zip(*distribution, strict=True):
            assert probability == pytest.approx(wanted[token] / total, abs=1e-4)
        children = [p[-1] for p in paths if p[:-1] == path and len(p) == len(path) + 1]
        assert len(set(children)) == draws[len(path)]
        assert set(children) <= set(distribution[0].tolist())


def small_gpt2(positions=64, vocab=VOCAB):
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=positions, n_embd=16, n_layer=1, n_head=2,
            bos_token_id=None, eos_token_id=None,
        )
    ).eval()  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_where_its_positions_end_it_drafts_nothing(shape):
    target = model_of("llama")
    drafter = drafter_of(small_gpt2(positions=20), shape)
    found = decode(target.base, [PROMPTS[0], [5, 6]], drafter, max_new_tokens=24)
    for prompt, result in zip([PROMPTS[0], [5, 6]], found, strict=True):
        assert result.token_ids == plain_greedy(target, prompt, 24)
        assert result.stats.draft_failures == {}
    lengths = [drafter._depth(state_of([1] * size)) for size in (16, 17, 18, 19, 20, 21, 22)]
    deepest = drafter.num_slots
    assert lengths == [min(deepest, size) for size in (5, 4, 3, 2, 1, 0, -1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_that_are_no_numbers_cost_only_drafts(shape):
    broken = copy.deepcopy(random_model("gpt2")).base
    with torch.no_grad():
        broken.transformer.wpe.weight[17] = float("nan")  # what reads position 17 or later
    target = model_of("llama")
    with pytest.warns(DraftWarning, match=r"nan: GPT2LMHeadModel gives logits that are no numbers"):
        found = decode(target.base, [PROMPTS[0], [5]], drafter_of(broken, shape), max_new_tokens=10)
    for prompt, result in zip([PROMPTS[0], [5]], found, strict=True):
        assert result.token_ids == plain_greedy(target, prompt, 10)
    failures = found[0].stats.draft_failures["nan"]
    assert 0 < failures <= found[0].stats.target_calls - 1
    assert found[1].stats.draft_failures == {}  # its text is too short


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "star"}, "shape is 'star'; expected one of chain, beam"),
        ({"shape": "beam", "top_k": VOCAB + 1}, rf"top_k is {VOCAB + 1}; expected 1..{VOCAB}"),
        ({"draws": [2, 1]}, "draws is .2, 1. with shape None"),
        (
            {"shape": "sampled", "draws": [16] * 4},
            "draws .16, 16, 16, 16. make 65536 paths; expected 4096 at most",
        ),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"DraftModelDrafter: {message}"):
        DraftModelDrafter(random_model("gpt2").base, **options)


def test_unsuitable_models_are_refused():
    wrong = DraftModelDrafter(small_gpt2(vocab=3 * VOCAB))
    with pytest.raises(ValueError, match=f"draft model has a vocabulary of {3 * VOCAB}, "):
        decode(model_of("llama").base, [1], wrong)
    config = T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    with pytest.raises(TypeError, match="is an encoder-decoder"):
        DraftModelDrafter(T5ForConditionalGeneration(config))
    config = MambaConfig(vocab_size=VOCAB, hidden_size=16, state_size=4, num_hidden_layers=1)
    with pytest.raises(ValueError, match="recurrent state"):
        DraftModelDrafter(MambaForCausalLM(config))
    with pytest.raises(TypeError, match="is a str"):
        DraftModelDrafter("gpt2")
