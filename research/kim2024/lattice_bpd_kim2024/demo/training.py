"""Trains a small demo model from scratch, tunes it and writes its folder.

DIR/tokenizer.json    byte-level BPE
DIR/config.json ...   the blockwise LM (lattice_bpd.models.checkpoint)
DIR/ngram.lm          the n-gram LM
DIR/recipe.json       their recipe; written last, so that a folder with it is complete
"""

from __future__ import annotations

import itertools
import json
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import write_json
from lattice_bpd.decode.drafters.drafter import NoDrafter
from lattice_bpd.decode.loop.decode import decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.extensions import require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.blockwise import BlockwiseLM, to_drafting
from lattice_bpd_kim2024.demo.library_text import Corpus, draw_prompts
from lattice_bpd_kim2024.demo.model_folder import (
    LM_FILE,
    TOKENIZER_FILE,
    DemoModel,
    DemoSettings,
    encode,
)
from lattice_bpd_kim2024.demo.recipe import DraftRecipe, Recipe
from lattice_bpd_kim2024.heads.joint import TrainOptions, TrainReport, train_blockwise
from lattice_bpd_kim2024.replay.replay import Recording, record
from lattice_bpd_kim2024.replay.strategies import DEMO_SETTINGS
from lattice_bpd_kim2024.small_models import END_OF_TEXT, build_small_gpt, train_byte_bpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer


RECIPE_FILE = "recipe.json"
_VERSION = 2  # increase it if training changes but no number of the recipe does


@dataclass
class Parts:
    """Trained parts.

    Attributes:
        tokenizer: byte-level BPE.
        model: target and heads.
        lm: n-gram LM.
        reused: whether they were read from files instead of trained.
        seconds: wall time by stage, of training or of reading.
        training: steps, losses and precision of the blockwise LM's training.
    """

    tokenizer: Tokenizer
    model: BlockwiseLM
    lm: NGramLM
    reused: bool
    seconds: dict[str, float]
    training: dict[str, Any]

    @property
    def end_of_text(self) -> int:
        """The token id that ends a document."""
        return end_of_text(self.tokenizer)

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        """Token ids of each text, (T_i,) int32."""
        return encode(self.tokenizer, texts)


def end_of_text(tokenizer: Tokenizer) -> int:
    """The token id that ends a document.

    Raises:
        FormatError: the tokenizer has none.
    """
    token_id = tokenizer.token_to_id(END_OF_TEXT)
    if token_id is None:
        raise FormatError(
            f"{TOKENIZER_FILE}: has no token {END_OF_TEXT}; expected a tokenizer of the demo; "
            "train again with --retrain"
        )
    return token_id


def load_parts(directory: Path, recipe: Recipe, corpus: Corpus) -> Parts | None:
    """Parts trained earlier with this recipe and corpus; None if there are none.

    Raises:
        FormatError: the parts are there but damaged.
    """
    start = time.perf_counter()
    record = _read_record(directory)
    if record is None or record.get("made_from") != _made_from(recipe, corpus):
        return None
    try:
        tokenizer = require("tokenizers", "train").Tokenizer.from_file(
            str(directory / TOKENIZER_FILE)
        )
    except Exception as error:  # tokenizers raises bare Exception
        raise FormatError(
            f"{directory / TOKENIZER_FILE}: cannot be read ({error}); delete {directory} to train "
            "again"
        ) from error
    model = BlockwiseLM.from_pretrained(directory, attn_implementation="eager")
    lm = NGramLM.load(directory / LM_FILE)
    seconds = {"load": time.perf_counter() - start}
    return Parts(tokenizer, model, lm, True, seconds, dict(record.get("training", {})))


def train_parts(directory: Path, recipe: Recipe, corpus: Corpus, watcher: Watcher) -> Parts:
    """Train all parts and write them to the directory, which is created if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / RECIPE_FILE).unlink(missing_ok=True)
    seconds: dict[str, float] = {}

    def timed(stage: str, total: int | None, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        watcher.begin(stage, total)
        result = work()
        watcher.end()
        seconds[stage] = time.perf_counter() - start
        return result

    tokenizer = timed("tokenizer", None, lambda: train_byte_bpe(corpus.train, recipe.vocab_size))
    tokenizer.save(str(directory / TOKENIZER_FILE))
    documents = timed("encode", None, lambda: encode(tokenizer, corpus.train))
    lm, notes = timed("ngram", None, lambda: train_recipe_lm(documents, recipe))
    lm.save(directory / LM_FILE)
    end = end_of_text(tokenizer)
    text = np.concatenate([np.append(ids, np.int32(end)) for ids in documents])
    model, report = timed("heads", recipe.steps, lambda: _train_model(text, recipe, watcher))
    model.save_pretrained(directory)
    training = {
        "steps": report.steps,
        "losses": report.losses,
        "precision": report.precision,
        "tokens": len(text),
        "ngrams": lm.num_ngrams,
        "ngram_notes": notes,
    }
    record = {"made_from": _made_from(recipe, corpus), "training": training, "seconds": seconds}
    write_json(directory / RECIPE_FILE, record)
    return Parts(tokenizer, model, lm, False, seconds, training)


def train_recipe_lm(
    documents: Sequence[npt.NDArray[np.int32]], recipe: Recipe
) -> tuple[NGramLM, list[str]]:
    """The LM, and warnings of Katz smoothing: with 1,024 tokens few bigrams are unseen."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lm = NGramLM.train(
            documents,
            recipe.order,
            vocab_size=recipe.vocab_size,
            min_counts=list(recipe.min_counts),
        )
    return lm, [str(warning.message) for warning in caught]


def _train_model(
    text: npt.NDArray[np.int32], recipe: Recipe, watcher: Watcher
) -> tuple[BlockwiseLM, TrainReport]:
    torch.manual_seed(recipe.seed)
    model = build_small_gpt(
        recipe.vocab_size, num_heads=recipe.num_heads, max_positions=recipe.sequence_length
    )
    if torch.cuda.is_available():
        model.to("cuda")
    options = TrainOptions(
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        sequence_length=recipe.sequence_length,
        head_weights=[1.0] + [recipe.draft_weight] * (recipe.num_heads - 1),
        max_seconds=recipe.max_train_seconds,
        seed=recipe.seed,
    )

    def on_step(report: TrainReport) -> None:
        note = f"loss of head 1 {report.losses[0]:.2f}, head 2 {report.losses[1]:.2f}"
        watcher.advance(report.steps, note)

    report = train_blockwise(model, text, options, on_step)
    return model, report


def _made_from(recipe: Recipe, corpus: Corpus) -> dict[str, object]:
    return {**recipe.trained_by(), "corpus": corpus.fingerprint, "version": _VERSION}


def _read_record(directory: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((directory / RECIPE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def train_demo_model(
    directory: Path, recipe: Recipe, corpus: Corpus, watcher: Watcher, *, retrain: bool = False
) -> tuple[DemoModel, Parts]:
    """Train the parts missing in the directory, tune alpha and temperature, write demo.json.

    Args:
        directory: a demo model folder afterwards; see `load_demo_model`.
        recipe: sizes and steps.
        corpus: trained on and tuned on.
        watcher: notified of the stages.
        retrain: train even if the directory has parts of this recipe and corpus.

    Returns:
        The model, and its parts with statistics of their training.

    Raises:
        FormatError: damaged parts.
        OSError: the directory cannot be written.
    """
    parts = None if retrain else load_parts(directory, recipe, corpus)
    parts = parts or train_parts(directory, recipe, corpus, watcher)
    start = time.perf_counter()
    watcher.begin("tune", recipe.tune_prompts)
    recording = _record_greedy(parts, recipe, corpus, watcher)
    tried = tune_drafts(recording, parts.lm, recipe)
    watcher.end()
    parts.seconds["tune"] = time.perf_counter() - start
    by_alpha = {str(o.alpha): value for o, value in tried["p_best_ngram"].items()}
    training = {**parts.training, "block_efficiency_by_alpha": by_alpha}
    settings = tuned_settings(recipe, tried, parts.end_of_text, training)
    settings.save(directory)
    return DemoModel(directory, parts.tokenizer, parts.model, parts.lm, settings), parts


Tried = dict[str, dict[DraftConfig, float]]


def tune_drafts(recording: Recording, lm: NGramLM, recipe: DraftRecipe) -> Tried:
    """Replay the demo's settings with each weight of the LM and temperature of trees.

    Args:
        recording: of greedy outputs.
        lm: n-gram LM.
        recipe: the values to try.

    Returns:
        Block efficiency by options, by the name of the setting.
    """
    grids: dict[str, Iterable[tuple[float, float]]] = {
        "bpd": [(0.0, 1.0)],
        "p_best_0gram": [(0.0, 1.0)],
        "p_best_ngram": itertools.product(recipe.alphas, [1.0]),
        "tree_0gram": itertools.product([0.0], recipe.temperatures),
        "tree": itertools.product(recipe.alphas, recipe.temperatures),
    }
    sizes = DraftConfig("tree", recipe.top_k, recipe.num_drafts, recipe.max_nodes)
    settings = {setting.name: setting for setting in DEMO_SETTINGS}
    return {
        name: {
            (
                options := replace(sizes, alpha=alpha, temperature=temperature)
            ): recording.block_efficiency(settings[name], lm, options)
            for alpha, temperature in grid
        }
        for name, grid in grids.items()
    }


def tuned_settings(
    recipe: DraftRecipe,
    tried: Tried,
    end_of_text: int,
    training: dict[str, Any],
    loops: dict[str, float] | None = None,
) -> DemoSettings:
    """demo.json of a model, with the best of what `tune_drafts` tried.

    Args:
        recipe: sizes.
        tried: block efficiency by options, by the name of the setting.
        end_of_text: the token id that ends a document.
        training: how the model was trained.
        loops: see DemoSettings.
    """
    best = {
        name: max(efficiencies, key=lambda option: efficiencies[option])
        for name, efficiencies in tried.items()
    }
    return DemoSettings(
        prompt_length=recipe.prompt_length,
        max_new_tokens=recipe.max_new_tokens,
        top_k=recipe.top_k,
        num_drafts=recipe.num_drafts,
        max_nodes=recipe.max_nodes,
        order=recipe.order,
        seed=recipe.seed,
        alpha={name: best[name].alpha for name in ("p_best_ngram", "tree")},
        temperature={name: best[name].temperature for name in ("tree_0gram", "tree")},
        end_of_text=end_of_text,
        training=training,
        loops=loops or {},
    )


def _record_greedy(parts: Parts, recipe: Recipe, corpus: Corpus, watcher: Watcher) -> Recording:
    """Greedy outputs after the tuning prompts, with the heads at each position."""
    documents = parts.encode(corpus.tune)
    length, max_new_tokens = recipe.prompt_length, recipe.max_new_tokens
    prompts = draw_prompts(documents, recipe.tune_prompts, length, max_new_tokens, recipe.seed)
    drafting, outputs = to_drafting(parts.model), []
    for prompt in prompts:
        result = decode(
            drafting,
            prompt,
            NoDrafter(),
            max_new_tokens=max_new_tokens,
            stop_token_ids=[parts.end_of_text],
        )
        outputs.append(result.token_ids)
        watcher.advance()
    return record(parts.model, prompts, outputs, top_k=recipe.top_k)
