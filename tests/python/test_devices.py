"""Weights that accelerate keeps on the CPU or on disk, and another default device than the model's.

The meta device, whose tensors have no values, stands for another accelerator.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import LlamaForCausalLM, PreTrainedModel

import seq2seq_models
from blockwise_models import looping_text
from lattice_bpd import NGramLM
from lattice_bpd.decode import CustomGenerate, decode, generate
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.models import BlockwiseHeads, VocabularyHeads, model_facts
from lattice_bpd.train.vocabulary_heads import (
    Positions,
    VocabularyHeadsOptions,
    train_vocabulary_heads,
)
from lattice_bpd.verify import CausalLMTarget, use_cpu_kernels
from lattice_bpd.verify.acceptance import Sampled
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_kim2024.heads.first_head import FirstHead, HeadNetwork
from planted_drafts import PlantedDrafts
from target_models import COUNT, PROMPTS, VOCAB, build_target, generated, plain_generate

ROOT = Path(__file__).resolve().parents[2]
PROMPT = PROMPTS[0]


def accelerate() -> Any:
    return pytest.importorskip("accelerate", reason="accelerate is missing (pip install '.[test]')")


def new_model(kind: str = "llama", *, tied: bool = False) -> PreTrainedModel:
    """A copy that hooks may change."""
    model = copy.deepcopy(build_target(kind))
    if tied:
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model


# what device maps name, with a main device of "cpu"
MAPS: dict[str, dict[str, str]] = {
    "output embedding": {"model": "cpu", "lm_head": "disk"},
    "input embedding": {"model.embed_tokens": "disk", "model.layers": "cpu", "model.norm": "cpu",
                        "model.rotary_emb": "cpu", "lm_head": "cpu"},
    "layers": {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
               "model.norm": "disk", "model.rotary_emb": "cpu", "lm_head": "disk"},
    "all": {"model": "disk", "lm_head": "disk"},
}  # fmt: skip
WAYS = ["cpu", "disk", "hook", *MAPS]


def offload(way: str, folder: Path, model: PreTrainedModel) -> PreTrainedModel:
    """The model with hooks that load its weights for a call."""
    hooks: Any = accelerate()
    moved: Any
    if way == "cpu":
        moved = hooks.cpu_offload(model, execution_device="cpu")
    elif way == "disk":
        moved = hooks.disk_offload(model, str(folder), execution_device="cpu")
    elif way == "hook":
        moved = hooks.cpu_offload_with_hook(model, "cpu")[0]
    else:
        moved = hooks.dispatch_model(
            model, MAPS[way], main_device="cpu", offload_dir=str(folder), force_hooks=True
        )
    has_meta = any(weight.is_meta for weight in model.parameters())
    assert has_meta is (way != "hook") or model.config.tie_word_embeddings
    result: PreTrainedModel = moved
    return result


@pytest.fixture(params=WAYS)
def offloaded(request, tmp_path):
    return offload(request.param, tmp_path, new_model())


def custom(model: PreTrainedModel, prompts: list[list[int]], **options: Any) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    output: Any = model.generate(  # type: ignore[operator]
        ids, attention_mask=mask, do_sample=False, max_new_tokens=COUNT,
        custom_generate=CustomGenerate(**options),
    )  # fmt: skip
    return [row[longest:].tolist() for row in output]


def test_offloaded_targets_decode(offloaded):
    outputs, limit = generated("llama"), {"max_new_tokens": COUNT}
    assert plain_generate(offloaded, PROMPT) == outputs[0]
    for layout in ("rows", "tree"):
        drafter = PlantedDrafts(outputs[0], VOCAB, num_drafts=2)
        result = decode(offloaded, PROMPT, drafter, layout=layout, **limit)
        assert result.token_ids == outputs[0]
        assert result.stats.target_calls < 0.6 * COUNT
    lm = NGramLM.train([looping_text(500)], 3, vocab_size=VOCAB, smoothing="witten_bell")
    results = generate(offloaded, PROMPTS, lm=lm, **limit)
    assert [one.token_ids for one in results] == outputs
    assert custom(offloaded, PROMPTS) == outputs
    certified = generate(offloaded, PROMPT, certificate=True, **limit)
    assert certified.token_ids == outputs[0]
    assert certified.certificate.verdict == "lossless"
    if use_cpu_kernels(offloaded):
        assert generate(offloaded, PROMPT, **limit).token_ids == outputs[0]


def test_offloaded_targets_go_on_with_a_chat(offloaded):
    first = generate(offloaded, PROMPT, max_new_tokens=5, cache=True)
    second = generate(
        offloaded,
        [*PROMPT, *first.token_ids],
        max_new_tokens=COUNT - 5,
        cache=first.cache,
        attention_mask=[1] * (len(PROMPT) + 5),
    )
    assert second.stats.cached_tokens > 0
    assert [*first.token_ids, *second.token_ids] == generated("llama")[0]


def test_heads_of_offloaded_targets(offloaded):
    plain = new_model()
    sizes = {"num_slots": 3, "inner_size": 16}
    made: list[Any] = [
        BlockwiseHeads(32, 4, 16, vocab_size=VOCAB),
        VocabularyHeads(list(range(0, VOCAB, 2)), 32, VOCAB, **sizes),
        lambda hidden: torch.zeros(len(hidden), 3, VOCAB),
    ]
    for heads in made:
        drafted = []
        for model in (plain, offloaded):
            result = generate(model, PROMPT, "tree", heads=heads, max_new_tokens=COUNT, top_k=4)
            assert result.token_ids == generated("llama")[0]
            drafted.append(result.stats.accept_lengths)
        assert drafted[0] == drafted[1]  # the same drafts
        assert not any(w.is_meta for w in getattr(heads, "parameters", list)())


def test_packed_heads_are_not_packed_anew_in_each_step(tmp_path, monkeypatch):
    from lattice_bpd import _core

    model, counts = offload("output embedding", tmp_path, new_model()), []

    def packed(*arguments: Any) -> Any:
        counts.append(1)
        return original(*arguments)

    original = _core.PackedHeads
    monkeypatch.setattr(_core, "PackedHeads", packed)
    heads = VocabularyHeads(list(range(VOCAB)), 32, VOCAB, num_slots=2, inner_size=16)
    result = generate(model, PROMPT, "tree", heads=heads, max_new_tokens=COUNT, top_k=4)
    assert result.stats.target_calls > 3
    assert len(counts) == 1


@pytest.mark.parametrize("way", WAYS)
def test_tied_embeddings_offloaded(way, tmp_path):
    wanted = plain_generate(new_model(tied=True), PROMPT)
    model = offload(way, tmp_path, new_model(tied=True))
    assert generate(model, PROMPT, max_new_tokens=COUNT).token_ids == wanted
    heads = VocabularyHeads(list(range(VOCAB)), 32, VOCAB, num_slots=2, inner_size=16)
    assert generate(model, PROMPT, heads=heads, max_new_tokens=COUNT).token_ids == wanted


@pytest.mark.parametrize("way", [*MAPS])
def test_what_transformers_loads_by_a_device_map(way, tmp_path):
    accelerate()
    new_model().save_pretrained(tmp_path / "model")
    model = LlamaForCausalLM.from_pretrained(
        tmp_path / "model", device_map=MAPS[way], offload_folder=tmp_path / "offloaded"
    )
    model.generation_config = build_target("llama").generation_config
    assert any(weight.is_meta for weight in model.parameters())
    assert generate(model, PROMPT, max_new_tokens=COUNT).token_ids == generated("llama")[0]
    assert custom(model, PROMPTS) == generated("llama")


def test_heads_are_trained_and_begun_on_an_offloaded_target(tmp_path):
    states = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))
    ids = torch.arange(40) % VOCAB
    positions = Positions(states, torch.arange(36), ids[:36], ids[:36, None].repeat(1, 2))
    options = VocabularyHeadsOptions(num_slots=2, inner_size=16, batch_size=8, epochs=1)
    trained, begun = [], []
    for model in (new_model(), offload("output embedding", tmp_path, new_model())):
        heads = train_vocabulary_heads(model, positions, range(VOCAB), options)
        trained.append(heads.draft_logits(states[:3], ids[:3]).detach())
        begun.append(MedusaHeads.from_target(model, 2).output_weight.detach())
    assert torch.allclose(*trained, atol=1e-5)
    assert torch.equal(*begun)


@pytest.mark.parametrize("way", ["cpu", "disk"])
@pytest.mark.parametrize("kind", ["qwen3_5", "gemma2", "gpt_neox", "gemma4"])
def test_offloaded_targets_of_other_kinds(kind, way, tmp_path):
    model, output = offload(way, tmp_path, new_model(kind)), generated(kind)[0]
    result = decode(model, PROMPT, PlantedDrafts(output, VOCAB), max_new_tokens=COUNT)
    assert result.token_ids == output
    assert result.stats.target_calls < 0.6 * COUNT


@pytest.mark.parametrize("way", ["cpu", "disk", "output embedding"])
def test_offloaded_models_that_draft_and_rescore(way, tmp_path):
    model, output = build_target("llama"), generated("llama")[0]
    small = offload(way, tmp_path, new_model())
    drafted = generate(model, PROMPT, "draft_model", lm=small, max_new_tokens=COUNT)
    assert drafted.token_ids == output
    assert drafted.stats.target_calls < 0.6 * COUNT
    heads = BlockwiseHeads(32, 4, 16, vocab_size=VOCAB)
    rescored = generate(model, PROMPT, "neural", lm=small, heads=heads, max_new_tokens=COUNT)
    assert rescored.token_ids == output


def test_a_first_head_whose_output_embedding_is_offloaded(tmp_path):
    plain, network = new_model(), HeadNetwork(32, 16)
    torch.nn.init.normal_(network.outer.weight, std=0.2)
    outputs = []
    for model in (plain, offload("output embedding", tmp_path, new_model())):
        head = FirstHead(model.get_output_embeddings(), copy.deepcopy(network))
        assert not any(weight.is_meta for weight in head.network.parameters())
        outputs.append(head.network(torch.ones(1, 32)))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("way", ["cpu", "disk"])
def test_offloaded_encoder_decoders(way, tmp_path):
    plain = seq2seq_models.build("bart")
    wanted = decode(plain, [5, 6, 7], NoDrafter(), max_new_tokens=8).token_ids
    model = offload(way, tmp_path, copy.deepcopy(plain))
    assert decode(model, [5, 6, 7], NoDrafter(), max_new_tokens=8).token_ids == wanted


def test_what_was_measured_of_an_offloaded_target_is_kept(tmp_path):
    """Its weights are new tensors after each call."""
    model = offload("disk", tmp_path, new_model())
    generate(model, PROMPT, max_new_tokens=4)
    known = model_facts.facts_of(model)
    assert known
    generate(model, PROMPT, max_new_tokens=4)
    assert model_facts.facts_of(model) is known


def test_weights_without_values_are_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(build_target("llama").config).eval()
    for call in (
        lambda: generate(model, PROMPT),
        lambda: decode(model, PROMPT, NoDrafter()),
        lambda: generate(build_target("llama"), PROMPT, "draft_model", lm=model),
        lambda: CausalLMTarget(model),
    ):
        with pytest.raises(ValueError, match=r"on the meta device.*load it with from_pretrained"):
            call()


def test_a_model_is_described_once_in_a_call(monkeypatch):
    described: list[Any] = []
    original = model_facts._describe

    def describe(model: Any) -> Any:
        described.append(model)
        return original(model)

    monkeypatch.setattr(model_facts, "_describe", describe)
    model, other = new_model(), new_model()
    options: dict[str, Any] = {"max_new_tokens": 8}
    calls = {
        "generate": lambda: generate(model, PROMPT, **options),
        "batch": lambda: generate(model, PROMPTS, **options),
        "decode": lambda: decode(model, PROMPT, NoDrafter(), **options),
        "certificate": lambda: generate(model, PROMPT, certificate=True, **options),
        "custom": lambda: custom(model, PROMPTS),
    }
    for name, call in calls.items():
        described.clear()
        call()
        assert described == [model], name
    described.clear()
    generate(model, PROMPT, "draft_model", lm=other, **options)
    assert sorted(map(id, described)) == sorted(map(id, (model, other)))
    model.train()  # without dropout, but another state
    known = model_facts.facts_of(model)
    assert known is not model_facts.facts_of(model.eval())


@pytest.fixture
def other_default() -> Iterator[None]:
    """Another default device than that of the models, which are built before."""
    for kind in ("llama", "gemma2", "qwen3_5"):
        generated(kind)
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def on_cpu(function: Any) -> Any:
    """What a function of the test makes on the CPU."""

    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        with torch.device("cpu"):
            return function(*arguments, **named)

    return wrapped


@pytest.mark.parametrize("kind", ["llama", "gemma2", "qwen3_5"])
@pytest.mark.usefixtures("other_default")
def test_targets_decode_with_another_default_device(kind):
    model, outputs = build_target(kind), generated(kind)
    several = kind != "qwen3_5"  # which keeps a state
    for layout in ("auto", "tree") if several else ("auto",):
        drafter = PlantedDrafts(outputs[0], VOCAB, num_drafts=2 if several else 1)
        result = decode(model, PROMPT, drafter, layout=layout, max_new_tokens=COUNT)
        assert result.token_ids == outputs[0]
        assert result.stats.target_calls < 0.6 * COUNT
    settings = {"max_new_tokens": COUNT, "logprobs": 3}
    assert generate(model, PROMPT, **settings).token_ids == outputs[0]
    if several:
        results = generate(model, PROMPTS, max_new_tokens=COUNT, certificate=True)
        assert [one.token_ids for one in results] == outputs


@pytest.mark.usefixtures("other_default")
def test_heads_models_and_rules_with_another_default_device():
    model, output = build_target("llama"), generated("llama")[0]
    limit: dict[str, Any] = {"max_new_tokens": COUNT}
    with torch.device("cpu"):
        made: list[Any] = [
            BlockwiseHeads(32, 4, 16, vocab_size=VOCAB),
            VocabularyHeads(list(range(VOCAB)), 32, VOCAB, num_slots=2, inner_size=16),
        ]
    for heads in made:
        for strategy in ("tree", "p_best", "mixture"):
            result = generate(model, PROMPT, strategy, heads=heads, **limit)
            assert result.token_ids == output
    lm = NGramLM.train([looping_text(500)], 3, vocab_size=VOCAB, smoothing="witten_bell")
    assert generate(model, PROMPT, lm=lm, **limit).token_ids == output
    for strategy, heads in (("draft_model", None), ("neural", made[0])):
        result = generate(model, PROMPT, strategy, heads=heads, lm=model, **limit)
        assert result.token_ids == output
    sampled = [
        generate(model, PROMPTS, acceptance=Sampled(temperature=0.8, seed=seed), **limit)
        for seed in (1, 1)
    ]
    assert sampled[0][1].token_ids == sampled[1][1].token_ids
    first = generate(model, PROMPT, max_new_tokens=5, cache=True)
    second = generate(
        model,
        [*PROMPT, *first.token_ids],
        max_new_tokens=COUNT - 5,
        cache=first.cache,
        attention_mask=[1] * (len(PROMPT) + 5),
    )
    assert [*first.token_ids, *second.token_ids] == output


@pytest.mark.usefixtures("other_default")
def test_custom_generate_and_encoder_decoders_with_another_default_device():
    call = on_cpu(torch.tensor)
    model, outputs = build_target("llama"), generated("llama")
    longest = max(map(len, PROMPTS))
    ids = call([[0] * (longest - len(one)) + one for one in PROMPTS])
    mask = call([[0] * (longest - len(one)) + [1] * len(one) for one in PROMPTS])
    settings: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": COUNT}
    for own in ({}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}):
        plain = model.generate(ids, do_sample=False, **settings, **own)  # type: ignore[operator]
        output = model.generate(  # type: ignore[operator]
            ids, do_sample=False, custom_generate=CustomGenerate(), output_scores=True,
            return_dict_in_generate=True, **settings, **own,
        ).sequences  # fmt: skip
        assert output.tolist() == plain.tolist()
        assert own or [row[longest:] for row in output.tolist()] == outputs
    model.generate(ids, do_sample=True, custom_generate=CustomGenerate(), **settings)  # type: ignore[operator]
    source = on_cpu(seq2seq_models.build)("bart")
    one = generate(source, [5, 6, 7], max_new_tokens=8)
    with torch.device("cpu"):
        assert one.token_ids == generate(source, [5, 6, 7], max_new_tokens=8).token_ids


MAKERS = frozenset((
    "arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "logspace", "ones",
    "rand", "randint", "randn", "randperm", "range", "scalar_tensor", "tensor", "tril_indices",
    "triu_indices", "zeros",
))  # fmt: skip


def makers_without_device(source: str) -> list[str]:
    """Calls that make a tensor and name no device; weights of modules follow torch's default."""
    found, weights = [], set[int]()
    for node in ast.walk(ast.parse(source)):  # a call comes before what is in it
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in ("Parameter", "register_buffer"):
            weights |= {id(inner) for inner in ast.walk(node)}
        is_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        names = {keyword.arg for keyword in node.keywords}
        if is_torch and node.func.attr in MAKERS and not names & {"device", None}:
            found += [] if id(node) in weights else [f"{node.lineno}: {ast.unparse(node)}"]
    return found


def test_every_tensor_that_the_library_makes_names_its_device():
    shown = "torch.zeros(2)\ntorch.ones(1, device=d)\nnn.Parameter(torch.zeros(2))\ntorch.cat([])"
    assert makers_without_device(shown) == ["1: torch.zeros(2)"]
    found = []
    for top in ("python", "packages", "integrations", "research"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if "tests" not in path.parts:
                text = path.read_text(encoding="utf-8")
                found += [f"{path.relative_to(ROOT)}:{one}" for one in makers_without_device(text)]
    assert not found
