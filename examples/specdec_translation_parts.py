"""What specdec_translation.py translates with: sentences, tokenizer, target and drafters."""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import MarianConfig, MarianMTModel

from lattice_bpd.train.seq2seq_text import Pair

PAD, START, STOP = 0, 1, 2
SPECIAL = ["<pad>", "<start>", "<stop>", "<unk>"]


@dataclass(frozen=True)
class Recipe:
    """Every number of a run."""

    pairs: int = 29000
    longest: int = 40  # tokens of a sentence that is trained on
    vocab_size: int = 4000
    hidden_size: int = 128
    encoder_layers: int = 3
    decoder_layers: int = 2
    dropout: float = 0.1
    target_steps: int = 3000
    batch_size: int = 64
    num_slots: int = 5
    heads_steps: int = 600
    drafter_steps: int = 1500
    drafter_layers: int = 1
    order: int = 4
    test_sentences: int = 1000
    max_new_tokens: int = 60


FULL = Recipe()
QUICK = Recipe(
    pairs=29000, longest=24, vocab_size=2000, target_steps=600, heads_steps=150, drafter_steps=400,
    test_sentences=100,
)  # fmt: skip


def read_sentences(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """German and English lines of a part of Multi30k."""
    sides = []
    for language in ("de", "en"):
        with gzip.open(folder / f"{name}.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append([line.strip() for line in file])
    return sides[0], sides[1]


def train_tokenizer(lines: list[str], vocab_size: int) -> Tokenizer:
    """BPE over lower-cased words of both languages, with a mark in front of every word."""
    from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def make_pairs(
    tokenizer: Tokenizer, german: list[str], english: list[str], longest: int
) -> list[Pair]:
    """Token ids of the pairs that are short enough on both sides."""
    sources = [[*found.ids, STOP] for found in tokenizer.encode_batch(german)]
    outputs = [[*found.ids, STOP] for found in tokenizer.encode_batch(english)]
    return [
        Pair(source, output)
        for source, output in zip(sources, outputs, strict=True)
        if 1 < len(source) <= longest and 1 < len(output) <= longest
    ]


def build_target(recipe: Recipe) -> MarianMTModel:
    """A small Marian model, deep encoder and shallow decoder, randomly initialised."""
    torch.manual_seed(0)
    size = recipe.hidden_size
    config = MarianConfig(
        vocab_size=recipe.vocab_size, d_model=size, encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=4 * size, decoder_ffn_dim=4 * size, max_position_embeddings=128,
        dropout=recipe.dropout, activation_function="relu", scale_embedding=True,
        pad_token_id=PAD, decoder_start_token_id=START, eos_token_id=STOP, bos_token_id=None,
        forced_eos_token_id=None, share_encoder_decoder_embeddings=True, tie_word_embeddings=True,
    )  # fmt: skip
    config._attn_implementation = "eager"  # the fused kernel's backward pass is slow on CPUs
    model = MarianMTModel(config)
    nn.init.normal_(model.get_input_embeddings().weight, std=size**-0.5)
    return model.eval()


def detokenize(text: str) -> str:
    """Words and punctuation as they are written."""
    return re.sub(r"\s+([.,!?;:])", r"\1", text.strip())
