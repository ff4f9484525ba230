"""Tiny encoder-decoders for tests: random ones of three architectures, and one that has learned.

t5      relative positions        bart   learned positions        marian   sinusoids, a logits bias
"""

from __future__ import annotations

import functools
import random
import warnings

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    T5Config,
    T5ForConditionalGeneration,
)

from lattice_bpd_translation.joint import Seq2SeqOptions, train_seq2seq
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import Pair

torch.set_num_threads(1)

VOCAB = 40
PAD, STOP, START = 0, 1, 2
POSITIONS = 48
KINDS = ("t5", "bart", "marian")
_SPECIAL = {"pad_token_id": PAD, "eos_token_id": STOP, "decoder_start_token_id": START}


def build(kind: str, seed: int = 0, **options):
    """An untrained model whose outputs vary."""
    torch.manual_seed(seed)
    if kind == "t5":
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        model = T5ForConditionalGeneration(
            T5Config(vocab_size=VOCAB, dropout_rate=0.0, **sizes, **_SPECIAL, **options)
        )
        _spread(model, 2.0)
        return model.eval()
    config, kept = {
        "bart": (BartConfig, BartForConditionalGeneration),
        "marian": (MarianConfig, MarianMTModel),
    }[kind]
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
    }
    options = {"bos_token_id": None, "init_std": 0.25, **sides, **options}
    model = kept(
        config(
            vocab_size=VOCAB, d_model=32, max_position_embeddings=POSITIONS, dropout=0.0,
 **_SPECIAL, **options,
        )
    )  # fmt: skip
    model.generation_config.forced_eos_token_id = None
    if kind == "marian":
        model.final_logits_bias.normal_(std=0.5)
    return model.eval()


@torch.no_grad()
def _spread(model, factor: float) -> None:
    for weight in model.parameters():
        if weight.ndim == 2:
            weight.mul_(factor)


@functools.cache
def model_of(kind: str):
    """A random model, shared."""
    return build(kind)


def plain_greedy(model, source: list[int], count: int) -> list[int]:
    """What the model's own generate writes behind the decoder's prompt."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor([source]), num_beams=1, do_sample=False, max_new_tokens=count
        )
    start = 1 if model.generation_config.forced_bos_token_id is None else 2
    return found[0, start:].tolist()


def sources(count: int, seed: int, longest: int = 12) -> list[list[int]]:
    """Random token ids without special ones."""
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def counting_pairs(count: int, seed: int) -> list[Pair]:
    """A task that is learned in a second: whatever the source, count from 10 to 17."""
    return [Pair(text, [*range(10, 18), STOP]) for text in sources(count, seed, longest=8)]


@functools.cache
def trained_target() -> Seq2SeqTarget:
    """A Marian that has learned `counting_pairs`, though not without mistakes."""
    target = Seq2SeqTarget(build("marian", seed=1, init_std=0.1))
    target.base.final_logits_bias.zero_()
    options = Seq2SeqOptions(steps=40, batch_size=8, other_lr=0.02, warmup=5)
    train_seq2seq(target, counting_pairs(300, seed=0), options)
    return target
