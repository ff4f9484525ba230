"""Targets that are changed, wrapped, adapted or limited: the output of `generate`, or refused."""

from __future__ import annotations

import copy
import functools
import types
import warnings

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from transformers import (
    GenerationConfig,
    LlamaForCausalLM,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)
from transformers.generation.streamers import BaseStreamer

from lattice_bpd.decode import CustomGenerate, DraftingModel, decode, generate
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd.models.lm_call import cache_argument
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify import CausalLMTarget, PrefixTree
from planted_drafts import PlantedDrafts, randomize
from target_models import COUNT, PROMPTS, VOCAB, build_target, generated, plain_generate

PROMPT = PROMPTS[0]


def new_llama():
    return copy.deepcopy(build_target("llama"))


def decoded(model, wanted, prompt=PROMPT):
    """The output with planted drafts, and that of `CustomGenerate`."""
    outputs = [
        generate(model, prompt, drafter, max_new_tokens=COUNT).token_ids
        for drafter in (NoDrafter(), PlantedDrafts(wanted, VOCAB, num_drafts=2))
    ]
    ids = torch.tensor([prompt])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": COUNT, "do_sample": False}
    custom = CustomGenerate(drafter=PlantedDrafts(wanted, VOCAB))
    output = model.generate(ids, **options, custom_generate=custom)
    return [*outputs, output[0, len(prompt) :].tolist()]


def rotate(logits):
    return logits.roll(7, dims=-1)


def by_hook(model):
    def hook(_module, _arguments, output):
        output.logits = rotate(output.logits)
        return output

    model.register_forward_hook(hook)


def by_content(model):
    """Changes logits after a token that no text of a comparison contains."""

    class Marked(LlamaForCausalLM):
        def forward(self, input_ids, **named):
            output = super().forward(input_ids, **named)
            marked = (input_ids == PROMPT[-1]) | (input_ids % 3 == 2)
            output.logits = torch.where(marked[..., None], rotate(output.logits), output.logits)
            return output

    model.__class__ = Marked


def by_weights(model):
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(7, dims=0))


def by_window(model):
    model.config.sliding_window = 4


@pytest.mark.parametrize(
    ("kind", "change"),
    [("llama", by_hook), ("llama", by_content), ("llama", by_weights), ("mistral", by_window)],
)
def test_changes_after_the_first_use_are_noticed(kind, change):
    drafting = DraftingModel(copy.deepcopy(build_target(kind)))
    model = drafting.target.base
    for target in (model, drafting):
        result = decode(target, PROMPT, NoDrafter(), max_new_tokens=COUNT)
        assert result.token_ids == generated(kind)[0]
    change(model)
    wanted = plain_generate(model, PROMPT)
    assert wanted != generated(kind)[0]
    assert decoded(model, wanted) == [wanted] * 3
    assert decode(drafting, PROMPT, NoDrafter(), max_new_tokens=COUNT).token_ids == wanted


def test_a_hook_registered_while_a_text_is_decoded_is_called():
    class HookAfter(BaseStreamer):
        def __init__(self, model):
            self.model, self.left = model, 6  # the prompt, then tokens

        def put(self, _value):
            self.left -= 1
            if self.left == 0:
                by_hook(self.model)

        def end(self):
            pass

    model = new_llama()
    plain_model = new_llama()
    plain = plain_model.generate(
        torch.tensor([PROMPT]), max_new_tokens=COUNT, do_sample=False,
        streamer=HookAfter(plain_model),
    )  # fmt: skip
    assert plain[0, len(PROMPT) :].tolist() != generated("llama")[0]
    result = generate(model, PROMPT, "greedy", max_new_tokens=COUNT, streamer=HookAfter(model))
    assert result.token_ids == plain[0, len(PROMPT) :].tolist()


def test_what_was_refused_is_tried_again_after_a_change():
    model = new_llama()
    whole = model.model.forward
    model.model.forward = lambda *a, **named: whole(*a, **{**named, "attention_mask": None})
    with pytest.raises(ValueError, match="does not keep the texts of a batch apart"):
        generate(model, PROMPTS, max_new_tokens=4)
    del model.model.forward
    results = generate(model, PROMPTS, max_new_tokens=COUNT)
    assert [result.token_ids for result in results] == generated("llama")


def with_soft_prompt(model, tokens=2):
    """What prompt tuning of PEFT does to a model during `generate`."""
    own = model.prepare_inputs_for_generation
    soft = torch.randn(1, tokens, model.config.hidden_size)

    def prepare(input_ids, **kwargs):
        inputs = {**own(input_ids, **kwargs), "attention_mask": None, "position_ids": None}
        if kwargs.get("is_first_iteration"):
            embedded = model.get_input_embeddings()(input_ids)
            inputs |= {"input_ids": None, "inputs_embeds": torch.cat([soft, embedded], dim=1)}
        return inputs

    model.prepare_inputs_for_generation = prepare


def with_steps(model, name="input_ids"):
    """Changes what is read after the prompt only."""
    own = model.prepare_inputs_for_generation

    def prepare(input_ids, is_first_iteration=False, **kwargs):
        inputs = own(input_ids, is_first_iteration=is_first_iteration, **kwargs)
        if not is_first_iteration:
            inputs[name] = (inputs[name] + 1) % VOCAB
        return inputs

    model.prepare_inputs_for_generation = prepare


@pytest.mark.parametrize(
    "change",
    [with_soft_prompt, with_steps, functools.partial(with_steps, name="position_ids")],
)
def test_inputs_that_a_model_prepares_in_its_own_way_are_refused(change):
    model = new_llama()
    change(model)
    assert plain_generate(model, PROMPT) != generated("llama")[0]  # it matters
    message = "prepare_inputs_for_generation of this LlamaForCausalLM changes what `forward` reads"
    with pytest.raises(ValueError, match=message):
        generate(model, PROMPT, max_new_tokens=4)


@pytest.mark.parametrize(
    ("kind", "options", "shown"),
    [
        ("LORA", {"alora_invocation_tokens": [8, 21]}, "LORA with alora_invocation_tokens"),
        ("XLORA", {}, "XLORA"),
        ("PROMPT_TUNING", {"is_prompt_learning": True}, "PROMPT_TUNING"),
    ],
)
def test_adapters_that_act_on_part_of_a_text_are_refused(kind, options, shown):
    model = new_llama()
    model.peft_config = {"default": types.SimpleNamespace(peft_type=kind, **options)}
    message = rf"adapter 'default' \({shown}\), which may act on part of a text"
    with pytest.raises(ValueError, match=message):
        generate(model, PROMPT, max_new_tokens=4)
    plain = types.SimpleNamespace(peft_type="LORA", alora_invocation_tokens=None)
    model.peft_config = {"default": plain}
    assert generate(model, PROMPT, max_new_tokens=COUNT).token_ids == generated("llama")[0]


def test_another_active_adapter_is_a_change():
    """What was measured of the model is measured again."""
    model = new_llama()
    layer = model.model.layers[0].mlp.up_proj
    layer._active_adapter, layer._disable_adapters = ["one"], False
    for name, value in (("_active_adapter", ["two"]), ("_disable_adapters", True)):
        facts = facts_of(model)
        assert facts_of(model) is facts
        setattr(layer, name, value)
        assert facts_of(model) is not facts


class Crowded(PlantedDrafts):
    """Six wrong tokens before the planted draft: what comes last exceeds a capacity first."""

    def draft(self, state):
        tree = super().draft(state)
        right = [] if tree is None else tree.token_ids[1:]
        wrong = [[(right[0] + other) % VOCAB] for other in range(1, 7 if right else 1)]
        return PrefixTree.from_drafts(state.tokens[-1], [*wrong, right])


@pytest.mark.parametrize("capacity", [1, 2, 4])
def test_drafts_keep_to_the_capacity_of_experts(capacity):
    """Switch Transformers drop the tokens of a call beyond the capacity of their expert."""
    torch.manual_seed(0)
    config = SwitchTransformersConfig(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
        num_heads=4, num_experts=2, expert_capacity=capacity, num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=2, dropout_rate=0.0, pad_token_id=0, eos_token_id=None,
        decoder_start_token_id=1,
    )  # fmt: skip
    model = SwitchTransformersForConditionalGeneration(config).eval()
    randomize(model)
    model.generation_config.eos_token_id = None
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        wanted = model.generate(ids, do_sample=False, max_new_tokens=COUNT)[0, 1:].tolist()
        for kind in (PlantedDrafts, Crowded):
            result = generate(model, prompt, kind(wanted, VOCAB), max_new_tokens=COUNT)
            assert result.token_ids == wanted
            if kind is PlantedDrafts:
                assert (result.stats.target_calls < COUNT) == (capacity > 1)


class CappedExperts(nn.Module):
    """A layer of two experts that serve the first `capacity` tokens of a call each."""

    def __init__(self, inner, **attributes):
        super().__init__()
        self.inner, self.router = inner, nn.Linear(32, 2, bias=False)
        vars(self).update(attributes)

    def forward(self, hidden):
        rows = hidden.flatten(0, 1)
        chosen = nn.functional.one_hot(self.router(rows).argmax(-1), 2)
        limit = getattr(self, "capacity", None) or max(1, int(len(rows) * self.capacity_factor / 2))
        served = ((chosen.cumsum(0) <= limit) & (chosen > 0)).any(-1)
        return self.inner(hidden) * served.view(*hidden.shape[:-1], 1)


@pytest.mark.parametrize("attributes", [{"capacity": 2}, {"capacity_factor": 1.0}])
def test_capacities_of_layers_of_ones_own_are_kept(attributes):
    model = new_llama()
    torch.manual_seed(1)
    for layer in model.model.layers:
        layer.mlp = CappedExperts(layer.mlp, **attributes)
    wanted = plain_generate(model, PROMPT)
    assert decoded(model, wanted) == [wanted] * 3
    crowded = Crowded(wanted, VOCAB)
    assert generate(model, PROMPT, crowded, max_new_tokens=COUNT).token_ids == wanted
    with pytest.raises(ValueError, match="has experts with a capacity"):
        generate(model, PROMPTS, max_new_tokens=4)


class Packed(nn.Module):
    """An output embedding as quantized ones are: a weight of another shape, or none."""

    def __init__(self, inner, kind):
        super().__init__()
        self.inner = inner
        if kind == "packed":
            self.weight = nn.Parameter(torch.zeros(100, 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, hidden):
        return self.inner(hidden)


@pytest.mark.parametrize("kind", ["none", "packed", "unknown"])
def test_output_embeddings_without_a_weight_matrix_decode(kind):
    model = new_llama()
    model.lm_head = Packed(model.lm_head, kind)
    if kind == "unknown":
        model.get_output_embeddings = lambda: None
    wanted = generated("llama")[0]
    assert plain_generate(model, PROMPT) == wanted
    assert decoded(model, wanted) == [wanted] * 3
    target = CausalLMTarget(model)
    assert (target.vocab_size, target.dtype) == (VOCAB, torch.float32)
    if kind == "none":
        with pytest.raises(TypeError, match="without a weight matrix"):
            generate(model, PROMPT, heads=BlockwiseHeads(32, 2), max_new_tokens=4)
    if kind == "unknown":
        with pytest.raises(TypeError, match=r"does not call its output.*decode without heads"):
            generate(model, PROMPT, heads=lambda hidden: hidden[:, None], max_new_tokens=4)


def test_a_checkpoint_s_cache_implementation_does_not_matter():
    model = new_llama()
    for own in ("offloaded", "hybrid", "sliding_window"):
        model.generation_config.cache_implementation = own
        assert generate(model, PROMPT, max_new_tokens=COUNT).token_ids == generated("llama")[0]
    output = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=COUNT, custom_generate=CustomGenerate()
    )
    assert output[0, 13:].tolist() == generated("llama")[0]
    model.generation_config.cache_implementation = "quantized"
    with pytest.raises(ValueError, match="cache_implementation='quantized' cannot be rolled back"):
        generate(model, PROMPT, max_new_tokens=4)
    config = GenerationConfig(cache_implementation="offloaded")
    with pytest.raises(ValueError, match="cache_implementation='offloaded' cannot"):
        generate(model, PROMPT, max_new_tokens=4, generation_config=config)


class PassesAll(LlamaForCausalLM):
    def forward(self, input_ids=None, **named):
        return super().forward(input_ids, **named)


def test_a_forward_that_passes_its_arguments_on_takes_a_cache():
    model = new_llama()
    name = cache_argument(model)
    model.__class__ = PassesAll
    assert cache_argument(model) == name
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert decoded(model, generated("llama")[0]) == [generated("llama")[0]] * 3
