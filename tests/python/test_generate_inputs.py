"""Prompts as users of transformers hold them, and one clear line for each that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lattice_bpd.decode import DraftSources, generate, make_drafter
from lattice_bpd.draft.config import DraftConfig
from planted_drafts import plain_continuation
from test_generate_settings import VOCAB, model_with

WORDS = ["<pad>", "<s>", "</s>", *(f"w{number}" for number in range(VOCAB - 3))]
TEXTS = ["w1 w2 w3", "w7", "w4 w5 w6 w7 w8 w9"]
NEW = 16


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def tokenizer_of(side: str = "left", **options) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        padding_side=side, **options,
    )  # fmt: skip


def settings():
    return model_with(pad_token_id=0, eos_token_id=2, repetition_penalty=1.3)


def ids_of(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


@pytest.mark.parametrize("kind", ["pt", "np", None])
def test_the_output_of_a_tokenizer_is_taken_as_it_is(kind):
    model = settings()
    for text in TEXTS:
        wanted = plain_continuation(model, ids_of(text), max_new_tokens=NEW)
        inputs = tokenizer_of()(text, return_tensors=kind)
        results = generate(model, **inputs, drafter="greedy", max_new_tokens=NEW)
        if kind is not None:  # arrays of shape (1, T) are a batch of one
            (results,) = results
        assert results.token_ids == wanted


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_batches_are_read_by_their_mask(side):
    model = settings()
    inputs = tokenizer_of(side)(TEXTS, return_tensors="pt", padding=True)
    assert int(inputs["attention_mask"].sum()) < inputs["attention_mask"].numel()
    results = generate(model, **inputs, drafter="greedy", max_new_tokens=NEW)
    wanted = tokenizer_of("left")(TEXTS, return_tensors="pt", padding=True)
    if side == "left":  # processors see the padding, as in the model's own generate
        plain = model.generate(**wanted, do_sample=False, max_new_tokens=NEW)
        rows = plain[:, wanted["input_ids"].shape[1] :].tolist()
    else:
        rows = [plain_continuation(model, ids_of(text), max_new_tokens=NEW) for text in TEXTS]
    for result, row in zip(results, rows, strict=True):
        assert result.token_ids == row[: len(result.token_ids)]
        assert set(row[len(result.token_ids) :]) <= {0}


def test_text_with_either_kind_of_tokenizer():
    model = settings()
    for tokenizer in (word_tokenizer(), tokenizer_of()):
        results = generate(model, TEXTS, "greedy", tokenizer=tokenizer, max_new_tokens=NEW)
        for text, result in zip(TEXTS, results, strict=True):
            assert result.token_ids == plain_continuation(model, ids_of(text), max_new_tokens=NEW)
            assert result.text == tokenizer.decode(result.token_ids, skip_special_tokens=True)
        single = generate(model, TEXTS[0], "greedy", tokenizer=tokenizer, max_new_tokens=NEW)
        assert single.text == results[0].text
    assert generate(model, [1, 2], "greedy", max_new_tokens=2).text is None


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """One letter for each token."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_stop_strings_end_a_text_where_a_tokenizer_is_given():
    model, letters = model_with(), letter_tokenizer()
    free = plain_continuation(model, [4, 5], max_new_tokens=NEW)
    config = GenerationConfig(stop_strings=[letters.decode(free[5:7])])
    result = generate(
        model, [4, 5], "greedy", tokenizer=letters, generation_config=config,
        max_new_tokens=NEW,
    )  # fmt: skip
    assert result.token_ids == free[:7]
    assert result.finish == "criterion"


def test_token_types_are_taken_where_they_say_nothing():
    model = settings()
    result = generate(model, [3, 4], "greedy", token_type_ids=[0, 0], max_new_tokens=NEW)
    assert result.token_ids == plain_continuation(model, [3, 4], max_new_tokens=NEW)
    for model, types in ((settings(), [0, 1]), (model_with("gpt2"), [0, 0])):
        with pytest.raises(ValueError, match="token_type_ids cannot be honored"):
            generate(model, [3, 4], token_type_ids=types)


BAD_PROMPTS = {
    "no tokenizer": ("some text", {}, TypeError, "the prompt is text .*give tokenizer="),
    "a dict": ({"input_ids": [1, 2]}, {}, TypeError, r"dict with input_ids; .*\*\*inputs"),
    "nothing": (None, {}, TypeError, "input_ids is None; expected token ids"),
    "a number": (3, {}, TypeError, "input_ids is 3; expected token ids"),
    "words": (["a", "b"], {}, TypeError, "the prompt is text .*give tokenizer="),
    "objects": ([object()], {}, TypeError, "expected token ids"),
    "meta": (torch.ones(3, dtype=torch.long, device="meta"), {}, ValueError, "meta device"),
    "masked": (np.ma.masked_array([1, 2], [0, 1]), {}, ValueError, "is a masked array"),
    "mask of another length": ([1, 2], {"attention_mask": [1]}, ValueError, "as many entries"),
    "mask that hides all": ([1, 2], {"attention_mask": [0, 0]}, ValueError, "one visible token"),
    "tokenizer": ("text", {"tokenizer": "dir"}, TypeError, "tokenizer is a str"),
}  # fmt: skip


BAD_OPTIONS = {
    "max_new_tokens": ("4", TypeError, "max_new_tokens is '4'; expected an integer, 1 or more"),
    "stop_token_ids": ([-1], ValueError, "stop token id is -1; expected 0..39"),
    "stop_token_ids 3": ("abc", TypeError, "stop_token_ids is 'abc'; expected a list"),
    "stop_token_ids 4": (1.5, TypeError, "stop_token_ids is 1.5; expected a list"),
    "stop_token_ids 5": (["a"], TypeError, "a stop token id is 'a'; expected an integer, 0..39"),
    "heads": (lambda _: None, TypeError, "heads returned NoneType; expected a tensor of logits"),
    "max_nodes": (1.5, TypeError, "max_nodes is 1.5; expected an integer, 1..4096"),
    "max_nodes 2": (100_000, ValueError, "max_nodes is 100000; expected 1..4096"),
    "num_drafts": (100_000, ValueError, "num_drafts is 100000; expected 1..4096"),
    "top_k": ("4", TypeError, "top_k is '4'; expected an integer, 1 or more"),
    "alpha": ("4", TypeError, "alpha is '4'; expected a finite number"),
    "temperature": (None, TypeError, "temperature is None; expected a finite number above 0"),
    "lm": ("corpus.lm", TypeError, r"lm is a str; .*NGramLM.load\('corpus.lm'\)"),
    "num_slots": (3, TypeError, r"unknown option 'num_slots'; did you mean .*expected of top_k"),
    "drafter": (1.5, TypeError, "drafter is 1.5; expected the name of a strategy, a DraftConfig"),
    "drafter 2": ([object()], TypeError, "a drafter with a method `propose`"),
    "drafter 3": ("trees", ValueError, "strategy is 'trees'; did you mean 'tree'"),
    "generation_config": ({"eos_token_id": 3}, TypeError, "generation_config is a dict"),
}  # fmt: skip


def assert_one_line(caught, message) -> None:
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    caught.match(message)


@pytest.mark.parametrize("case", BAD_PROMPTS)
def test_a_bad_prompt_ends_in_one_clear_line(case):
    prompt, options, kind, message = BAD_PROMPTS[case]
    with pytest.raises(kind) as caught:
        generate(model_with(), prompt, "greedy", **options)
    assert_one_line(caught, message)


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_ends_in_one_clear_line(case):
    value, kind, message = BAD_OPTIONS[case]
    with pytest.raises(kind) as caught:
        generate(model_with(), [1, 2, 3], **{case.split()[0]: value})
    assert_one_line(caught, message)


def test_other_callers_of_the_same_checks():
    with pytest.raises(ValueError, match="'ngram' needs an LM; give lm="):
        make_drafter(DraftConfig("ngram"))
    with pytest.raises(ValueError, match="'tree' does not use a draft model"):
        make_drafter(DraftConfig("tree"), DraftSources(draft_model=model_with()))
    messages = [{"role": "user", "content": "Hello"}]
    for chats in (messages, [messages, messages]):
        with pytest.raises(TypeError, match=r"chat messages; .*tokenizer\.apply_chat_template\("):
            generate(model_with(), chats)
    with pytest.raises(ValueError, match="attention_mask has 1 rows for 2 prompts"):
        generate(model_with(), [[1], [2]], attention_mask=[[1]])


def test_a_model_without_weights_is_refused():
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                        intermediate_size=8)
        )  # fmt: skip
    with pytest.raises(ValueError, match="weights are on the meta device"):
        generate(model, [1, 2])
