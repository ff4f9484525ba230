"""What `stories260k.py --all` adds: LMs of other texts, and scorers.

ngram_1best      the 4-gram of the model's own stories, one draft
ngram_corpus     a 4-gram of TinyStories itself, the text that people wrote
ngram_distilled  a 4-gram of the model's choices over that same text
neural           a small GPT that learnt from the model's own stories (paper algorithm 2)
ngram_neural     that GPT and the distilled 4-gram together
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stories260k_parts import BEGIN, Beginnings, Prepared, Recipe, train_lm
from transformers import GPTNeoXForCausalLM, LlamaForCausalLM, PreTrainedModel

from lattice_bpd import NGramLM
from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd.decode import DecodeStats, decode
from lattice_bpd.decode.drafters import NeuralScorer
from lattice_bpd.draft import MixtureScorer
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
from lattice_bpd_kim2024.distil import distil_ngram
from lattice_bpd_kim2024.evaluate import Recording, Setting
from lattice_bpd_kim2024.heads.joint import TrainOptions
from lattice_bpd_kim2024.rescorer import train_rescorer
from lattice_bpd_kim2024.small_models import build_small_gpt

VOCAB_SIZE = 512
REPLAYED = (
    Setting("ngram_1best", "{n}-gram BPD (1-best)", "ngram", uses_lm=True),
    Setting("ngram_corpus", "{n}-gram of the corpus (1-best)", "ngram", source="corpus"),
    Setting("ngram_distilled", "{n}-gram, distilled (1-best)", "ngram", source="distilled"),
)
DECODED = (
    Setting("neural", "neural BPD (1-best)", "neural", source="rescorer"),
    Setting("ngram_neural", "{n}-gram + neural (1-best)", "neural", source="mixture"),
)
ALL_SETTINGS = (*REPLAYED, *DECODED)


@dataclass(frozen=True)
class ScorerRecipe:
    """Every number of the further lines."""

    corpus_tokens: int = 500_000
    hidden_size: int = 128
    num_layers: int = 2
    num_attention_heads: int = 2
    training: TrainOptions = field(
        default_factory=lambda: TrainOptions(
            steps=600, batch_size=32, sequence_length=128, precision="fp32"
        )
    )
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    ngram_weights: tuple[float, ...] = (0.3, 0.6, 1.0)  # beside the neural scorer's 1


FULL_SCORERS = ScorerRecipe()
QUICK_SCORERS = ScorerRecipe(
    corpus_tokens=200_000,
    training=TrainOptions(steps=260, batch_size=16, sequence_length=128, precision="fp32"),
)


@dataclass
class Sources:
    """LMs and scorers by the names that settings use.

    Attributes:
        by_name: all of them; "mixture" is set when its weights are tuned.
        common: the n-gram LM of lines that name no source.
    """

    by_name: dict[str, Any]
    common: NGramLM

    def mix(self, weight: float) -> None:
        """Let the mixture be neural + weight * n-gram."""
        parts = [(self.by_name["rescorer"], 1.0), (self.by_name["distilled"], weight)]
        self.by_name["mixture"] = MixtureScorer(parts)


def make_sources(
    made: Prepared, recipe: Recipe, scorers: ScorerRecipe, watcher: ConsoleWatcher
) -> Sources:
    """Train or load what the further lines rescore with."""
    texts = corpus_texts(made.found, scorers.corpus_tokens)
    watcher.begin("reading the corpus for its own n-gram and the distilled one")
    distilled = distil(made.base, texts, recipe)
    watcher.end()
    neural = NeuralScorer(cached_rescorer(made.work, made.rows, scorers, watcher))
    by_name = {"corpus": train_lm(texts, recipe), "distilled": distilled, "rescorer": neural}
    sources = Sources(by_name, made.lm)
    sources.mix(scorers.ngram_weights[0])
    return sources


def corpus_texts(beginnings: Beginnings, most_tokens: int) -> list[np.ndarray]:
    """Whole stories of the training part; none with a prompt that is held out."""
    held_out = [
        np.array(prompt, np.int32).tobytes() for prompt in beginnings.tune + beginnings.test
    ]
    texts, count = [], 0
    for story in beginnings.whole:
        data = story.astype(np.int32)
        if count + len(data) > most_tokens and texts:
            break
        if not any(prompt in data.tobytes() for prompt in held_out):
            texts.append(data)
            count += len(data)
    return texts


def distil(base: LlamaForCausalLM, texts: list[np.ndarray], recipe: Recipe) -> NGramLM:
    """An n-gram LM of the model's choices over the texts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in train_lm
        return distil_ngram(
            base, texts, recipe.order, smoothing=recipe.smoothing, window=recipe.row_length
        )


def cached_rescorer(
    work: Path, rows: np.ndarray, scorers: ScorerRecipe, watcher: ConsoleWatcher
) -> PreTrainedModel:
    """A small GPT that learnt from the model's own stories."""
    sizes = (scorers.hidden_size, scorers.num_layers, scorers.num_attention_heads)
    digest = hashlib.sha256(repr((sizes, scorers.training)).encode()).hexdigest()[:8]
    path = work / f"rescorer-{digest}"
    if (path / "config.json").is_file():
        return GPTNeoXForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    torch.manual_seed(0)
    model = build_small_gpt(
        VOCAB_SIZE, hidden_size=sizes[0], num_layers=sizes[1], num_attention_heads=sizes[2],
        num_heads=2,
    ).base  # fmt: skip
    watcher.begin("training the rescorer", scorers.training.steps)
    train_rescorer(
        model, rows.reshape(-1), scorers.training,
        lambda report: watcher.advance(note=f"loss {report.losses[0]:.2f}"),
    )  # fmt: skip
    watcher.end()
    temporary = path.with_name(f".{path.name}")
    model.save_pretrained(temporary)
    temporary.replace(path)
    return model


Tuned = tuple[dict[str, DraftConfig], dict[str, dict[str, float]]]


def tune_lines(
    model: BlockwiseLM, prompts: list[list[int]], replay: Recording, sources: Sources,
    recipe: Recipe, scorers: ScorerRecipe, watcher: ConsoleWatcher,
) -> Tuned:  # fmt: skip
    """The best weights of each line, and the block efficiency of all tried.

    Lines with an n-gram LM are replayed, those with a scorer decode the tuning prompts; the weight
    of the n-gram LM in the mixture is tuned with the mixture's alpha, see `best_setting`.
    """
    options: dict[str, DraftConfig] = {}
    tuned: dict[str, dict[str, float]] = {}
    for setting in REPLAYED:
        lm = setting.source_of(sources.common, sources.by_name)
        points = {alpha: DraftConfig(top_k=recipe.top_k, alpha=alpha) for alpha in recipe.alphas}
        tried = {a: replay.block_efficiency(setting, lm, point) for a, point in points.items()}
        options[setting.name] = points[max(tried, key=lambda alpha: tried[alpha])]
        tuned[setting.name] = {f"{alpha}": value for alpha, value in tried.items()}
    weights = {"neural": (0.0,), "ngram_neural": scorers.ngram_weights}
    grids = {s: list(itertools.product(scorers.alphas, weights[s.name])) for s in DECODED}
    watcher.begin("tuning the scorers' weights", sum(map(len, grids.values())))
    for setting, grid in grids.items():
        values = {}
        for alpha, weight in grid:
            sources.mix(weight)
            point = DraftConfig(top_k=recipe.top_k, alpha=alpha)
            values[alpha, weight] = decode_all(model, prompts, setting, point, sources, recipe)
            watcher.advance(note=setting.name)
        alpha, weight = best_setting(values)
        sources.mix(weight)
        options[setting.name] = DraftConfig(top_k=recipe.top_k, alpha=alpha)
        tuned[setting.name] = {f"{a}, {w}": value for (a, w), value in values.items()}
    watcher.end()
    return options, tuned


def best_setting(values: dict[tuple[float, float], float]) -> tuple[float, float]:
    """The point of a grid with the best mean of its own value and its neighbors'.

    With few prompts single values vary by chance; the mean over neighbors is smoother.
    """
    axes = [sorted({point[axis] for point in values}) for axis in range(2)]
    at = {point: tuple(map(list.index, axes, point)) for point in values}

    def mean(point: tuple[float, float]) -> float:
        near = [
            value
            for other, value in values.items()
            if sum(abs(a - b) for a, b in zip(at[point], at[other], strict=True)) <= 1
        ]
        return sum(near) / len(near)

    return max(values, key=mean)


def decode_all(
    model: BlockwiseLM, prompts: list[list[int]], setting: Setting, options: DraftConfig,
    sources: Sources, recipe: Recipe,
) -> float:  # fmt: skip
    """Block efficiency on the prompts, decoded as one batch."""
    drafter = setting.drafter(setting.source_of(None, sources.by_name), [], options)
    total = DecodeStats()
    for result in decode(
        to_drafting(model), prompts, drafter, max_new_tokens=recipe.max_new_tokens,
        stop_token_ids=[BEGIN],
    ):  # fmt: skip
        total.merge(result.stats)
    return total.block_efficiency
