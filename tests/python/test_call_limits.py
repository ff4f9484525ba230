"""Targets whose frequencies depend on a call's largest position decode as `generate` does."""

from __future__ import annotations

import copy
import functools
import warnings

import pytest

pytest.importorskip("torch")
import torch
import transformers
from torch import nn

from lattice_bpd.decode import CustomGenerate, generate
from planted_drafts import PlantedDrafts, randomize
from target_models import COUNT, VOCAB, plain_generate
from test_decode_targets import WatchingHeads

BOUNDARY = 16
LENGTHS = (5, 14, 15, 16, 17, 24)  # of prompts: before, at and after the boundary
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
_LONG = {
    "rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": BOUNDARY,
    "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 3.0, 5.0, 9.0],
}  # fmt: skip
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
_MAMBA = {
    "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
    "mamba_n_groups": 1, "mamba_chunk_size": 4,
}  # fmt: skip
KINDS = {
    "phi3": ("Phi3", {"original_max_position_embeddings": BOUNDARY, "rope_parameters": _LONG}),
    "longrope": ("Llama", {"rope_parameters": _LONG}),
    "longrope, window": ("Mistral", {"sliding_window": 8, "rope_parameters": _LONG}),
    "longrope, states": (
        "Bamba",
        {**_MAMBA, "rope_parameters": {**_LONG, "partial_rotary_factor": 1.0}},
    ),
    "dynamic": ("Llama", {"max_position_embeddings": BOUNDARY, "rope_parameters": _DYNAMIC}),
}  # fmt: skip


def _randomize(model):
    torch.manual_seed(0)
    randomize(model)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model.eval()


def build(kind):
    """A new model: the frequencies of some kinds depend on the texts read before."""
    name, options = KINDS[kind]
    config = getattr(transformers, f"{name}Config")(**copy.deepcopy({**_SIZES, **options}))
    return _randomize(getattr(transformers, f"{name}ForCausalLM")(config))


@functools.cache
def text_of(kind, length):
    """A prompt and the output of a new model's own `generate`."""
    generator = torch.Generator().manual_seed(length)
    prompt = torch.randint(1, VOCAB, (length,), generator=generator).tolist()
    return prompt, plain_generate(build(kind), prompt)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_across_a_boundary_are_those_of_generate(kind):
    model, accepted = build(kind), 0
    for length in LENGTHS:
        prompt, wanted = text_of(kind, length)
        for num_drafts in (1, 2):
            for layout in ("rows",) if kind == "longrope, states" else ("tree", "rows"):
                drafter = PlantedDrafts(wanted, VOCAB, num_drafts=num_drafts)
                result = generate(model, prompt, drafter, layout=layout, max_new_tokens=COUNT)
                assert (length, result.token_ids) == (length, wanted)
                accepted += result.stats.tokens - result.stats.target_calls
        assert generate(model, prompt, "mixture", max_new_tokens=COUNT).token_ids == wanted
        output = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, length), do_sample=False,
            max_new_tokens=COUNT, custom_generate=CustomGenerate(drafter="mixture"),
        )  # fmt: skip
        assert output[0, length:].tolist() == wanted
        assert plain_generate(model, prompt) == wanted  # ours leaves nothing in the model
        model(torch.tensor([[1]]))
    assert accepted > 30  # drafts before the boundary, and after it where frequencies are fixed


@pytest.mark.parametrize(("kind", "refused"), [("longrope", False), ("dynamic", True)])
def test_batches_are_on_one_side_of_a_boundary(kind, refused):
    model = build(kind)
    with pytest.raises(ValueError, match=r"change at position 16 for all texts of a call.*from 5"):
        generate(model, [text_of(kind, n)[0] for n in (5, 14)], "mixture", max_new_tokens=COUNT)
    few = generate(model, [text_of(kind, n)[0] for n in (5, 14)], "mixture", max_new_tokens=3)
    assert [one.token_ids for one in few] == [text_of(kind, n)[1][:3] for n in (5, 14)]
    longer = [text_of(kind, n) for n in (17, 24)]
    if refused:
        with pytest.raises(ValueError, match="change at position 16"):
            generate(model, [prompt for prompt, _ in longer], "mixture", max_new_tokens=COUNT)
        return
    drafters = [PlantedDrafts(wanted, VOCAB) for prompt, wanted in longer]
    results = generate(model, [prompt for prompt, _ in longer], drafters, max_new_tokens=COUNT)
    assert [one.token_ids for one in results] == [wanted for _, wanted in longer]


def test_calls_and_features_of_a_text_that_is_read_again():
    """Heads are given the features of each token once."""
    model, (prompt, wanted) = build("phi3"), text_of("phi3", 14)
    result = generate(model, prompt, "greedy", max_new_tokens=COUNT)
    assert (result.token_ids, result.stats.target_calls) == (wanted, COUNT)
    heads = WatchingHeads([prompt + wanted], VOCAB, layers=(0,))  # compares their number
    heads.seen = {}
    result = generate(model, prompt, "bpd", heads=heads, max_new_tokens=COUNT)
    assert (result.token_ids, result.stats.draft_failures) == (wanted, {})
    assert max(map(len, heads.seen)) > BOUNDARY + 4
    model(torch.tensor([[1]]))


def test_hidden_tokens_that_generate_counts_at_a_boundary():
    """Phi-3's own `generate` reads the text again where the prompt with its padding ends there."""
    model, (prompt, wanted) = build("phi3"), text_of("phi3", 5)
    options = {"max_new_tokens": COUNT, "min_new_tokens": COUNT, "do_sample": False}
    for hidden in ([0] * 4, [0] * 12):  # the prompt ends before and after the boundary
        inputs = {
            "input_ids": torch.tensor([[*hidden, *prompt]]),
            "attention_mask": torch.tensor([[*hidden, *[1] * len(prompt)]]),
        }
        assert model.generate(**inputs, **options)[0, -COUNT:].tolist() != wanted
        with pytest.raises(ValueError, match=r"reads a text again .* padding"):
            model.generate(**inputs, **options, custom_generate=CustomGenerate())
        if len(hidden) < 11:
            short = {**inputs, "max_new_tokens": 6, "do_sample": False}
            output = model.generate(**short, custom_generate=CustomGenerate())
            assert output[0, -6:].tolist() == model.generate(**short)[0, -6:].tolist() == wanted[:6]


def test_a_model_that_loses_its_text_at_the_boundary_is_refused():
    """Phi-4 multimodal's own `generate` then reads the last token alone."""
    rope = {"original_max_position_embeddings": BOUNDARY, "rope_parameters": _LONG}
    config = transformers.Phi4MultimodalConfig(**{**_SIZES, **rope})
    config.audio_config.num_blocks = config.vision_config.num_hidden_layers = 1
    model = _randomize(transformers.Phi4MultimodalForCausalLM(config))
    prompt = list(range(1, 6))
    message = "prepare_inputs_for_generation of this Phi4.* changes what .* a text of 17 tokens"
    with pytest.raises(ValueError, match=message):
        generate(model, prompt, "mixture", max_new_tokens=COUNT)


class OwnFrequencies(nn.Module):
    """Rotary embeddings of a model's own code: `inverse` frequencies of the largest position."""

    def __init__(self, inner, inverse):
        super().__init__()
        self.inner, self.inverse = inner, inverse

    def forward(self, x, position_ids):
        factor = self.inverse(int(position_ids.max()))
        angles = position_ids[..., None].float() * self.inner.inv_freq * factor
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


@pytest.mark.parametrize(
    ("inverse", "after"),
    [
        (lambda largest: 1.0 if largest < BOUNDARY else 0.3, True),
        (lambda largest: 1.0 if largest < BOUNDARY else BOUNDARY / (2 + largest), False),
    ],
)
def test_other_frequencies_are_noticed_at_boundaries_that_the_config_names(inverse, after):
    def own():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = transformers.LlamaConfig(**_SIZES)
        model = transformers.LlamaForCausalLM(config)
        config.original_max_position_embeddings = BOUNDARY
        rotary = model.model.rotary_emb
        del rotary.rope_type
        model.model.rotary_emb = OwnFrequencies(rotary, inverse)
        return _randomize(model)

    model = own()
    for length in LENGTHS:
        prompt = text_of("longrope", length)[0]
        wanted = plain_generate(own(), prompt)
        result = generate(model, prompt, PlantedDrafts(wanted, VOCAB), max_new_tokens=COUNT)
        assert (length, result.token_ids) == (length, wanted)
        if length > BOUNDARY:
            assert (result.stats.target_calls < COUNT) == after


def test_keys_beyond_a_boundary_are_not_continued_before_it():
    model, (prompt, _) = build("longrope"), text_of("longrope", 14)
    cache = generate(model, prompt, cache=True, max_new_tokens=COUNT).cache
    result = generate(model, prompt[:12], cache=cache, max_new_tokens=4)
    assert result.token_ids == plain_generate(build("longrope"), prompt[:12])[:4]
    assert result.stats.cached_tokens == 0


@pytest.mark.parametrize(
    "options",
    [
        {"attention_chunk_size": 8},
        {"attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"]},
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ],
)
def test_windows_that_only_the_cache_has_are_refused(options):
    """Llama masks none, so `generate` with its cache differs from calls without it."""
    config = transformers.LlamaConfig(**_SIZES, **options)
    model, prompt = _randomize(transformers.LlamaForCausalLM(config)), list(range(1, 13))
    text = torch.tensor([prompt + plain_generate(model, prompt)])
    calls = model(text, use_cache=False).logits[0, len(prompt) - 1 : -1].argmax(dim=-1)
    assert calls.tolist() != text[0, len(prompt) :].tolist()
    with pytest.raises(
        ValueError, match=r"windows of 8 tokens, the masks of LlamaForC.*; expected"
    ):
        generate(model, prompt, max_new_tokens=COUNT)
    for name in set(options) - {"layer_types"}:  # texts that fit into it
        setattr(model.config, name, 512)
    result = generate(model, prompt, max_new_tokens=COUNT)
    assert result.token_ids == plain_generate(model, prompt)
