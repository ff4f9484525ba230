"""The core's attention and linear layers against torch's, alone and within models."""

from __future__ import annotations

import importlib
import importlib.util
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from transformers import (  # noqa: E402  # noqa: E402
    AutoModelForCausalLM,
    Gemma2Config,
    GenerationConfig,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # noqa: E402

from lattice_bpd import _core  # noqa: E402
from lattice_bpd.decode import CustomGenerate, decode, generate  # noqa: E402
from lattice_bpd.decode.drafters.call_costs import costs_of  # noqa: E402
from lattice_bpd.models import linear as linear_module  # noqa: E402
from lattice_bpd.models.heads import BlockwiseHeads  # noqa: E402
from lattice_bpd.models.linear import CALL, linear  # noqa: E402
from lattice_bpd.models.model_facts import facts_of  # noqa: E402
from lattice_bpd.train.responses.generation import generate_responses  # noqa: E402
from lattice_bpd.verify import Sampled, cpu_kernels, use_cpu_kernels  # noqa: E402
from lattice_bpd_kim2024.heads.first_head import FirstHead, HeadNetwork  # noqa: E402
from planted_drafts import PlantedDrafts  # noqa: E402
from tiny_models import make_tiny_model  # noqa: E402

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


class Layer(torch.nn.Module):
    is_causal = True

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.num_key_value_groups = groups


def build_model(config: type, **options: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    sizes = {"vocab_size": 48, "hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = AutoModelForCausalLM.from_config(config(**sizes, **heads, **options)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who computed each call: "core" or "torch"."""
    seen: list[str] = []

    def note(name: str, inner: Any) -> Any:
        return lambda *args, **options: (seen.append(name), inner(*args, **options))[1]

    monkeypatch.setattr(cpu_kernels._core, "attend", note("core", cpu_kernels._core.attend))
    torchs = cpu_kernels.sdpa_attention_forward
    monkeypatch.setattr(cpu_kernels, "sdpa_attention_forward", note("torch", torchs))
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(3, 6, 2, 1, 50, 64), (1, 4, 4, 7, 9, 32), (2, 8, 1, 20, 70, 80)]
)
@pytest.mark.parametrize("mask_kind", ["bool", "added", "shared", "none"])
def test_equals_sdpa(dtype, shape, mask_kind, calls):
    rows, heads, kv_heads, queries, positions, size = shape
    queries = 1 if mask_kind == "none" else queries
    random = torch.Generator().manual_seed(sum(shape))
    query = torch.randn(rows, queries, heads, size, generator=random).to(dtype).transpose(1, 2)
    key, value = (  # the first positions of a longer cache
        torch.randn(rows, kv_heads, positions + 5, size, generator=random).to(dtype)[
            :, :, :positions
        ]
        for _ in range(2)
    )
    mask = torch.rand(rows, 1, queries, positions, generator=random) < 0.7
    mask[..., 3] = True
    mask[..., -2:] = False
    if mask_kind == "added":
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
        mask[..., 3] = 0.5
    elif mask_kind == "shared":
        mask = mask[:1, :, :1]
    given = None if mask_kind == "none" else mask
    layer = Layer(heads // kv_heads)
    scaling = None if mask_kind == "none" else 0.2
    found, _ = cpu_kernels.attend(layer, query, key, value, given, scaling=scaling)
    wanted, _ = cpu_kernels.sdpa_attention_forward(layer, query, key, value, given, scaling=scaling)
    assert calls == ["core", "torch"]
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_what_is_not_a_number_stays_so(calls):
    query, key, mask = torch.ones(1, 2, 2, 16), torch.ones(1, 2, 8, 16), torch.ones(1, 1, 2, 8)
    key[:, 0, 3] = torch.nan
    mask = mask.bool()
    mask[..., 1, 2:] = False  # the second token does not see it
    found, _ = cpu_kernels.attend(Layer(1), query, key, torch.ones_like(key), mask)
    wanted = torch.ones(1, 2, 2, 16)
    wanted[0, 0, 0] = torch.nan
    assert calls == ["core"]
    torch.testing.assert_close(found, wanted, equal_nan=True)
    found, _ = cpu_kernels.attend(Layer(1), query * torch.nan, key, torch.ones_like(key), mask)
    assert found.isnan().all()


def test_what_does_not_fit_is_left_to_torch(calls):
    query, key = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 8, 16)
    mask = torch.ones(1, 1, 3, 8, dtype=torch.bool)
    transposed = torch.ones(1, 1, 8, 3, dtype=torch.bool).transpose(2, 3)
    for given, options in (
        ((query, key, None), {}),  # causal
        ((query[..., :12], key[..., :12], mask), {}),
        ((query.clone().requires_grad_(), key, mask), {}),
        ((query, key, mask.expand(1, 2, 3, 8)), {}),
        ((query, key, transposed), {}),
        ((query, key, mask), {"position_bias": torch.zeros(1, 2, 3, 8)}),
        ((query.half(), key.half(), mask), {}),
    ):
        calls.clear()
        cpu_kernels.attend(Layer(1), given[0], given[1], *given[1:], **options)
        assert calls == ["torch"]
    with pytest.raises(ValueError, match="softcap"):
        cpu_kernels.attend(Layer(1), query, key, key, mask, softcap=30.0)


@pytest.mark.parametrize("window", [None, 9])
def test_decoding_equals_that_of_sdpa(window, calls):
    """Responses of a batch, and trees of drafts: the model's own text with attention of torch."""
    model = (
        build_model(MistralConfig, sliding_window=window) if window else build_model(LlamaConfig)
    )
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 3], [1, 2, 3, 4, 1, 2]]
    wanted = [
        model.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False, eos_token_id=None)
        for p in prompts
    ]
    assert use_cpu_kernels(model)
    responses = list(generate_responses(model, prompts, 12, stop_token_ids=[]))
    assert "core" in calls
    for number, tokens, *_ in responses:
        assert [*prompts[number], *tokens] == wanted[number][0].tolist()
    calls.clear()
    for prompt, row in zip(prompts, wanted, strict=True):
        result = generate(model, prompt, "mixture", max_new_tokens=12, stop_token_ids=[])
        assert [*prompt, *result.token_ids] == row[0].tolist()
    assert "core" in calls


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of states that the core's linear layers read; they are used on every processor."""
    seen: list[int] = []
    inner = linear_module._core.apply_linear
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        monkeypatch.setitem(linear_module.MOST_STATES, dtype, 3000)
    monkeypatch.setattr(
        linear_module._core, "apply_linear", lambda *args: (seen.append(args[0][0]), inner(*args))
    )
    return seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear_layers_equal_those_of_torch(dtype, has_bias, layers):
    random = torch.Generator().manual_seed(1)
    weight = torch.randn(101, 96, generator=random).to(dtype)
    bias = torch.randn(101, generator=random).to(dtype) if has_bias else None
    states = torch.randn(2, 1019, 96, generator=random).to(dtype)
    wanted = torch.nn.functional.linear(
        states.double(), weight.double(), None if bias is None else bias.double()
    )
    found = linear(states, weight, bias)
    assert layers == [2038]  # in parts
    tolerance = 0.0 if dtype == torch.float32 else 2.0**-8  # (bfloat16) of the rounded result
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=tolerance)
    for count in range(1, 8):
        some = linear(states[:, :count], weight, bias)
        assert torch.equal(some, found[:, :count])  # to the last bit


def test_linear_layers_that_do_not_fit_are_left_to_torch(layers):
    weight, states = torch.randn(8, 32), torch.randn(3, 32)
    for given in (
        (states[:, :24], weight[:, :24]),
        (states[:0], weight),
        (states, weight.t().contiguous().t()),
        (states.clone().requires_grad_(), weight),
        (states.to(torch.float64), weight.to(torch.float64)),
        (states.expand(1001, 3, 32), weight),
        (states, weight, torch.randn(16)[::2]),
        (states, weight[0]),
    ):
        assert torch.equal(linear(*given), torch.nn.functional.linear(*given))
    quantized = weight.as_subclass(type("Quantized", (torch.Tensor,), {}))
    assert torch.equal(linear(states, quantized), torch.nn.functional.linear(states, weight))
    traced = torch.jit.trace(lambda given: linear(given, weight), states, check_trace=False)
    assert torch.equal(traced(2.0 * states), torch.nn.functional.linear(2.0 * states, weight))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(states, torch.ones_like(states))
        assert forward_ad.unpack_dual(linear(dual, weight)).tangent is not None
    mapped = torch.vmap(lambda given: linear(given, weight))(states)
    assert torch.equal(mapped, torch.nn.functional.linear(states, weight))
    negative = torch._neg_view(states)
    assert torch.equal(linear(negative, weight), torch.nn.functional.linear(negative, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(states, weight).dtype == torch.bfloat16
    assert layers == []
    for given in (
        (states[:, :16], weight),
        (states, weight, torch.randn(9)),
        (states[0, 0], weight),
    ):
        with pytest.raises(RuntimeError):
            linear(*given)
    with pytest.raises(RuntimeError, match="same dtype"):
        linear(states.bfloat16(), weight)
    with pytest.raises(ValueError, match="inputs of 24 numbers; expected a multiple of 16"):
        _core.apply_linear((1, 1, 24), "float32", 4, 0, 0, 0, 0, 1)


def test_first_head_of_a_model_with_layers_of_the_core(layers):
    model = build_model(LlamaConfig)
    use_cpu_kernels(model)
    output = model.get_output_embeddings()
    assert isinstance(output, linear_module.CpuLinear)
    hidden = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(FirstHead(output, HeadNetwork(64, 8))(hidden), output(hidden))
    assert layers == [3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_drafts_with_linear_layers_of_the_core(dtype, layers):
    """The text of single tokens with the same layers."""
    model = build_model(LlamaConfig).to(dtype)
    assert use_cpu_kernels(model) == (dtype != torch.float16)  # attention of these is torch's
    prompt = [5, 6, 7, 5, 6, 7, 5, 6]
    wanted = model.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)
    layers.clear()
    options = {"max_new_tokens": 32, "stop_token_ids": [], "max_nodes": 4}
    result = generate(model, prompt, "mixture", **options)
    assert [*prompt, *result.token_ids] == wanted[0].tolist()
    assert max(layers[-30:]) > 1  # drafts were read by them


def test_only_models_that_have_sdpa_in_a_known_type():
    model = build_model(Gemma2Config)  # capped logits: transformers takes eager
    assert not use_cpu_kernels(model)
    assert model.config._attn_implementation == "eager"
    assert not use_cpu_kernels(build_model(LlamaConfig).half())
    sparse = make_tiny_model(GlmMoeDsaForCausalLM, GlmMoeDsaConfig())  # it masks what it knows
    sparse.set_attn_implementation("sdpa")
    options = {"do_sample": False, "max_new_tokens": 16}
    wanted = sparse.generate(torch.tensor([[*range(5, 20)]]), **options)
    use_cpu_kernels(sparse)
    assert torch.equal(sparse.generate(torch.tensor([[*range(5, 20)]]), **options), wanted)


PROMPT = [5, 6, 7, 5, 6, 7, 5, 6]
LIMIT: dict[str, Any] = {"max_new_tokens": 12}


def state_of(model: PreTrainedModel) -> list[Any]:
    """What the core's kernels change, and what they might."""
    configs = [model.config, *(one.config for one in model.modules() if hasattr(one, "config"))]
    state: list[Any] = [(id(one), type(one), sorted(vars(one))) for one in model.modules()]
    state += [(id(one), one._attn_implementation, sorted(vars(one))) for one in configs]
    hooks = [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()]
    return [*state, hooks, torch.get_num_threads(), ALL_ATTENTION_FUNCTIONS["sdpa"]]


def plain(model: PreTrainedModel, prompt: Sequence[int] = PROMPT) -> list[int]:
    ids = torch.tensor([list(prompt)])
    tokens: list[int] = model.generate(ids, do_sample=False, **LIMIT)[0, len(prompt) :].tolist()
    return tokens


class Streamer:
    """Calls a function with the number of values that it got: the prompt, then tokens."""

    def __init__(self, function: Any) -> None:
        self.count, self.function = 0, function

    def put(self, _value: Any) -> None:
        self.count += 1
        self.function(self.count)

    def end(self) -> None:
        pass


def custom(model: PreTrainedModel, streamer: Any = None, **options: Any) -> list[int]:
    method = CustomGenerate(**options)
    output = model.generate(
        torch.tensor([PROMPT]), custom_generate=method, do_sample=False, streamer=streamer, **LIMIT
    )
    tokens: list[int] = output[0, len(PROMPT) :].tolist()
    return tokens


WAYS: dict[str, Any] = {
    "generate": lambda model, **how: generate(model, PROMPT, **LIMIT, **how).token_ids,
    "decode": lambda model, **how: (
        decode(model, PROMPT, PlantedDrafts([1] * 9, 48), **LIMIT, **how).token_ids
    ),
    "custom_generate": custom,
    "certificate": lambda model, **how: (
        generate(model, PROMPT, certificate=True, **LIMIT, **how).token_ids
    ),
    "stream": lambda model, **how: (
        generate(model, PROMPT, streamer=Streamer(lambda _: None), **LIMIT, **how).token_ids
    ),
    "rules": lambda model, **how: (
        generate(
            model, PROMPT, generation_config=GenerationConfig(repetition_penalty=1.0), logprobs=2,
            **LIMIT, **how,
        ).token_ids
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_calls_use_the_kernels_and_leave_the_model_as_it_was(way, calls, layers):
    model = build_model(LlamaConfig)
    wanted, before = plain(model), state_of(model)
    assert not calls
    assert not layers
    assert WAYS[way](model) == wanted
    assert "core" in calls
    assert layers
    assert state_of(model) == before
    calls.clear()
    layers.clear()
    assert WAYS[way](model, cpu_kernels=False) == wanted == plain(model)
    assert not calls
    assert not layers


def test_batches_chats_and_samples_use_the_kernels(calls, layers):
    model = build_model(LlamaConfig)
    prompts = [PROMPT, [9, 3], [1, 2, 3, 4, 1, 2]]
    wanted, before = [plain(model, prompt) for prompt in prompts], state_of(model)
    assert [one.token_ids for one in generate(model, prompts, **LIMIT)] == wanted
    assert "core" in calls
    assert layers
    assert state_of(model) == before
    first = generate(model, PROMPT, max_new_tokens=5, cache=True)
    text = [*PROMPT, *first.token_ids]
    for how in ({"cpu_kernels": False}, {}):  # a cache is the same with them and without
        second = generate(model, text, max_new_tokens=7, cache=first.cache, **how)
        assert second.stats.cached_tokens >= len(text) - 1
        assert [*first.token_ids, *second.token_ids] == wanted[0]
    rule = Sampled(temperature=1.5, seed=3)
    samples = [
        generate(model, PROMPT, acceptance=rule, cpu_kernels=on, **LIMIT).token_ids
        for on in (True, False)
    ]
    assert samples[0] == samples[1]
    assert state_of(model) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_after_an_exception_the_model_is_as_it_was(error, count, calls, layers):
    model = build_model(LlamaConfig)
    before = state_of(model)

    def stop(number: int) -> None:
        if number == count:
            raise error

    for call in (
        lambda: generate(model, PROMPT, streamer=Streamer(stop), **LIMIT),
        lambda: custom(model, streamer=Streamer(stop)),
    ):
        with pytest.raises(error):
            call()
        assert state_of(model) == before
    assert count == 1 or ("core" in calls and layers)  # the first value is the prompt
    lent, ended = cpu_kernels.Kernels._change, []

    def interrupt(kernels: Any, old: Any, new: Any) -> None:
        if new is cpu_kernels._LENT:
            kernels.layers[0].__class__ = new.layer
            raise KeyboardInterrupt
        ended.append(new)
        lent(kernels, old, new)

    with pytest.MonkeyPatch.context() as patch:  # while they are lent
        patch.setattr(cpu_kernels.Kernels, "_change", interrupt)
        with pytest.raises(KeyboardInterrupt):
            generate(model, PROMPT, **LIMIT)
    assert ended
    assert state_of(model) == before
    assert CALL.kernels is None


def test_a_call_inside_a_call(calls, layers):
    model = build_model(LlamaConfig)
    wanted, before, inner = plain(model), state_of(model), []

    def again(number: int) -> None:
        if number in (2, 6):
            calls.clear()
            inner.append(generate(model, PROMPT, cpu_kernels=number == 2, **LIMIT).token_ids)
            inner.append("core" in calls)
            calls.clear()

    assert generate(model, PROMPT, "greedy", streamer=Streamer(again), **LIMIT).token_ids == wanted
    assert inner == [wanted, True, wanted, False]
    assert set(calls) == {"core"}  # those after it
    assert state_of(model) == before


def test_calls_of_several_threads(monkeypatch, layers):
    """One is in the middle of a text while others begin and end; the model's own is torch's."""
    model = build_model(LlamaConfig)
    wanted, before = plain(model), state_of(model)
    seen: dict[int, set[str]] = defaultdict(set)

    def note(name: str, inner: Any) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            seen[threading.get_ident()].add(name)
            return inner(*args, **options)

        return noted

    core, torchs = cpu_kernels._core.attend, cpu_kernels.sdpa_attention_forward
    monkeypatch.setattr(cpu_kernels._core, "attend", note("core", core))
    monkeypatch.setattr(cpu_kernels, "sdpa_attention_forward", note("torch", torchs))
    me, outputs = threading.get_ident(), []

    def run(call: Any) -> set[str]:
        thread = threading.Thread(target=lambda: outputs.append(call()))
        thread.start()
        thread.join()
        return seen.pop(thread.ident, set())  # type: ignore[arg-type]

    def others(number: int) -> None:
        if number == 4:
            assert run(lambda: generate(model, PROMPT, "greedy", **LIMIT).token_ids) >= {"core"}
            layers.clear()
            off = run(lambda: generate(model, PROMPT, cpu_kernels=False, **LIMIT).token_ids)
            assert off == run(lambda: plain(model)) == {"torch"}
            assert not layers
            seen[me].clear()

    result = generate(model, PROMPT, "greedy", streamer=Streamer(others), **LIMIT)
    assert outputs == [wanted] * 3
    assert result.token_ids == wanted
    assert seen[me] == {"core"}
    assert layers
    assert state_of(model) == before
    barrier = threading.Barrier(4)

    def decode_often() -> None:
        barrier.wait()
        outputs.extend(generate(model, PROMPT, **LIMIT).token_ids for _ in range(12))

    threads = [threading.Thread(target=decode_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == [wanted] * 51
    assert state_of(model) == before


def test_who_wants_the_kernels_in_all_calls_keeps_them(calls, layers):
    models = [build_model(LlamaConfig) for _ in range(2)]
    wanted = plain(models[0])
    assert use_cpu_kernels(models[0])
    streamer = Streamer(lambda number: number == 3 and use_cpu_kernels(models[1]))
    for model in models:
        kept = state_of(model)
        assert generate(model, PROMPT, streamer=streamer, **LIMIT).token_ids == wanted
        if model is models[0]:
            assert state_of(model) == kept
        assert use_cpu_kernels(model)
        assert isinstance(model.lm_head, linear_module.CpuLinear)
        assert not model.lm_head.is_lent
        calls.clear()
        layers.clear()
        assert plain(model) == wanted
        assert "core" in calls
        assert layers


def test_the_kernels_are_no_change_of_the_model(layers):
    model = build_model(LlamaConfig)
    generate(model, PROMPT, **LIMIT)
    known = facts_of(model)
    names = set(known)
    inside: list[Any] = []
    generate(model, PROMPT, streamer=Streamer(lambda _: inside.append(facts_of(model))), **LIMIT)
    assert all(one is known for one in inside)
    use_cpu_kernels(model)
    generate(model, PROMPT, **LIMIT)
    assert facts_of(model) is known
    assert set(known) == names
    assert costs_of(model) is not costs_of(model, cpu_kernels=False)  # other times


def test_draft_models_and_rescorers_use_the_kernels(calls, layers):
    model, small = build_model(LlamaConfig), build_model(MistralConfig)
    wanted, before = plain(model), [state_of(model), state_of(small)]
    heads = BlockwiseHeads(64, 3, 16, vocab_size=48)
    for on in (True, False):
        seen: list[Any] = []
        handle = small.base_model.register_forward_hook(
            lambda *_, seen=seen: seen.append(type(small.lm_head))
        )
        options = {"lm": small, "heads": heads, "cpu_kernels": on, **LIMIT}
        assert generate(model, PROMPT, "neural", **options).token_ids == wanted
        handle.remove()
        kind = linear_module.LentLinear if on else torch.nn.Linear
        assert seen
        assert set(seen) == {kind}
        assert [state_of(model), state_of(small)] == before


def test_compiled_models_stay_compiled(calls, layers):
    for compile_part in (
        lambda model: model.base_model.compile(backend="eager"),
        lambda model: model.model.layers[1].compile(backend="eager"),
        lambda model: setattr(
            model.model, "forward", torch.compile(model.model.forward, backend="eager")
        ),
        lambda model: model.model.layers.__setitem__(
            0, torch.compile(model.model.layers[0], backend="eager")
        ),
    ):
        model = build_model(LlamaConfig)
        wanted = plain(model)
        compile_part(model)
        before = state_of(model)
        assert generate(model, PROMPT, **LIMIT).token_ids == wanted
        assert not use_cpu_kernels(model)
        assert state_of(model) == before
        assert not calls
        assert not layers
    torch._dynamo.reset()


def test_parts_with_other_attention_and_models_that_ask_for_sdpa(caplog):
    ok = build_model(LlamaConfig)
    assert len(cpu_kernels.Kernels(ok).configs) == 1
    ok.set_attn_implementation("eager")
    wanted, before = plain(ok), state_of(ok)
    assert generate(ok, PROMPT, **LIMIT).token_ids == wanted
    assert state_of(ok) == before
    assert cpu_kernels.Kernels(ok).configs == []
    assert caplog.records == []
    for name, depends in (
        ("gemma4.modeling_gemma4", True), ("glm5_next.modeling_glm5_next", True),
        ("llama.modeling_llama", False), ("gpt2.modeling_gpt2", False),
    ):  # fmt: skip
        found = importlib.util.find_spec(f"transformers.models.{name}")
        if found is not None:
            module = importlib.import_module(f"transformers.models.{name}").__name__
            assert cpu_kernels._depends_on_sdpa(module) == depends
    assert not cpu_kernels._depends_on_sdpa("no module")
