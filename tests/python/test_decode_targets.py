"""Targets of many architectures, by several threads, and states of their layers: as `generate`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormForCausalLM,
)

from blockwise_models import CACHE_NAME, model_of
from lattice_bpd.decode import decode, generate
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.models.lm_call import unwrap_model
from lattice_bpd.train.head_states import read_hidden
from lattice_bpd.verify import CausalLMTarget, PrefixTree, rounding
from lattice_bpd.verify.rounding import logits_match
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.verification import lay_out_tree
from lattice_bpd_conformance.check import InformedHeads
from planted_drafts import PlantedDrafts, randomize
from target_models import (
    ATTENTION,
    COUNT,
    PROMPTS,
    VOCAB,
    build_target,
    generated,
    plain_generate,
    planted,
)

OPTIONS = {"max_new_tokens": COUNT}
BY_SLOT = ["gpt_neo", "llama4"]


@pytest.mark.parametrize("kind", ATTENTION)
def test_single_outputs_are_those_of_generate(kind):
    model, outputs = build_target(kind), generated(kind)
    assert decode(model, PROMPTS[0], NoDrafter(), **OPTIONS).token_ids == outputs[0]
    calls = 0
    for num_drafts in (1, 2):
        for prompt, drafter, output in zip(
            PROMPTS[:2], planted(kind, num_drafts=num_drafts)[:2], outputs[:2], strict=True
        ):
            result = decode(model, prompt, drafter, **OPTIONS)
            assert result.token_ids == output
            calls += result.stats.target_calls
    assert calls < 0.6 * 4 * COUNT  # drafts were accepted
    assert generate(model, PROMPTS[1], "mixture", **OPTIONS).token_ids == outputs[1]


@pytest.mark.parametrize("kind", sorted(set(ATTENTION) - {*BY_SLOT, "roformer"}))
def test_ragged_batches_are_equal_to_generate_of_each_alone(kind):
    model, outputs = build_target(kind), generated(kind)
    for drafter in (NoDrafter(), planted(kind, num_drafts=2)):
        results = decode(model, PROMPTS, drafter, **OPTIONS)
        assert [result.token_ids for result in results] == outputs


@pytest.mark.parametrize("kind", ["gemma4", "mlp_first"])
def test_layers_that_hold_nothing_in_other_caches(kind):
    """A draft model's, and that of a causal LM that rescores."""
    model, outputs = build_target(kind), generated(kind)
    drafted = generate(model, PROMPTS[0], "draft_model", lm=model, **OPTIONS)
    assert drafted.token_ids == outputs[0]
    assert drafted.stats.target_calls < 0.6 * COUNT
    heads = InformedHeads([[*PROMPTS[0], *outputs[0]]], VOCAB)
    rescored = generate(model, PROMPTS[0], "neural", heads=heads, lm=model, **OPTIONS)
    assert rescored.token_ids == outputs[0]
    assert rescored.stats.target_calls < 0.6 * COUNT


@pytest.mark.parametrize("kind", BY_SLOT)
def test_windows_that_count_cache_positions_are_refused_in_batches_and_trees(kind):
    model = build_target(kind)
    with pytest.raises(ValueError, match=r"see the last 8 cache positions.*one prompt at a time"):
        decode(model, PROMPTS, NoDrafter(), **OPTIONS)
    with pytest.raises(ValueError, match=r"see the last 8 cache positions.*layout='rows'"):
        decode(model, PROMPTS[0], planted(kind, num_drafts=2)[0], layout="tree", **OPTIONS)
    if kind == "gpt_neo":  # a window that no text reaches does not matter
        config = copy.deepcopy(model.config)
        config.window_size = window = 273  # 13 + 4 + 256 tokens of drafts
        wide = type(model)(config).eval()
        wide.load_state_dict(model.state_dict(), strict=False)  # without the masks
        results = decode(wide, PROMPTS, NoDrafter(), max_new_tokens=4)
        assert [one.token_ids for one in results] == [
            plain_generate(wide, prompt)[:4] for prompt in PROMPTS
        ]
        config.window_size = window - 1
        with pytest.raises(ValueError, match=r"cannot see all of texts of up to 273 tokens"):
            decode(type(model)(config).eval(), PROMPTS, NoDrafter(), max_new_tokens=4)


def test_decoders_that_read_in_both_directions_are_refused():
    config = RobertaPreLayerNormConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    models = [RobertaPreLayerNormForCausalLM(config).eval()]
    for seed in range(4):  # where attention is sharp, most tokens see one other only
        torch.manual_seed(seed)
        models.append(LlamaForCausalLM(copy.deepcopy(build_target("llama").config)).eval())
        models[-1].config.is_causal = False
        randomize(models[-1], 1.0)
    for model in models:
        with pytest.raises(ValueError, match=r"both directions \(then set is_decoder=True"):
            generate(model, PROMPTS[0], "mixture", **OPTIONS)


@pytest.mark.parametrize("kind", ["llama", "mamba2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_text_that_mismatches_by_rounding_is_no_reason_to_refuse(monkeypatch, kind, dtype):
    model = copy.deepcopy(build_target(kind)).to(dtype)
    seen: list[torch.Tensor] = []

    def match(base, actual, expected, wrong):
        seen.append(actual)
        return len(seen) not in (1, 3) and logits_match(base, actual, expected, wrong)

    monkeypatch.setattr(rounding, "logits_match", match)
    if dtype == torch.float32 and kind == "llama":
        with pytest.raises(ValueError, match="other logits"):
            generate(model, PROMPTS[0], "mixture", **OPTIONS)
        return
    generate(model, PROMPTS[0], "mixture", **OPTIONS)
    assert len({float(one.sum()) for one in seen[:4]}) == min(len(seen), 4)


def test_other_texts_neither_raise_nor_decide_alone():
    model = copy.deepcopy(build_target("llama")).to(torch.bfloat16)
    right, wrong = torch.ones(1, VOCAB), torch.zeros(1, VOCAB)

    def check(*results: Any) -> bool:
        left = list(results)

        def read(_tokens: list[int]) -> Any:
            result = left.pop(0)
            if isinstance(result, Exception):
                raise result
            return None if result is None else (result, right, wrong)

        answer = rounding.texts_match(CausalLMTarget(model), (1, 2, 3), read)
        assert not left
        return answer

    assert check(right)
    assert check(wrong, right, None, right)
    assert not check(wrong, right, ValueError("an image token"), wrong)
    with pytest.raises(ValueError, match="too long"):
        check(ValueError("too long"))
    with pytest.raises(torch.OutOfMemoryError):
        check(None, torch.OutOfMemoryError("CUDA out of memory"))


def test_decoders_that_read_in_both_directions_are_refused_in_bfloat16():
    for seed in range(4):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(copy.deepcopy(build_target("llama").config)).eval()
        model.config.is_causal = False
        randomize(model, 1.0)
        with pytest.raises(ValueError, match=r"both directions \(then set is_decoder=True"):
            generate(model.to(torch.bfloat16), PROMPTS[0], "mixture", **OPTIONS)


@pytest.mark.parametrize("enabled", [True, False])
def test_no_call_takes_attention_of_cudnn(enabled):
    cuda, seen, inside = torch.backends.cuda, list[bool](), Barrier(2)
    was = cuda.cudnn_sdp_enabled()

    def run(number: int) -> None:
        model = copy.deepcopy(build_target("llama"))

        def note(*_: Any) -> None:
            seen.append(cuda.cudnn_sdp_enabled())
            if len(seen) <= 2:
                inside.wait(10)

        model.base_model.register_forward_pre_hook(note)
        # One of the threads leaves long before the other.
        generate(model, PROMPTS[0], "mixture", max_new_tokens=4 + 12 * number)

    try:
        cuda.enable_cudnn_sdp(enabled)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range(2)))
        assert cuda.cudnn_sdp_enabled() is enabled
    finally:
        cuda.enable_cudnn_sdp(was)
    assert len(seen) > 10
    assert not any(seen)


@pytest.mark.parametrize("kind", ["llama", "bert", "minicpm3", "gemma2"])
def test_logits_and_hidden_states_are_those_of_forward_in_every_call(kind):
    model = build_target(kind)
    target, text = CausalLMTarget(model), torch.tensor([PROMPTS[0]])
    with torch.inference_mode():
        positions = torch.arange(13)[None]
        inputs = {"input_ids": text, "position_ids": positions, "use_cache": False}
        logits = model(**inputs).logits
        seen: list[torch.Tensor] = []
        embedding = model.get_output_embeddings()
        handle = embedding.register_forward_hook(lambda _m, args, _out: seen.append(args[0]))
        model(**inputs)
        prompt, cache = target.read_prompts(text[:, :9])
        handle.remove()
        later = target(text[:, 9:], cache, position_ids=positions[:, 9:])
        whole = read_hidden(model, text)
    for actual, wanted in (
        (prompt.logits, logits[:, 8:9]), (later.logits, logits[:, 9:]),
        (prompt.hidden, seen[0][:, 8:9]), (later.hidden, seen[0][:, 9:]), (whole, seen[0]),
    ):  # fmt: skip
        torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-5)
    if kind != "bert":  # logits of all tokens of a long prompt would not fit into memory
        assert seen[1].shape[1] == 1


class Wrapper(nn.Module):
    """Holds a model; computes what `change` makes of its logits."""

    def __init__(self, model, change=None):
        super().__init__()
        self.inner, self.change = model, change

    def forward(self, **inputs):
        output = self.inner(**inputs)
        if self.change is not None:
            output.logits = self.change(output.logits)
        return output


@pytest.mark.parametrize("wrap", [Wrapper, nn.DataParallel, torch.compile])
def test_wrapped_models_are_unwrapped(wrap):
    model = build_target("llama")
    result = generate(wrap(model), PROMPTS[1], "mixture", **OPTIONS)
    assert result.token_ids == generated("llama")[1]
    assert CausalLMTarget(wrap(model)).base is model


def test_wrappers_that_change_logits_are_refused():
    with pytest.raises(TypeError, match="Wrapper around a LlamaForCausalLM, and computes other"):
        generate(Wrapper(build_target("llama"), lambda x: x + torch.arange(VOCAB)), [1], "mixture")
    two = nn.ModuleList([build_target("llama"), build_target("mistral")])
    assert unwrap_model(two) is two
    with pytest.raises(TypeError, match="model is a ModuleList; expected a causal LM"):
        generate(two, [1], "mixture")


def test_targets_that_cannot_work_are_refused_before_anything_is_decoded():
    sizes = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 1, "n_head": 2}
    with pytest.raises(ValueError, match="OpenAIGPTLMHeadModel takes no KV cache"):
        generate(OpenAIGPTLMHeadModel(OpenAIGPTConfig(**sizes)), [1], "mixture")
    bloom = BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(ValueError, match="BloomForCausalLM takes no position ids"):
        decode(bloom.eval(), PROMPTS, NoDrafter())
    with pytest.raises(TypeError, match="LlamaModel has no output embedding"):
        generate(build_target("llama").model, [1], "mixture")


def test_a_model_that_fails_on_a_warm_cache_is_refused(monkeypatch):
    model = copy.deepcopy(build_target("llama"))
    whole = model.model.forward

    def forget(*args, **kwargs):
        if kwargs[CACHE_NAME].get_seq_length() > 0 and kwargs["input_ids"].shape[1] > 1:
            kwargs["input_ids"] = kwargs["input_ids"].flip(1)
        return whole(*args, **kwargs)

    monkeypatch.setattr(model.model, "forward", forget)
    with pytest.raises(ValueError, match="other logits for several tokens at once"):
        generate(model, PROMPTS[0], "mixture")


@pytest.mark.parametrize("kind", ["gemma2", "mistral"])
def test_each_layer_of_a_tree_call_is_given_its_own_window(kind):
    """Logits, not tokens: far context rarely decides the argmax of a random model."""
    model = model_of(kind).base
    target = CausalLMTarget(model)
    text = torch.tensor([[token % model.config.vocab_size for token in range(3, 43)]])
    with torch.inference_mode():
        _, cache = target.read_prompts(text[:, :34])
        tree = PrefixTree.from_drafts(int(text[0, 34]), [text[0, 35:].tolist(), [1, 2]])
        rows = Rows.from_cache(cache)
        call = lay_out_tree(target, rows, [tree])
        logits = target(
            call.input_ids, rows, attention_mask=call.attention_mask,
            windowed_mask=call.windowed_mask, position_ids=call.position_ids,
        ).logits[0]  # fmt: skip
        wanted = model(input_ids=text, use_cache=False).logits[0, 34:]
        config = copy.deepcopy(model.config)
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers
        windowed = type(model)(config).eval()
        windowed.load_state_dict(model.state_dict())
        other = windowed(input_ids=text, use_cache=False).logits[0, 34:]
    nodes = [tree.token_ids.index(int(token)) for token in text[0, 34:]]
    torch.testing.assert_close(logits[nodes], wanted, rtol=1e-5, atol=1e-6)
    if kind == "gemma2":  # so a layer that sees everything would show, were it given the window
        assert float((other - wanted).abs().max()) > 1e-4


def test_training_mode_without_dropout_decodes_as_generate_does():
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    wanted = plain_generate(model, PROMPTS[0])
    assert generate(model, PROMPTS[0], "mixture", **OPTIONS).token_ids == wanted
    model.gradient_checkpointing_enable()  # transformers then leaves the cache out
    with pytest.raises(ValueError, match="training mode, with dropout or gradient checkpointing"):
        generate(model, PROMPTS[0], "mixture", **OPTIONS)
    config.attention_dropout = 0.1  # a number that attention reads, no module
    with pytest.raises(ValueError, match=r"call model\.eval\(\)"):
        generate(LlamaForCausalLM(config).train(), PROMPTS[0], "mixture", **OPTIONS)


TURNS = 3


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Threads take turns within a call of the target."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_together(work: Callable[[int], list[int]], count: int) -> list[list[list[int]]]:
    """What work(0), .., work(count - 1) return, each TURNS times in a thread of its own."""
    start = Barrier(count)

    def begin(number: int) -> list[list[int]]:
        start.wait(timeout=60)
        return [work(number) for _ in range(TURNS)]

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


# With a hook on the output embedding in each call (Cohere, BERT), or in the first one only (Llama).
@pytest.mark.parametrize("kind", ["llama", "cohere", "bert", "qwen3_next"])
@pytest.mark.usefixtures("frequent_switches")
def test_threads_decode_with_one_model_as_if_alone(kind: str) -> None:
    model, expected = build_target(kind), generated(kind)

    def work(number: int) -> list[int]:
        prompt, output = PROMPTS[number], expected[number]
        drafter = PlantedDrafts(output, VOCAB, num_drafts=2)
        return decode(model, prompt, drafter, max_new_tokens=COUNT).token_ids

    assert run_together(work, len(PROMPTS)) == [[output] * TURNS for output in expected]


class WatchingHeads(InformedHeads):
    """Informed heads that keep the features that they are given."""

    def __init__(self, *args: Any, layers: tuple[int, ...]) -> None:
        super().__init__(*args)
        self.hidden_layers = layers

    def read_states(self, states: Sequence[Any]) -> Tensor:
        for state in states:
            state.memory = [*(state.memory or []), state.take_features()]
            assert sum(map(len, state.memory)) == len(state.tokens) - 1
            self.seen[tuple(state.tokens[:-1])] = torch.cat(state.memory)
        return super().read_states(states)

    seen: dict[tuple[int, ...], Tensor]


def check(kind: str, count: int, layers: tuple[int, ...], **options: Any) -> None:
    """Features along decoded texts against one plain forward over each."""
    model, prompts = build_target(kind), PROMPTS[:count]
    texts = [prompt + new for prompt, new in zip(PROMPTS, generated(kind), strict=True)][:count]
    heads = WatchingHeads(texts, VOCAB, layers=layers)
    heads.seen = {}
    results = generate(
        model, prompts, options.pop("drafter", "tree"), heads=heads, max_new_tokens=COUNT, **options
    )
    assert [result.token_ids for result in results] == generated(kind)[:count]
    assert any(any(result.stats.accept_lengths) for result in results)
    assert len(heads.seen) > 2 * count
    for tokens, features in heads.seen.items():
        with torch.inference_mode():
            output = model(torch.tensor([tokens]), output_hidden_states=True)
        expected = torch.cat([output.hidden_states[layer + 1][0] for layer in layers], dim=-1)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "bert", "gemma2"])
def test_features_are_those_of_a_plain_forward(kind: str, layout: str) -> None:
    check(kind, 1, (0,), layout=layout)
    check(kind, 3, (-1, 0, 1), layout=layout)


def test_layers_that_the_target_does_not_have() -> None:
    model = build_target("llama")
    heads = WatchingHeads([[1, 2]], VOCAB, layers=(0, 7))
    with pytest.raises(ValueError, match=r"read layers \(0, 7\) of LlamaForCausalLM, which has"):
        generate(model, PROMPTS[0], heads=heads)


def test_rounding_matches_where_the_wrong_context_is_right():
    """A window of a few tokens hides that the context is another one."""
    base = build_target("llama")
    random = torch.Generator().manual_seed(0)
    expected = 2.0 * torch.randn(6, 64, generator=random)
    rounded = expected + 2e-6 * torch.randn(6, 64, generator=random)
    wrong = expected + 1e-6 * torch.randn(6, 64, generator=random)
    assert logits_match(base, rounded, expected, wrong)
    assert not logits_match(base, expected + 1e-4, expected, wrong)
