"""Writes the folder of the demo's model, once `train_demo_model.py` has trained its parts."""

from __future__ import annotations

import platform
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from transformers import PreTrainedTokenizerFast

from lattice_bpd.models import BlockwiseHeads
from lattice_bpd_kim2024.demo.model_folder import DemoSettings
from lattice_bpd_kim2024.demo.training import end_of_text, tuned_settings
from lattice_bpd_kim2024.small_models import END_OF_TEXT

if TYPE_CHECKING:
    from train_demo_model import Training

MOST_BYTES = 8 << 20
"""The committed folder is not larger than this."""


def write_model(training: Training, out: Path) -> None:
    """Write the finished model's folder, or leave what is there.

    Raises:
        ValueError: the folder would be larger than MOST_BYTES.
    """
    recipe, loops = training.recipe, training.loops()
    tried = training.tune()
    efficiency = {name: max(efficiencies.values()) for name, efficiencies in tried.items()}
    model = training.model()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".demo-model-") as name:
        folder = Path(name) / out.name
        model.to(torch.bfloat16).save_pretrained(folder)
        PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(training.work / "tokenizer.json"), eos_token=END_OF_TEXT
        ).save_pretrained(folder)
        shutil.copy(training.work / "ngram.lm", folder)
        facts = {
            "recipe": asdict(recipe),
            "stages": training.facts,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "tuning_block_efficiency": efficiency,
        }
        settings = tuned_settings(recipe, tried, end_of_text(training.tokenizer()), facts, loops)
        settings.save(folder)
        (folder / "README.md").write_text(model_card(training, settings), encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.iterdir())
        if size > MOST_BYTES:
            raise ValueError(
                f"the model takes {size:,} bytes; expected at most {MOST_BYTES:,}; lower lm_bytes"
            )
        if out.exists():
            out.rename(Path(name) / "previous")
        for path in folder.iterdir():
            path.chmod(0o644)
        folder.rename(out)
    watcher = training.watcher
    watcher.console.print(f"{out}: {size / 1e6:.2f} MB; loops {loops}; {efficiency}")


def model_card(training: Training, settings: DemoSettings) -> str:
    """README.md of the folder."""
    model, lm, recipe = training.model(), training.lm(), training.recipe
    parameters = sum(weight.numel() for weight in model.base.parameters())
    heads = sum(weight.numel() for weight in cast(BlockwiseHeads, model.heads).parameters())
    minutes = sum(facts["seconds"] for facts in training.facts.values()) / 60
    text, loops, version = training.facts["text"], settings.loops, settings.training["python"]
    return f"""# The demo's model

A causal LM of Python code for `make demo`: small enough for a repository, good enough to
show what rescored drafts gain. It is of no other use.

- **Target**: GPT-NeoX, {recipe.num_layers} layers, D = {recipe.hidden_size},
  V = {model.vocab_size}, {parameters:,} parameters, bfloat16.
- **Heads**: {model.num_slots} draft heads with an inner size of {recipe.inner_size},
  {heads:,} parameters, trained on greedy continuations by the frozen target.
- **n-gram LM**: order {lm.order}, {sum(lm.num_ngrams):,} n-grams ({recipe.smoothing}) of
  {recipe.continuations:,} greedy continuations by the target.
- **Text**: the standard library of Python {version} without its tests, {text["tokens"]:,} tokens of
  {text["files"]} files, under the PSF license. A sixteenth of the files is held out for prompts,
  another for tuning; the split is by a hash of the file's name, so the same modules are held out
  in every version of Python.
- **Training**: `python examples/demo/train_demo_model.py`, {minutes:.0f} minutes on two cores
  that other programs shared. `demo.json` has the recipe, and losses and seconds of each stage.
- **Loops**: {loops["model"]:.1%} of the tokens of its greedy continuations of
  {recipe.test_prompts} held-out prompts end a window of 8 tokens that occurred before;
  {loops["human"]:.1%} in the files themselves.
- **Rescorer** (`rescorer/`, strategies `neural` and `mixture`): GPT-NeoX, 2 layers, D = 128,
  445,952 parameters, bfloat16, trained by `python examples/demo/train_demo_rescorer.py`: 130 steps
  on an eighth of the files.
"""
