"""What specdec_translation.py translates with: sentences, tokenizer, target, drafters, n-grams."""

from __future__ import annotations

import gzip
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import nn
from transformers import MarianConfig, MarianMTModel

from lattice_bpd import NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_translation.drafter import SpecDrafter, SpecDrafterConfig
from lattice_bpd_translation.joint import Seq2SeqOptions, train_seq2seq, train_seq2seq_heads
from lattice_bpd_translation.specdec import SpecDrafterOptions, train_spec_drafter
from lattice_bpd_translation.target import Seq2SeqTarget
from lattice_bpd_translation.text import Pair, generate_outputs

PAD, START, STOP = 0, 1, 2
SPECIAL = ["<pad>", "<start>", "<stop>", "<unk>"]


@dataclass(frozen=True)
class Recipe:
    """Every number of a run."""

    longest: int = 30  # tokens of the sentences that are trained on
    vocab_size: int = 2000
    hidden_size: int = 128
    encoder_layers: int = 3
    decoder_layers: int = 2
    dropout: float = 0.1
    label_smoothing: float = 0.1
    teacher_size: int = 0  # hidden size of the model that the target learns from; 0: none
    teacher_layers: int = 4  # of its encoder and of its decoder
    target_steps: int = 2000
    target_batch: int = 64
    distilled: int = 22000  # sentences that the target translates for its drafters
    num_slots: int = 7
    heads_steps: int = 600
    drafter_layers: int = 2  # of its decoder; at most the target's
    drafter_steps: int = 2500
    drafter_batch: int = 32
    drafter_reveal: float = 0.0
    drafter_lr: float = 0.005
    order: int = 4
    alphas: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)
    top_k: int = 8
    max_nodes: int = 16
    temperature: float = 1.5
    top_beta: int = 3
    tau: float = 1.0  # nats
    tune_sentences: int = 60
    test_sentences: int = 300
    max_new_tokens: int = 60


FULL = Recipe()
QUICK = Recipe(
    longest=24, num_slots=5, target_steps=600, distilled=6000, heads_steps=150, drafter_steps=400,
    alphas=(0.15, 0.4), tune_sentences=20, test_sentences=60,
)  # fmt: skip


@dataclass
class Sentences:
    """Pairs to train on, and sources and references to tune and to test on."""

    train: list[Pair]
    tune: tuple[list[list[int]], list[str]]
    test: tuple[list[list[int]], list[str]]


@dataclass
class Translators:
    """The target, all that drafts for it, and its teacher if it had one."""

    target: Seq2SeqTarget
    heads: BlockwiseHeads
    drafter: SpecDrafter
    lm: NGramLM
    teacher: Seq2SeqTarget | None = None


def read_sentences(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """German and English lines of a part of Multi30k."""
    sides = []
    for language in ("de", "en"):
        with gzip.open(folder / f"{name}.{language}.gz", "rt", encoding="utf-8") as file:
            sides.append([line.strip() for line in file])
    return sides[0], sides[1]


def train_tokenizer(lines: Sequence[str], vocab_size: int) -> Tokenizer:
    """BPE over lower-cased words of both languages, with a mark in front of every word."""
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


def encode(tokenizer: Tokenizer, lines: Sequence[str]) -> list[list[int]]:
    """Token ids followed by the stop token."""
    return [[*encoding.ids, STOP] for encoding in tokenizer.encode_batch(list(lines))]


def load_sentences(folder: Path, recipe: Recipe) -> tuple[Tokenizer, Sentences]:
    """The tokenizer of the training text, and all sentences as token ids."""
    german, english = read_sentences(folder, "train")
    tokenizer = train_tokenizer([*german, *english], recipe.vocab_size)
    both = zip(encode(tokenizer, german), encode(tokenizer, english), strict=True)
    train = [
        Pair(*pair)
        for pair in both
        if 1 < min(map(len, pair)) <= max(map(len, pair)) <= recipe.longest
    ]

    def part(name: str, count: int) -> tuple[list[list[int]], list[str]]:
        sources, references = read_sentences(folder, name)
        return encode(tokenizer, sources[:count]), references[:count]

    tune, test = part("val", recipe.tune_sentences), part("test_2016_flickr", recipe.test_sentences)
    return tokenizer, Sentences(train, tune, test)


def to_text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Words and punctuation as they are written."""
    return re.sub(r"\s+([.,!?;:])", r"\1", tokenizer.decode(list(token_ids)).strip())


def build_target(recipe: Recipe, seed: int = 0) -> Seq2SeqTarget:
    """A small Marian model, randomly initialized."""
    torch.manual_seed(seed)
    size = recipe.hidden_size
    sides: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("attention_heads", 4), ("ffn_dim", 4 * size))
    }
    config = MarianConfig(
        vocab_size=recipe.vocab_size, d_model=size, encoder_layers=recipe.encoder_layers,
        decoder_layers=recipe.decoder_layers, max_position_embeddings=128, dropout=recipe.dropout,
        activation_function="relu", scale_embedding=True, pad_token_id=PAD, bos_token_id=None,
        decoder_start_token_id=START, eos_token_id=STOP, forced_eos_token_id=None, **sides,
    )  # fmt: skip
    config._attn_implementation = "eager"  # the fused kernel's backward pass is slow on CPUs
    model = MarianMTModel(config)
    nn.init.normal_(model.get_input_embeddings().weight, std=size**-0.5)
    return Seq2SeqTarget(model.eval())


def train_all(sentences: Sentences, recipe: Recipe, watcher: ConsoleWatcher) -> Translators:
    """The target by the references or a teacher; all that drafts by what the target writes."""
    pairs, teacher = sentences.train, None
    if recipe.teacher_size:
        teacher_recipe = replace(
            recipe, hidden_size=recipe.teacher_size, encoder_layers=recipe.teacher_layers,
            decoder_layers=recipe.teacher_layers,
        )  # fmt: skip
        teacher = train_target(teacher_recipe, pairs, "training the teacher", watcher)
        pairs = distil(teacher, pairs, recipe, watcher)
    target = train_target(recipe, pairs, "training the target", watcher)
    own = distil(target, sentences.train[: recipe.distilled], recipe, watcher)
    heads, drafter = train_drafters(target, own, recipe, watcher)
    texts = [[START, *pair.output] for pair in (*own, *sentences.train)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few tokens leave too few rare n-grams for formulas
        lm = NGramLM.train(texts, recipe.order, vocab_size=recipe.vocab_size)
    return Translators(target, heads, drafter, lm, teacher)


def train_target(
    recipe: Recipe, pairs: Sequence[Pair], title: str, watcher: ConsoleWatcher
) -> Seq2SeqTarget:
    """A new encoder-decoder, trained on pairs."""
    target = build_target(recipe)
    options = Seq2SeqOptions(
        steps=recipe.target_steps, batch_size=recipe.target_batch,
        label_smoothing=recipe.label_smoothing,
    )  # fmt: skip
    with _Stage(watcher, title, options.steps) as on_step:
        train_seq2seq(target, pairs, options, on_step)
    return target


def distil(
    target: Seq2SeqTarget, pairs: Sequence[Pair], recipe: Recipe, watcher: ConsoleWatcher
) -> list[Pair]:
    """The target's own translations of the training sources."""
    sources = [pair.source for pair in pairs]
    watcher.begin("translating the training text", -(-len(sources) // 256))
    outputs = generate_outputs(target, sources, recipe.max_new_tokens, on_batch=watcher.advance)
    watcher.end()
    return [Pair(source, output) for source, output in zip(sources, outputs, strict=True)]


def train_drafters(
    target: Seq2SeqTarget, own: list[Pair], recipe: Recipe, watcher: ConsoleWatcher
) -> tuple[BlockwiseHeads, SpecDrafter]:
    """Blockwise heads (Stern et al. 2018) and a SpecDrafter (Xia et al. 2022)."""
    size = recipe.hidden_size
    heads = BlockwiseHeads(size, recipe.num_slots + 1, 2 * size, vocab_size=recipe.vocab_size)
    by_heads = Seq2SeqOptions(steps=recipe.heads_steps, batch_size=recipe.drafter_batch)
    with _Stage(watcher, "training heads", by_heads.steps) as on_step:
        train_seq2seq_heads(target, heads, own, by_heads, on_step)
    drafter = SpecDrafter(
        SpecDrafterConfig(
            recipe.vocab_size, recipe.num_slots, size, 4 * size, 4,
            decoder_layers=min(recipe.drafter_layers, recipe.decoder_layers),
            source_size=size, state_size=size,
        )
    )  # fmt: skip
    drafter.start_from(target.base)
    options = SpecDrafterOptions(
        steps=recipe.drafter_steps, batch_size=recipe.drafter_batch, reveal=recipe.drafter_reveal,
        matrix_lr=recipe.drafter_lr, other_lr=recipe.drafter_lr / 5,
    )  # fmt: skip
    with _Stage(watcher, "training the drafter", options.steps) as on_step:
        train_spec_drafter(target, drafter, own, options, on_step)
    return heads, drafter


class _Stage:
    """Shows a trainer's steps and its losses."""

    def __init__(self, watcher: ConsoleWatcher, title: str, steps: int) -> None:
        self.watcher = watcher
        watcher.begin(title, steps)

    def __enter__(self) -> Callable[[Any], None]:
        def on_step(report: Any) -> None:
            losses = " ".join(f"{loss:.2f}" for loss in report.losses)
            self.watcher.advance(note=f"loss {losses}")

        return on_step

    def __exit__(self, *error: object) -> None:
        self.watcher.end()
