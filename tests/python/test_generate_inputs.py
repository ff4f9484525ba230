"""Prompts as users of transformers hold them, streamers, and a clear line for each bad request."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast
from transformers.generation.streamers import BaseStreamer

from lattice_bpd import NGramLM
from lattice_bpd.decode import CustomGenerate, decode, generate
from lattice_bpd.decode.drafters import NoDrafter
from lattice_bpd.verify.acceptance import TopKMatch
from planted_drafts import PlantedDrafts, plain_continuation
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


class NotHeads:
    """No callable."""


CHAT = [{"role": "user", "content": "Hello"}]
LM = NGramLM.train([[1, 2, 3, 1, 2]], 2, vocab_size=VOCAB, smoothing="witten_bell")
WIDE = NGramLM.train([[1, 2, 3, 1, 2]], 2, vocab_size=3 * VOCAB, smoothing="witten_bell")
BAD_PROMPTS: list[tuple[Any, dict[str, Any], str]] = [
    ("some text", {}, "the prompt is text .*give tokenizer="),
    ("text", {"tokenizer": "dir"}, "tokenizer is a str"),
    (CHAT, {}, r"chat messages; .*tokenizer\.apply_chat_template\("),
    ({"input_ids": [1, 2]}, {}, r"dict with input_ids; .*\*\*inputs"),
    (None, {}, "input_ids is None; expected token ids"),
    (torch.ones(3, dtype=torch.long, device="meta"), {}, "meta device"),
    (np.ma.masked_array([1, 2], [0, 1]), {}, "is a masked numpy array"),
    ([], {}, "prompt is empty; expected one token or more"),
    ([[1], []], {}, "prompt 1 is empty"),
    ([[[1, 2]]], {}, r"shape \(1, 2\)"),
    ([1, VOCAB], {}, f"token id {VOCAB} at position 1; expected 0..{VOCAB - 1} .*; use"),
    ([1] * 129, {"model": "gpt2"}, "positions for 128"),
    ([1, 2], {"attention_mask": [1]}, "as many entries"),
    ([1, 2], {"attention_mask": [0, 0]}, "one visible token"),
    ([[1], [2]], {"attention_mask": [[1]]}, "attention_mask has 1 rows for 2 prompts"),
]
BAD_OPTIONS: list[tuple[str, Any, str]] = [
    ("max_new_tokens", "4", "max_new_tokens is '4'; expected an integer, 1 or more"),
    ("max_new_tokens", 0, "max_new_tokens is 0; expected 1 or more"),
    ("stop_token_ids", ["a"], "a stop token id is 'a'; expected an integer, 0..39"),
    ("heads", NotHeads(), r"heads is a NotHeads; .*, or DraftHeads$"),
    ("heads", "my-heads", r"heads is a str; .*load_heads\('my-heads'\)"),
    ("heads", lambda _: None, "heads returned NoneType; expected a tensor of logits"),
    ("heads", lambda hidden: hidden, r"logits of shape \(1, 32\)"),
    ("heads", lambda h: h.new_zeros(1, 2, 3 * VOCAB), f"a vocabulary of {3 * VOCAB}"),
    ("heads", lambda hidden: hidden.new_zeros(1, 0, VOCAB), "one slot or more"),
    ("heads", lambda hidden: hidden.new_full((1, 2, VOCAB), np.nan), "NaN"),
    ("max_nodes", 1.5, "max_nodes is 1.5; expected an integer, 1..4096"),
    ("num_drafts", 0, "num_drafts is 0"),
    ("top_k", VOCAB + 1, f"expected 1..{VOCAB}"),
    ("top_k", "4", "top_k is '4'; expected an integer, 1 or more"),
    ("alpha", "4", "alpha is '4'; expected a finite number"),
    ("temperature", None, "temperature is None; expected a finite number above 0"),
    ("lm", "corpus.lm", r"lm is a str; .*NGramLM.load\('corpus.lm'\)"),
    ("lm", [LM] * 5, "5 LMs; expected at most 4"),
    ("lm", WIDE, f"LM has a vocabulary of {3 * VOCAB}"),
    ("sources", ("heads", "words"), "found 'words'; expected of heads, lm, text, store"),
    ("sources", (), "sources: found none"),
    ("sources", ("lm",), "sources has 'lm', and there is none; give lm="),
    ("num_slots", 3, r"unknown option 'num_slots'; did you mean .*expected of top_k"),
    ("max_tokens", 3, r"unknown option 'max_tokens'; did you mean max_new_tokens=\?"),
    ("drafter", ".", r"drafter is a path; expected load_drafter\('.'\)"),
    ("strategy", "tree", "expected the strategy as the argument `drafter`"),
    ("drafter", 1.5, "drafter is 1.5; expected the name of a strategy, a DraftConfig"),
    ("drafter", [object()], "a drafter with a method `propose`"),
    ("drafter", "trees", "strategy is 'trees'; did you mean 'tree'"),
    ("drafter", "ngram", "'ngram' needs an LM; give lm="),
    ("drafter", "tree", "'tree' needs draft heads and the model has none; give heads="),
    ("drafter", "draft_model", "'draft_model' needs an LM; give lm=, a small causal LM with the t"),
    ("lm", torch.nn.Linear(1, 1), "an NGramLM; .*causal LM is for 'draft_model' and 'neural'"),
    ("acceptance", TopKMatch, "acceptance is"),
    ("certificate", "yes", "certificate is 'yes'"),
    ("constraint", 3, "constraint is a int"),
    ("generation_config", {"eos_token_id": 3}, "generation_config is a dict"),
    ("do_sample", True, r"is a generation .*GenerationConfig\(do_sample=..\).*Sampled"),
]
OF_P_BEST = ("top_k", "num_drafts", "alpha", "temperature")


def check_error(prompt: Any, options: dict[str, Any], message: str) -> None:
    """One line that begins with the function that was called, or the drafter."""
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        generate(model_with(options.pop("model", "llama")), prompt, **options)
    assert re.match(r"(generate|\w+Drafter|Mixture): ", str(caught.value))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("prompt", "options", "message"), BAD_PROMPTS)
def test_a_bad_prompt_ends_in_one_clear_line(prompt, options, message):
    check_error(prompt, {"drafter": "greedy", **options}, message)


@pytest.mark.parametrize(("name", "value", "message"), BAD_OPTIONS)
def test_a_bad_option_ends_in_one_clear_line(name, value, message):
    options: dict[str, Any] = {"drafter": "tree"} if name == "heads" else {}
    if name in OF_P_BEST:
        options = {"drafter": "p_best", "heads": lambda h: h.new_zeros(len(h), 2, VOCAB)}
    check_error([1, 2, 3], {**options, name: value}, message)


@pytest.mark.parametrize(
    ("lm", "found", "advice"),
    [
        (LM, "NGramLM", "from_pretrained; an n-gram LM is for 'mixture' or 'ngram'$"),
        (object(), "object", "AutoModelForCausalLM.from_pretrained$"),
    ],
)
def test_a_draft_model_is_a_causal_lm(lm, found, advice):
    message = f"lm is a {found}; expected for 'draft_model' a small causal LM .*{advice}"
    check_error([1, 2, 3], {"drafter": "draft_model", "lm": lm}, message)


def test_decode_and_custom_generate_name_themselves():
    with pytest.raises(ValueError, match=r"^decode: prompt has token id 40"):
        decode(model_with(), [VOCAB], NoDrafter())
    with pytest.raises(TypeError, match=r"^CustomGenerate: acceptance is <class"):
        CustomGenerate(acceptance=TopKMatch)
    with pytest.raises(TypeError, match="CustomGenerate: max_nodes given with a drafter"):
        CustomGenerate(drafter=NoDrafter(), max_nodes=3)
    with pytest.raises(TypeError, match=r"heads is 'tree', .*CustomGenerate\(drafter='tree'\)"):
        CustomGenerate("tree")
    method = CustomGenerate("medusa")
    with pytest.raises(
        TypeError, match=r"^CustomGenerate: heads is a str; .*load_heads\('medusa'\)"
    ):
        model_with().generate(torch.tensor([[1, 2]]), custom_generate=method, max_new_tokens=2)


PROMPT = [5, 6, 7]


class Recorder(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.values, self.ends = [], 0

    def put(self, value):
        self.values.append(value.tolist())

    def end(self):
        self.ends += 1


def planted(model) -> PlantedDrafts:
    return PlantedDrafts(plain_continuation(model, PROMPT, max_new_tokens=NEW), VOCAB)


def options_of(model, streamer) -> dict:
    return {"input_ids": torch.tensor([PROMPT]), "do_sample": False, "max_new_tokens": NEW,
            "streamer": streamer}  # fmt: skip


def test_a_streamer_gets_what_plain_generate_gives_it():
    model = model_with(repetition_penalty=1.2)
    plain, ours, own = Recorder(), Recorder(), Recorder()
    model.generate(**options_of(model, plain))
    method = CustomGenerate(drafter=planted(model))
    model.generate(**options_of(model, ours), custom_generate=method)
    assert method.results[0].stats.block_efficiency > 2.0
    assert ours.values == plain.values
    assert ours.ends == plain.ends == 1
    generate(model, PROMPT, drafter=planted(model), streamer=own, max_new_tokens=NEW)
    assert (own.values, own.ends) == (plain.values, 1)
    with pytest.raises(ValueError, match="a streamer takes one text, found 2 prompts"):
        generate(model, [PROMPT, PROMPT], streamer=own)
    assert own.ends == 2  # who waits for the text is not left waiting


class Fails:
    """A drafter that fails after a few steps."""

    def __init__(self) -> None:
        self.steps = 0

    def propose(self, states):
        self.steps += 1
        if self.steps == 3:
            raise KeyError("planted")
        return [None] * len(states)


def test_an_error_ends_the_stream():
    model = model_with()
    for work in (
        lambda streamer: model.generate(
            **options_of(model, streamer), custom_generate=CustomGenerate(drafter=Fails())
        ),
        lambda streamer: generate(model, PROMPT, drafter=Fails(), streamer=streamer),
        lambda streamer: generate(model, "text", streamer=streamer),
        lambda streamer: generate(object(), PROMPT, streamer=streamer),
    ):
        streamer = Recorder()
        with pytest.raises((KeyError, ValueError, TypeError)):
            work(streamer)
        assert streamer.ends == 1  # who waits for the text is not left waiting


def test_an_assistant_is_refused_by_name():
    model = model_with()
    with pytest.raises(ValueError, match="assistant_model cannot be honored"):
        model.generate(
            torch.tensor([PROMPT]), assistant_model=model, max_new_tokens=4,
            custom_generate=CustomGenerate(drafter="greedy"),
        )  # fmt: skip
