"""The core's attention and linear layers against torch's, alone and within models."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402
from transformers import (  # noqa: E402  # noqa: E402
    AutoModelForCausalLM,
    Gemma2Config,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
)

from lattice_bpd import _core  # noqa: E402
from lattice_bpd.decode import generate  # noqa: E402
from lattice_bpd.models import linear as linear_module  # noqa: E402
from lattice_bpd.models.heads import FirstHead, HeadNetwork  # noqa: E402
from lattice_bpd.models.linear import linear  # noqa: E402
from lattice_bpd.train.responses.generation import generate_responses  # noqa: E402
from lattice_bpd.verify import cpu_kernels, use_cpu_kernels  # noqa: E402
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
