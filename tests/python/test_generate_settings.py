"""`generate` returns the output of `model.generate(do_sample=False)` with the same settings."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig
from transformers import LlamaForCausalLM as Llama

from lattice_bpd.decode import generate
from planted_drafts import PlantedDrafts, plain_continuation, randomize

VOCAB = 40
NEW = 24


@functools.cache
def weights_of(kind: str):
    torch.manual_seed(0)
    if kind == "gpt2":
        config = GPT2Config(
            vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=2, bos_token_id=None,
            eos_token_id=None,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
    else:
        config = LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        model = Llama(config)
    randomize(model)
    return model.eval()


def model_with(kind: str = "llama", **settings):
    """A model whose generation config has these settings; they last until the next call."""
    model = weights_of(kind)
    model.generation_config = GenerationConfig(**settings)
    return model


def prompts(count: int = 3, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCAB, size).tolist() for size in rng.integers(2, 10, count)]


def assert_equal_to_plain(model, prompt: list[int], **options):
    """By drafts of the known continuation, of which most are accepted, and by none."""
    wanted = plain_continuation(model, prompt, max_new_tokens=NEW)
    drafter = PlantedDrafts(wanted, VOCAB)
    result = generate(model, prompt, drafter=drafter, max_new_tokens=NEW, **options)
    assert result.token_ids == wanted
    if len(wanted) > 8:  # drafts were kept, and planted errors were not
        assert result.stats.block_efficiency > 2.0
        assert result.stats.target_calls > len(wanted) / 7
    assert generate(model, prompt, "greedy", max_new_tokens=NEW).token_ids == wanted
    return result


SETTINGS = {
    "end tokens": {"eos_token_id": [3, 8, 21], "pad_token_id": 0},
    "least new tokens": {"eos_token_id": list(range(1, VOCAB, 3)), "min_new_tokens": 9},
    "suppressed": {"suppress_tokens": [1, 2, 13], "begin_suppress_tokens": [18, 4]},
    "forced end": {"eos_token_id": 25, "forced_eos_token_id": 25},
    "chat": {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [3, 4],
             "repetition_penalty": 1.05},
    "all": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "bad_words_ids": [[9]],
            "eos_token_id": [3, 4], "pad_token_id": 0, "min_length": 15,
            "renormalize_logits": True},
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_settings_of_the_model_are_honored(kind, case):
    model = model_with(kind, **SETTINGS[case])
    for prompt in prompts():
        result = assert_equal_to_plain(model, prompt)
        ends = SETTINGS[case].get("eos_token_id", [])
        ends = ends if isinstance(ends, list) else [ends]
        assert result.finish == ("stop_token" if result.token_ids[-1] in ends else "length")


def test_lengths_come_from_the_argument_then_the_config_then_64():
    prompt = prompts()[0]
    assert len(generate(model_with(), prompt, "greedy").token_ids) == 64
    assert len(generate(model_with(max_new_tokens=9), prompt, "greedy").token_ids) == 9
    long = model_with(max_length=20)
    assert len(generate(long, prompt, "greedy").token_ids) == 20 - len(prompt)
    assert len(generate(long, prompt, "greedy", max_new_tokens=30).token_ids) == 30
    config = GenerationConfig(max_new_tokens=5)
    assert len(generate(long, prompt, "greedy", generation_config=config).token_ids) == 5
    with pytest.raises(ValueError, match="`max_length` is set to 2"):
        generate(model_with(max_length=2), [1, 2, 3], "greedy")


REFUSED = {
    "dola_layers": {"dola_layers": "low"},
    "stop_strings": {"stop_strings": ["x"]},
    "cache_implementation": {"cache_implementation": "quantized"},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_honored_is_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"^generate: {name}="):
        generate(model_with(**REFUSED[name]), [1, 2, 3], "greedy")
    config = GenerationConfig(**REFUSED[name])
    with pytest.raises(ValueError, match=rf"^generate: {name}="):
        generate(model_with(), [1, 2, 3], "greedy", generation_config=config)


def test_certificates_are_for_plain_greedy_text():
    result = generate(model_with(eos_token_id=7), [1, 2], "greedy", certificate=True)
    assert result.certificate is not None
    with pytest.raises(ValueError, match="RepetitionPenaltyLogitsProcessor"):
        generate(model_with(repetition_penalty=1.2), [1, 2], "greedy", certificate=True)


def test_pad_tokens_without_a_mask_are_hidden_as_the_model_does():
    model = model_with(pad_token_id=0, repetition_penalty=1.3)
    for prompt in ([0, 0, 5, 6, 7], [5, 0, 6, 0, 7], [5, 6, 7]):
        assert_equal_to_plain(model, prompt)
    with pytest.raises(ValueError, match="the last token, 0, is hidden as padding"):
        generate(model, [5, 6, 0], "greedy")
    result = generate(model, [5, 6, 0], "greedy", attention_mask=[1, 1, 1], max_new_tokens=NEW)
    assert result.token_ids == plain_continuation(
        model, [5, 6, 0], attention_mask=torch.ones(1, 3, dtype=torch.long)
    )
