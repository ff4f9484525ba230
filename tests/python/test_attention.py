"""The core's attention against torch's, alone and within models."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import (  # noqa: E402  # noqa: E402
    AutoModelForCausalLM,
    Gemma2Config,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedModel,
)

from lattice_bpd.decode import generate  # noqa: E402
from lattice_bpd.train.responses.generation import generate_responses  # noqa: E402
from lattice_bpd.verify import attention, use_cpu_attention  # noqa: E402
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

    monkeypatch.setattr(attention._core, "attend", note("core", attention._core.attend))
    torchs = attention.sdpa_attention_forward
    monkeypatch.setattr(attention, "sdpa_attention_forward", note("torch", torchs))
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
    found, _ = attention.attend(layer, query, key, value, given, scaling=scaling)
    wanted, _ = attention.sdpa_attention_forward(layer, query, key, value, given, scaling=scaling)
    assert calls == ["core", "torch"]
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_what_is_not_a_number_stays_so(calls):
    query, key, mask = torch.ones(1, 2, 2, 16), torch.ones(1, 2, 8, 16), torch.ones(1, 1, 2, 8)
    key[:, 0, 3] = torch.nan
    mask = mask.bool()
    mask[..., 1, 2:] = False  # the second token does not see it
    found, _ = attention.attend(Layer(1), query, key, torch.ones_like(key), mask)
    wanted = torch.ones(1, 2, 2, 16)
    wanted[0, 0, 0] = torch.nan
    assert calls == ["core"]
    torch.testing.assert_close(found, wanted, equal_nan=True)
    found, _ = attention.attend(Layer(1), query * torch.nan, key, torch.ones_like(key), mask)
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
        attention.attend(Layer(1), given[0], given[1], *given[1:], **options)
        assert calls == ["torch"]
    with pytest.raises(ValueError, match="softcap"):
        attention.attend(Layer(1), query, key, key, mask, softcap=30.0)


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
    assert use_cpu_attention(model)
    responses = list(generate_responses(model, prompts, 12, stop_token_ids=[]))
    assert "core" in calls
    for number, tokens, *_ in responses:
        assert [*prompts[number], *tokens] == wanted[number][0].tolist()
    calls.clear()
    for prompt, row in zip(prompts, wanted, strict=True):
        result = generate(model, prompt, "mixture", max_new_tokens=12, stop_token_ids=[])
        assert [*prompt, *result.token_ids] == row[0].tolist()
    assert "core" in calls


def test_only_models_that_have_sdpa_in_a_known_type():
    model = build_model(Gemma2Config)  # capped logits: transformers takes eager
    assert not use_cpu_attention(model)
    assert model.config._attn_implementation == "eager"
    assert not use_cpu_attention(build_model(LlamaConfig).half())
    sparse = make_tiny_model(GlmMoeDsaForCausalLM, GlmMoeDsaConfig())  # it masks what it knows
    sparse.set_attn_implementation("sdpa")
    options = {"do_sample": False, "max_new_tokens": 16}
    wanted = sparse.generate(torch.tensor([[*range(5, 20)]]), **options)
    use_cpu_attention(sparse)
    assert torch.equal(sparse.generate(torch.tensor([[*range(5, 20)]]), **options), wanted)
