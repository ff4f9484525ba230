"""The target's predictions after verified nodes, against its own forward, and drafts from them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import ARCHITECTURES, VOCAB, model_of, plain_greedy, random_prompts
from lattice_bpd.decode import decode, generate
from lattice_bpd.decode.drafters.mixture import MixtureDrafter
from lattice_bpd.lattice.logits import top_k_on_device
from lattice_bpd.verify import CausalLMTarget, PrefixTree, Sampled, verify_trees
from lattice_bpd.verify.greedy import select_predictions
from lattice_bpd.verify.reading import read_texts
from lattice_bpd.verify.rows import Rows
from target_models import PROMPTS, RECURRENT, build_target, generated

K = 5


def paths_of(tree: PrefixTree) -> list[list[int]]:
    """The tokens of each node's path, the exact token first."""
    paths: list[list[int]] = []
    for token, parent in zip(tree.token_ids, tree.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


def assert_are_those_of_forward(base, tokens: list[int], predictions) -> None:
    """Each row against a plain call that reads the node's whole history."""
    for path, ids, log_probs in zip(
        paths_of(predictions.tree), predictions.token_ids, predictions.log_probs, strict=True
    ):
        with torch.inference_mode():
            logits = base(input_ids=torch.tensor([[*tokens, *path]])).logits[0, -1].float()
        wanted = logits.log_softmax(-1)
        best = wanted.topk(K)
        np.testing.assert_allclose(log_probs, best.values.numpy(), atol=2e-3)
        np.testing.assert_allclose(log_probs, wanted[ids.astype(np.int64)].numpy(), atol=2e-3)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_predictions_are_those_of_the_model_in_a_ragged_batch(kind, layout):
    model = model_of(kind)
    target, rng = CausalLMTarget(model.base), np.random.default_rng(3)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in (3, 9)]
    first, state = read_texts(target, prompts)
    exact = first.logits[:, -1].argmax(-1).tolist()
    trees = [
        PrefixTree.from_drafts(exact[0], [[4, 9, 6], [4, 5], [7]]),
        PrefixTree.from_drafts(exact[1], [[1, 2]]),
    ]
    verified = verify_trees(target, state, trees, layout=layout, num_predictions=K).sequences
    for prompt, tree, one in zip(prompts, trees, verified, strict=True):
        assert one.predictions.tree is tree
        assert one.predictions.token_ids.shape == one.predictions.log_probs.shape == (len(tree), K)
        assert_are_those_of_forward(model.base, prompt, one.predictions)
    plain = verify_trees(target, state, [PrefixTree([v.token_ids[-1]], [-1]) for v in verified])
    assert plain.sequences[0].predictions is None  # not requested


@pytest.mark.parametrize("kind", RECURRENT)
def test_predictions_of_recurrent_models(kind):
    model, (output, *_) = build_target(kind), generated(kind)
    seen = []

    class Spy(MixtureDrafter):
        def _text_of(self, state):
            seen.extend((list(state.tokens[:n]), one) for n, one in state.predictions)
            return super()._text_of(state)

    result = decode(model, PROMPTS[0], Spy(max_nodes=3), max_new_tokens=12)
    assert result.token_ids == output[:12]
    assert len(seen) > 3
    for tokens, predictions in seen:
        assert predictions.tree.token_ids[0] == tokens[-1]
        for path, ids, log_probs in zip(paths_of(predictions.tree), *predictions[1:], strict=True):
            with torch.inference_mode():
                logits = model(torch.tensor([[*tokens[:-1], *path]]), use_cache=False).logits[0, -1]
            wanted = logits.float().log_softmax(-1)[ids.astype(np.int64)]
            np.testing.assert_allclose(log_probs, wanted.numpy(), atol=5e-3)


def test_rows_with_nan_are_left_out_and_masked_tokens_are_improbable():
    logits = torch.randn(1, 4, 20, generator=torch.Generator().manual_seed(1))
    logits[0, 1, 7] = torch.nan
    logits[0, 2, 3] = torch.inf
    logits[0, 3, 4:] = -torch.inf
    tree = PrefixTree.from_drafts(1, [[2, 3, 4]])
    for rows in (logits, logits.to(torch.bfloat16)):
        (found,) = select_predictions([tree], rows, None, 8)
        assert (found.token_ids[:, 0] >= 0).tolist() == [True, False, False, True]
        assert (found.token_ids[1:3] == -1).all()
        wanted = rows[0, [0, 3]].float().log_softmax(-1).topk(8).values.numpy()
        np.testing.assert_allclose(found.log_probs[[0, 3]], wanted, atol=1e-5)
        assert np.isneginf(found.log_probs[3, 4:]).all()


def test_the_selection_of_accelerators_is_that_of_the_core():
    """torch's operations on an accelerator, here on the CPU, against the core's kernel."""
    logits = torch.randn(6, 300, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    logits[1, 7], logits[4, 299] = torch.nan, torch.inf
    tree = PrefixTree.from_drafts(1, [[2, 3, 4, 5, 6]])
    for dtype in (torch.float32, torch.bfloat16):
        rows = logits.to(dtype)
        token_ids, log_probs = top_k_on_device(rows, 8, log_softmax=True, skip_bad_rows=True)
        (found,) = select_predictions([tree], rows[None], None, 8)
        np.testing.assert_array_equal(found.token_ids, token_ids)
        good = [0, 2, 3, 5]
        np.testing.assert_allclose(found.log_probs[good], log_probs[good], atol=1e-5)
        assert (token_ids[[1, 4]] == -1).all()


class Reversing:
    """A selector that reverses the logits in place, as some processors change theirs."""

    ended = False

    def choose(self, logits, _candidates):
        logits.copy_(logits.flip(0))
        return int(logits.argmax())


@pytest.mark.parametrize("layout", ["tree", "rows"])
def test_predictions_are_of_the_raw_logits(layout):
    model = model_of("llama")
    target = CausalLMTarget(model.base)
    prompt = [5, 3, 8, 1]
    first, cache = target.read_prompts(torch.tensor([prompt]))
    tree = PrefixTree.from_drafts(int(first.logits[0, -1].argmax()), [[4, 9], [2]])
    verified = verify_trees(
        target, Rows.from_cache(cache), [tree], layout=layout, selectors=[Reversing()],
        num_predictions=K,
    )  # fmt: skip
    assert_are_those_of_forward(model.base, prompt, verified.sequences[0].predictions)


@pytest.mark.parametrize("batch", [1, 3])
def test_drafts_from_predictions_alone_are_accepted_and_change_nothing(batch):
    """No text, LM or heads: only what the target itself predicted."""
    model, count = model_of("llama"), 40
    prompts = random_prompts(batch, seed=4)
    drafter = MixtureDrafter(text=False, max_nodes=12)
    results = decode(model.base, prompts, drafter, max_new_tokens=count)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.token_ids == plain_greedy(model, prompt, count)
        assert result.stats.block_efficiency > 1.2
        assert "predict" in result.stats.seconds
    without = decode(model.base, prompts, MixtureDrafter(target=False), max_new_tokens=count)
    assert [one.token_ids for one in without] == [one.token_ids for one in results]


def test_sampling_with_predictions_samples_the_same():
    model = model_of("llama")
    (prompt,) = random_prompts(1, seed=2)
    texts = [
        generate(
            model.base, prompt, strategy, heads=model.heads, max_new_tokens=40,
            acceptance=Sampled(temperature=0.9, seed=3),
        ).token_ids
        for strategy in ("greedy", MixtureDrafter(max_nodes=8), MixtureDrafter(target=False))
    ]  # fmt: skip
    assert texts[0] == texts[1] == texts[2]
