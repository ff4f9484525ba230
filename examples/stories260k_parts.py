"""Data and models of stories260k.py: beginnings, self-generated text, heads and n-gram LM."""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd.models import BlockwiseHeads
from lattice_bpd.train.corpus import load_encoder
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.frozen import FrozenOptions, train_frozen
from lattice_bpd_kim2024.heads.self_generated import generate_texts
from lattice_bpd_kim2024.llama2c import load_llama2c

BATCH = 128  # rows that the model continues at once
BEGIN = 1  # the token that begins every story, and that the model generates at the end of one


@dataclass(frozen=True)
class Recipe:
    """Every number of a run."""

    prompt_lengths: tuple[int, ...] = (12, 24, 48)  # of beginnings that training texts continue
    stories: int = 1296  # beginnings of each length
    row_length: int = 144  # beginning and continuation
    num_heads: int = 9
    inner_size: int = 256
    steps: int = 1600
    order: int = 4
    smoothing: str = "modified_kneser_ney"
    prompt_length: int = 24
    max_new_tokens: int = 64
    tune_prompts: int = 64
    test_prompts: int = 128
    alphas: tuple[float, ...] = (0.4, 0.6, 0.8, 1.0, 1.2)
    temperatures: tuple[float, ...] = (1.0, 1.5, 2.0, 2.5, 3.0)
    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int = 36


FULL = Recipe()
QUICK = Recipe(
    prompt_lengths=(12, 24), stories=640, steps=600, tune_prompts=24, test_prompts=40,
    alphas=(0.4, 0.8, 1.2), temperatures=(1.0, 1.5, 2.0, 2.5),
)  # fmt: skip


@dataclass
class Beginnings:
    """Token ids of story beginnings, the prompts that training must not see, and whole stories."""

    train: list[np.ndarray]
    tune: list[list[int]]
    test: list[list[int]]
    whole: list[np.ndarray]  # of those in train


def read_beginnings(args: argparse.Namespace, base: LlamaForCausalLM, recipe: Recipe) -> Beginnings:
    """Of eight stories one is for testing and one for tuning."""
    longest = max(*recipe.prompt_lengths, recipe.prompt_length)
    if args.text.is_file():
        texts = args.text.read_text(encoding="utf-8").split("<|endoftext|>")
        encoder = load_encoder(str(args.model / "tok512.model"))
        ids = encoder.encode([text.strip() for text in texts])
        stories = [np.concatenate([[BEGIN], tokens]) for tokens in ids]
    else:
        print(
            f"note: no text at {args.text}, so prompts are beginnings of the model's own stories; "
            "research/kim2024/RESULTS.md has figures with that text", file=sys.stderr,
        )  # fmt: skip
        count = 2 * (recipe.stories + 4 * (recipe.tune_prompts + recipe.test_prompts))
        stories = list(generate_texts(base, np.full((count, 1), BEGIN), longest, temperature=1.0))
    long = [story for story in stories if len(story) > longest]
    stories = [story[:longest] for story in long]

    def prompts(part: int, count: int, others: list[list[int]]) -> list[list[int]]:
        beginnings = [story[: recipe.prompt_length].tolist() for story in stories[part::8]]
        distinct = dict.fromkeys(map(tuple, beginnings))
        return [list(prompt) for prompt in distinct if list(prompt) not in others][:count]

    train = [number for number in range(len(stories)) if number % 8 > 1]
    test = prompts(0, recipe.test_prompts, [])
    tune = prompts(1, recipe.tune_prompts, test)
    whole = [long[number] for number in train]
    return Beginnings([stories[number] for number in train], tune, test, whole)


def fingerprint(args: argparse.Namespace, recipe: Recipe) -> str:
    """Changes with the model, the text, or the recipe for training and held-out prompts."""
    plain = Recipe()
    trained_by = replace(
        recipe, order=plain.order, smoothing=plain.smoothing, alphas=(), temperatures=(),
        max_new_tokens=0, top_k=0, num_drafts=0, max_nodes=0,
    )  # fmt: skip
    digest = hashlib.sha256(repr(trained_by).encode())
    digest.update((args.model / "stories260K.bin").read_bytes())
    if args.text.is_file():
        digest.update(args.text.read_bytes())
    return digest.hexdigest()[:8]


def cached_text(
    work: Path,
    base: LlamaForCausalLM,
    beginnings: Beginnings,
    recipe: Recipe,
    watcher: ConsoleWatcher,
) -> np.ndarray:
    """(N, row_length) greedy continuations; none runs through a prompt that is held out."""
    path = work / "text.npy"
    if path.is_file():
        try:
            return np.load(path)
        except (ValueError, EOFError) as error:
            raise FormatError(f"{path}: was cut ({error}); delete {work} to begin again") from error
    parts = []
    stories = beginnings.train[: recipe.stories]
    prompts = [np.unique([story[:length] for story in stories], axis=0)
               for length in recipe.prompt_lengths]  # fmt: skip
    batches = sum(-(-len(part) // BATCH) for part in prompts)
    watcher.begin("writing stories to learn from", batches)
    for part, length in zip(prompts, recipe.prompt_lengths, strict=True):
        parts.append(
            generate_texts(
                base, part, recipe.row_length - length, batch_size=BATCH, on_batch=watcher.advance
            )
        )
    watcher.end()
    rows = np.concatenate(parts)
    held_out = {
        np.array(prompt, np.int32).tobytes() for prompt in beginnings.tune + beginnings.test
    }
    windows = np.lib.stride_tricks.sliding_window_view(rows, recipe.prompt_length, axis=1)
    clean = [not any(window.tobytes() in held_out for window in row) for row in windows]
    rows = rows[clean]
    np.save(work / ".text.npy", rows)
    (work / ".text.npy").replace(path)
    return rows


def train_lm(rows: np.ndarray | list[np.ndarray], recipe: Recipe, vocab_size: int = 512) -> NGramLM:
    """An n-gram LM of texts: the model's own, or others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 512 tokens leave too few rare n-grams for the formulas
        return NGramLM.train(rows, recipe.order, vocab_size=vocab_size, smoothing=recipe.smoothing)


def cached_model(
    work: Path, base: LlamaForCausalLM, rows: np.ndarray, recipe: Recipe, watcher: ConsoleWatcher
) -> BlockwiseLM:
    """The frozen model with trained heads."""
    if (work / "blockwise_heads.json").is_file():
        return BlockwiseLM(base, heads=BlockwiseHeads.from_pretrained(work)).eval()
    torch.manual_seed(0)
    model = BlockwiseLM(base, recipe.num_heads, recipe.inner_size)

    def on_states() -> None:
        watcher.end()
        watcher.begin("training heads, the model frozen", recipe.steps)

    watcher.begin("reading the stories once")
    train_frozen(
        model, rows, FrozenOptions(steps=recipe.steps),
        lambda report: watcher.advance(note=f"loss of head 2 {report.losses[0]:.2f}"), on_states,
    )  # fmt: skip
    watcher.end()
    model.heads.save_pretrained(work)
    return model


@dataclass
class Prepared:
    """What decodes, and what it learned from.

    Attributes:
        base: the target, frozen.
        found: beginnings, some of them held out.
        work: folder where text and heads are kept.
        rows: (N, row_length) text generated by the target.
        lm: n-gram LM of that text.
        model: the target with heads.
    """

    base: LlamaForCausalLM
    found: Beginnings
    work: Path
    rows: np.ndarray
    lm: NGramLM
    model: BlockwiseLM


def prepare(
    args: argparse.Namespace, recipe: Recipe, kind: str, watcher: ConsoleWatcher
) -> Prepared:
    """Load the parts stored in a folder of args.work for this kind of run, and make the others."""
    base = load_llama2c(args.model / "stories260K.bin")
    beginnings = read_beginnings(args, base, recipe)
    work = args.work / f"{kind}-{fingerprint(args, recipe)}"
    work.mkdir(parents=True, exist_ok=True)
    rows = cached_text(work, base, beginnings, recipe, watcher)
    model = cached_model(work, base, rows, recipe, watcher)
    return Prepared(base, beginnings, work, rows, train_lm(rows, recipe), model)
