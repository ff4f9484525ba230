"""Recorded calls: a stand-in for CUDA graphs replays the same operations on the same memory."""

from __future__ import annotations

import copy
import gc
import os
import warnings
import weakref
import zlib
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import transformers
from transformers import CONFIG_MAPPING

import tiny_models
from architectures import Architecture, list_architectures
from blockwise_models import model_of
from config_overrides import NOT_BUILT
from lattice_bpd import _core
from lattice_bpd.build.call_costs import measure_costs
from lattice_bpd.decode import CustomGenerate, decode, generate
from lattice_bpd.decode.loop import decode as decode_module
from lattice_bpd.decode.state.model import DraftingModel, HiddenStateHeads, as_draft_heads
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd.verify import CausalLMTarget, PrefixTree, Sampled, graphs, record_calls
from lattice_bpd.verify.graphs import RecordedCalls
from lattice_bpd.verify.greedy import follow_by_index, greedy_tokens
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import follow_greedy, follow_tokens, verify_trees
from lattice_bpd_conformance.cases import Case, random_prompts
from lattice_bpd_conformance.check import Checker
from planted_drafts import PlantedDrafts
from recorded_calls import Recording
from target_models import ATTENTION, COUNT, PROMPTS, VOCAB, build_target, generated
from tiny_models import make_tiny_model
from vision_models import IMAGE, build_vision_model, image_inputs

ALL = os.environ.get("LATTICE_BPD_ALL_ARCHITECTURES", "0") not in ("", "0")
CHOSEN = [
    one
    for one in list_architectures()
    if one.name == one.model_type and one.name not in NOT_BUILT
    and (ALL or zlib.crc32(one.name.encode()) % 12 == 0)
]  # fmt: skip
OPTIONS: dict[str, Any] = {"max_new_tokens": COUNT, "cpu_kernels": False}
SOMETIMES = {"gemma3n"}  # transformers looks at values, or not


def fresh_target(kind: str) -> Any:
    """One that no other test has changed."""
    return build_target.__wrapped__(kind)


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Recording]]:
    monkeypatch.setattr(graphs, "is_recordable", lambda _device: True)
    monkeypatch.setattr(graphs, "CAPACITIES", (512, 1024))
    monkeypatch.setattr(RecordedCalls, "new_recording", lambda _own, body: Recording(body))
    Recording.made = Recording.replayed = 0
    yield Recording
    for model in list(graphs._WANTED):
        record_calls(model, on=False)


@pytest.mark.parametrize("kind", ATTENTION)
def test_replayed_calls_decode_as_generate_does(kind: str) -> None:
    """Trees of several widths; the second text is in the buffers of the first."""
    model, outputs = fresh_target(kind), generated(kind)
    record_calls(model)
    for prompt, output in zip(PROMPTS[:2], outputs[:2], strict=True):
        for num_drafts in (1, 2):
            drafter = PlantedDrafts(output, VOCAB, num_drafts=num_drafts)
            assert decode(model, prompt, drafter, **OPTIONS).token_ids == output
    is_recorded = CausalLMTarget(model).refuses_tree() is None
    if kind not in SOMETIMES:
        assert (Recording.replayed > 3 * Recording.made > 0) == is_recorded


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "roberta"])
def test_batches_that_progress_at_different_speeds(kind: str) -> None:
    """Three texts have four rows; those that end first leave them to the others."""
    model, outputs = fresh_target(kind), generated(kind)
    record_calls(model)
    drafters = [
        PlantedDrafts(output, VOCAB, wrong=wrong)
        for output, wrong in zip(outputs, (2, 3, 5), strict=True)
    ]
    for _ in range(2):
        results = decode(model, PROMPTS, drafters, **OPTIONS)
        assert [one.token_ids for one in results] == outputs
    assert Recording.replayed > Recording.made > 0


def test_predictions_and_heads_of_a_replayed_call() -> None:
    """The default drafter reads the most probable tokens, heads the hidden states."""
    made = copy.deepcopy(model_of("llama"))
    model, prompt = made.base, [3, 1, 4, 1, 5]
    options = {"heads": made.heads, "max_new_tokens": 40, "cpu_kernels": False}
    record_calls(model, on=False)
    plain = [generate(model, prompt, kind, **options) for kind in ("mixture", "bpd")]
    record_calls(model)
    replayed = [generate(model, prompt, kind, **options) for kind in ("mixture", "bpd")]
    for one, other in zip(plain, replayed, strict=True):
        assert one.token_ids == other.token_ids
    assert plain[1].stats.accept_lengths == replayed[1].stats.accept_lengths
    assert Recording.replayed > 10
    rule = Sampled(temperature=1.5, seed=4)
    record_calls(model, on=False)
    sampled = generate(model, prompt, "mixture", acceptance=rule, **options).token_ids
    record_calls(model)
    again = generate(model, prompt, "mixture", acceptance=rule, **options).token_ids
    assert again == sampled != plain[0].token_ids


def random_tree(rng: np.random.Generator) -> PrefixTree:
    """Of up to eight nodes, no two siblings alike."""
    parents = [-1, *(int(rng.integers(0, n)) for n in range(1, int(rng.integers(1, 9))))]
    return PrefixTree(rng.permutation(VOCAB)[: len(parents)].tolist(), parents)


class Reversed:
    """Selects the least probable tokens."""

    ended = False

    def choose(self, logits: torch.Tensor, candidates: Any) -> int:  # noqa: ARG002
        return int(logits.argmin())


def random_heads(hidden_size: int, seed: int) -> VocabularyHeads:
    torch.manual_seed(seed)
    heads = VocabularyHeads(range(0, VOCAB, 2), hidden_size, VOCAB, num_slots=3, inner_size=16)
    torch.nn.init.normal_(heads.outer_weight)
    return heads.eval()


def test_heads_are_read_in_a_replayed_call() -> None:
    """Of every text after its last token; other heads are recorded anew, and selectors without."""
    model, rng = fresh_target("llama"), np.random.default_rng(5)
    prompts = rng.integers(0, VOCAB, (3, 11)).tolist()
    target, _, lent = lent_state(model, prompts)
    for seed in (1, 2, 1):
        heads = random_heads(model.config.hidden_size, seed)
        made, draft_heads = Recording.made, as_draft_heads(heads, target)
        assert isinstance(draft_heads, HiddenStateHeads)
        for _ in range(6):
            trees = [random_tree(rng) for _ in prompts]
            verified = verify_trees(target, lent, trees, heads=draft_heads.in_call).sequences
            hidden = torch.stack([one.hidden for one in verified])
            exact = torch.tensor([one.token_ids[-1] for one in verified])
            with torch.inference_mode():
                expected = heads.lattice(hidden, exact)
            for number, one in enumerate(verified):
                assert one.candidates is not None
                np.testing.assert_array_equal(
                    one.candidates.token_ids[0], expected.token_ids[number]
                )
                np.testing.assert_allclose(one.candidates.scores[0], expected.scores[number], 1e-5)
        assert Recording.made > made
        assert len({key.heads for key in lent.recorded._calls}) == 1
    verified = verify_trees(
        target, lent, [random_tree(rng) for _ in prompts], layout="tree",
        selectors=[Reversed()] * 3, heads=draft_heads.in_call,
    ).sequences  # fmt: skip
    assert all(one.candidates is None for one in verified)


def test_drafts_of_heads_in_replayed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads are read outside of a call after the prompt alone."""
    model, output = fresh_target("llama"), generated("llama")[0]
    heads, calls = random_heads(model.config.hidden_size, 3), []
    inner = VocabularyHeads.lattice

    def count(own: Any, hidden: torch.Tensor, exact_tokens: torch.Tensor) -> Any:
        calls[-1] += 1
        return inner(own, hidden, exact_tokens)

    monkeypatch.setattr(VocabularyHeads, "lattice", count)
    for on in (False, True):
        record_calls(model, on=on)
        calls.append(0)
        result = generate(model, PROMPTS[0], heads=heads, **OPTIONS)
        assert result.token_ids == output
    assert calls[0] > 5
    assert calls[1] == 1


@pytest.mark.parametrize("architecture", CHOSEN, ids=lambda one: one.name)
def test_architectures_are_recorded_or_decode_as_before(
    architecture: Architecture, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    monkeypatch.setattr(decode_module, "kernels_in_call", lambda *_, **__: nullcontext())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = CONFIG_MAPPING[architecture.model_type]()
        model = make_tiny_model(getattr(transformers, architecture.class_name), config)
        record_calls(model)
        checker = Checker(model, random_prompts(tiny_models.VOCAB))
        cases = [Case("greedy", 1), Case("mixture", 1), Case("mixture", 3), Case("tree", 3, "tree")]
        verdicts = checker.run(cases)
    assert verdicts
    assert not [verdict for verdict in verdicts if verdict.failed]
    record_property("replayed", Recording.replayed)


def lent_state(model: Any, prompts: list[list[int]]) -> tuple[CausalLMTarget, Rows, Rows]:
    """Texts of one length, in plain rows and in lent ones."""
    target = CausalLMTarget(model)
    _, cache = target.read_prompts(torch.tensor(prompts))
    plain = Rows.from_cache(cache)
    _, cache = target.read_prompts(torch.tensor(prompts))
    return target, plain, graphs.lend_rows(target, Rows.from_cache(cache), len(prompts), 300)


def test_what_a_replayed_call_returns() -> None:
    """Of random trees in random widths, against a call of their own size."""
    model, rng = fresh_target("gemma2"), np.random.default_rng(3)
    record_calls(model)
    prompts = rng.integers(0, VOCAB, (3, 11)).tolist()
    target, plain, lent = lent_state(model, prompts)
    assert lent.recorded is not None
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    shapes = set()
    for number in range(30):
        trees = [random_tree(rng) for _ in prompts]
        selectors = [Reversed()] * 3 if number % 3 == 0 else None
        first, second = (
            verify_trees(
                target, state, trees, layout="tree", num_predictions=3, keep_hidden=True,
                selectors=selectors,
            )
            for state in (plain, lent)
        )  # fmt: skip
        shapes.add(second.shape)
        for one, other in zip(first.sequences, second.sequences, strict=True):
            assert one.token_ids == other.token_ids
            torch.testing.assert_close(one.states, other.states, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(one.hidden, other.hidden, atol=1e-4, rtol=1e-4)
            assert one.predictions is not None
            assert other.predictions is not None
            np.testing.assert_array_equal(one.predictions.token_ids, other.predictions.token_ids)
            np.testing.assert_allclose(
                one.predictions.log_probs, other.predictions.log_probs, atol=1e-4
            )
            kept.append((other.hidden, other.hidden.clone()))
        assert plain.lengths == lent.lengths
    assert all(torch.equal(one, before) for one, before in kept)  # later calls leave them
    assert (4, 8) in shapes


def test_padding_that_holds_no_number_reaches_no_text() -> None:
    """The last position, rows beyond the texts, and logits of padded tokens."""
    model, outputs = fresh_target("llama"), generated("llama")
    record_calls(model)
    drafters = [PlantedDrafts(output, VOCAB, num_slots=5) for output in outputs]
    decode(model, PROMPTS, drafters, **OPTIONS)
    (calls,) = graphs.facts_of(model)["recorded"]
    with torch.inference_mode():
        for buffer in calls._buffers.buffers:
            assert bool(buffer.isfinite().all())
            buffer[:, 3] = 1e30  # a row that no text has
    results = decode(model, PROMPTS, drafters, **OPTIONS)
    assert [one.token_ids for one in results] == outputs


def test_logits_that_hold_nan_are_an_error() -> None:
    model = fresh_target("llama")
    record_calls(model)
    target, _, lent = lent_state(model, [[3, 1, 4]])
    verify_trees(target, lent, [PrefixTree([7], [-1])])
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")  # in the memory that was recorded
    with pytest.raises(ValueError, match="logits hold NaN"):
        verify_trees(target, lent, [PrefixTree([7], [-1])])
    assert Recording.replayed == 2


def test_buffers_are_lent_to_one_batch_at_a_time() -> None:
    model = fresh_target("llama")
    record_calls(model)
    target, _, first = lent_state(model, [[3, 1, 4]])
    _, _, second = lent_state(model, [[1, 5, 9]])
    assert first.recorded is not second.recorded
    assert first.buffers[0].data_ptr() != second.buffers[0].data_ptr()
    known = first.recorded
    del first
    _, _, third = lent_state(model, [[2, 6, 5]])
    assert third.recorded is known  # at once, without the garbage collector
    with torch.no_grad():
        next(model.parameters()).mul_(1.0)  # the model has changed
    _, _, fourth = lent_state(model, [[2, 6, 5]])
    assert fourth.recorded is not known
    del target, second, third, fourth


def test_memory_of_buffers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that no text has make way for others; else texts are decoded without."""
    model = fresh_target("llama")
    record_calls(model)
    _, _, one = lent_state(model, [[3, 1, 4]])
    size = one.recorded.num_bytes
    assert size == 2 * 2 * 2 * 512 * 8 * 4  # layers, keys and values, heads, positions, bytes
    monkeypatch.setattr(graphs, "free_memory", lambda _device: 3.1 / 0.3 * size - size)
    _, _, two = lent_state(model, [[3, 1, 4], [1, 5, 9]])
    assert two.recorded is not None
    _, _, other = lent_state(model, [[3, 1, 4]])
    assert other.recorded is None
    del one
    monkeypatch.setattr(graphs, "free_memory", lambda _device: 3.1 / 0.3 * size - 3 * size)
    _, _, other = lent_state(model, [[3, 1, 4]])
    assert other.recorded is not None
    assert len(graphs.facts_of(model)["recorded"]) == 2


def test_calls_whose_logits_do_not_fit_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh_target("llama")
    target, _, lent = lent_state(model, [[3, 1, 4], [1, 5, 9]])
    trees = [PrefixTree.from_drafts(7, [[1, 2, 3]])] * 2
    most = 2 * 4 * VOCAB * 8 / 0.3
    for free, made in ((0.99 * most, 0), (1.01 * most, 1)):
        monkeypatch.setattr(graphs, "free_memory", lambda _device, free=free: free)
        lent.recorded._calls.clear()
        verify_trees(target, lent, trees)
        assert Recording.made == made


def test_texts_that_outgrow_the_buffers_go_on_without() -> None:
    model = fresh_target("llama")
    record_calls(model)
    target, plain, lent = lent_state(model, [[3, 1, 4], [1, 5, 9]])
    tree = PrefixTree.from_drafts(7, [[1, 2]])
    verify_trees(target, lent, [tree, tree])
    verify_trees(target, plain, [tree, tree])
    assert Recording.replayed == 1
    lent.keep_sequences([1, 0])  # other memory
    plain.keep_sequences([1, 0])
    for layout in ("tree", "rows"):
        both = [verify_trees(target, state, [tree, tree], layout=layout) for state in (plain, lent)]
        ids = [[one.token_ids for one in each.sequences] for each in both]
        assert ids[0] == ids[1]
    assert Recording.replayed == 1


def test_what_is_not_recorded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is in the log once, and the output is that of `generate`."""
    caplog.set_level("INFO", "lattice_bpd")
    model, output = fresh_target("llama"), generated("llama")[0]
    record_calls(model)
    mlp: Any = type(model.model.layers[0].mlp)
    inner = mlp.forward

    def waits(self: Any, states: torch.Tensor) -> Any:
        return inner(self, states) if bool(states.isfinite().all()) else states

    with monkeypatch.context() as patch:
        patch.setattr(mlp, "forward", waits)
        for _ in range(2):
            drafter = PlantedDrafts(output, VOCAB)
            assert decode(model, PROMPTS[0], drafter, **OPTIONS).token_ids == output
    assert caplog.text.count("LlamaForCausalLM cannot be (aten.is_nonzero") == 2  # then refused
    handle = model.model.layers[0].register_forward_hook(lambda *_: None)
    assert decode(model, PROMPTS[0], PlantedDrafts(output, VOCAB), **OPTIONS).token_ids == output
    assert "has hooks, which do not run" in caplog.text
    handle.remove()
    monkeypatch.setattr(graphs, "CAPACITIES", (64,))
    assert decode(model, PROMPTS[0], PlantedDrafts(output, VOCAB), **OPTIONS).token_ids == output
    assert "1 texts of" in caplog.text
    monkeypatch.setattr(graphs, "CAPACITIES", (512,))
    monkeypatch.setattr(graphs, "free_memory", lambda _device: 1e5)
    assert decode(model, PROMPTS[0], PlantedDrafts(output, VOCAB), **OPTIONS).token_ids == output
    assert Recording.replayed == 0


def test_a_recording_that_is_not_the_call_is_not_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model asks how long the cache is, on the host: recorded, it is always empty."""
    caplog.set_level("INFO", "lattice_bpd")
    model: Any = fresh_target("llama")
    attention: Any = type(model.model.layers[0].self_attn)
    inner = attention.forward

    def counts(self: Any, **kwargs: Any) -> Any:
        (cache,) = (one for one in kwargs.values() if isinstance(one, transformers.Cache))
        is_first = cache.get_seq_length() == 0
        kwargs["hidden_states"] = kwargs["hidden_states"] * (0.5 if is_first else 1.0)
        return inner(self, **kwargs)

    monkeypatch.setattr(attention, "forward", counts)
    prompt = torch.tensor([PROMPTS[0]])
    output = model.generate(prompt, max_new_tokens=COUNT, do_sample=False)[0, len(PROMPTS[0]) :]
    for _ in range(2):
        drafter = PlantedDrafts(output.tolist(), VOCAB)
        assert decode(model, PROMPTS[0], drafter, **OPTIONS).token_ids == output.tolist()
    assert Recording.made == Recording.replayed == 1
    assert caplog.text.count("gives other logits when it is replayed") == 2  # then refused


@pytest.mark.parametrize("kind", ["qwen2_vl", "paligemma"])
def test_models_that_read_images_are_not_recorded(kind: str) -> None:
    """Qwen2-VL keeps the shift of positions after an image outside its cache, for the next text."""
    model = build_vision_model(kind)
    for seed in range(2):
        inputs = image_inputs(kind, [[3, IMAGE, 5, 6, 7]], seed)
        settings = {"do_sample": False, "max_new_tokens": 16}
        wanted = model.generate(**inputs, **settings)
        method = CustomGenerate(drafter="mixture")
        assert torch.equal(model.generate(**inputs, **settings, custom_generate=method), wanted)
        text = [[5, 6, 7, 3], [9, 10, 4, 8]]
        (one, other) = generate(model, text, max_new_tokens=16)
        for prompt, result in zip(text, (one, other), strict=True):
            output = model.generate(torch.tensor([prompt]), **settings)
            assert output[0, 4:].tolist() == result.token_ids
    assert Recording.made == 0


def test_times_of_calls_are_those_of_replayed_ones() -> None:
    """All sizes have the buffers of one text, one after the other."""
    model = DraftingModel(fresh_target("llama"))
    costs = measure_costs(model, (0, 3, 7), rounds=2)
    assert list(costs) == [0, 3, 7]
    assert (Recording.made, Recording.replayed) == (3, 9)
    assert len(graphs.facts_of(model.target.base)["recorded"]) == 1


def test_recordings_keep_no_model() -> None:
    model = fresh_target("llama")
    record_calls(model)
    decode(model, PROMPTS[0], PlantedDrafts([1] * COUNT, VOCAB), **OPTIONS)
    assert Recording.made
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("count", range(1, 6))
def test_choices_made_on_the_device_are_followed_alike(count: int) -> None:
    """All trees of up to five nodes, with choices that agree here and there."""
    rng = np.random.default_rng(count)
    shapes = [[-1]]
    for node in range(1, count):
        shapes = [[*shape, parent] for shape in shapes for parent in range(node)]
    for parents in shapes:
        for _ in range(12):
            logits = torch.from_numpy(rng.normal(size=(1, 8, 4)).astype(np.float32))
            order = rng.permuted(np.tile(np.arange(4), (count, 1)), axis=1)
            ids = [order[parent, parents[:n].count(parent)] for n, parent in enumerate(parents)]
            tree = PrefixTree(ids, parents)  # siblings differ
            best = greedy_tokens(logits)
            choices = best.flatten().tolist()
            expected = follow_greedy([tree], logits, None)
            assert follow_tokens(choices, [tree], logits, None) == expected
            ids, _ = _core.tree_inputs([tree], [7], 8)
            attends = torch.from_numpy(_core.node_masks([tree], 8))
            last, moved = follow_by_index(
                torch.from_numpy(ids), best, attends, torch.tensor([count])
            )
            nodes = expected[0][0]
            assert last.tolist() == nodes[-1:]
            assert moved.tolist() == [[*nodes, *range(len(nodes), 8)]]
            choices[expected[0][0][-1]] = -1
            with pytest.raises(ValueError, match="logits hold NaN"):
                follow_tokens(choices, [tree], logits, None)
