"""Head-training recipes of the source papers, their default options, and presets of a paper.

joint      target and heads together, from random weights (Stern et al. 2018, section 6)
frozen     heads only, on a frozen target (Stern et al. 2018, section 6.1)
finetune   a trained target and heads together, head h with loss weight lambda_h (Stern
           et al. 2018, section 6.2; Kim et al. 2024, appendix C.1)
distil     heads only, on output of the target (Stern et al. 2018, section 6.2)
distil-finetune   a trained target and heads together, on output of that target ("both" there)

The preset `kim2024` has the loss and schedule of Kim et al. 2024, appendix C: pretraining (C.2) for
`joint`, and the downstream tasks' schedule for `finetune`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OPTIMIZERS = ("muon", "adamw")
"""Optimizers of matrices; all other weights train with AdamW."""


@dataclass(frozen=True)
class HeadRecipe:
    """A head-training recipe; its numbers are defaults of TrainOptions.

    Attributes:
        name: name of the recipe.
        summary: one line for --help.
        has_base: starts from a trained target, else from a configuration.
        train_base: whether the target is trained.
        self_generated: trains on output of the target, greedy or of a beam search.
        matrix_lr: see TrainOptions, as are the others.
        other_lr: see TrainOptions.
        base_rate: see TrainOptions.
        head_ramp: see TrainOptions.
        head_fraction: see TrainOptions.
    """

    name: str
    summary: str
    has_base: bool
    train_base: bool
    self_generated: bool
    matrix_lr: float
    other_lr: float
    base_rate: float
    head_ramp: float
    head_fraction: float


RECIPES = {
    recipe.name: recipe
    for recipe in (
        HeadRecipe("joint", "target and heads together, from random weights",
                   False, True, False, 0.02, 0.03, 1.0, 0.5, 0.125),
        HeadRecipe("frozen", "heads only, on a frozen target",
                   True, False, False, 0.02, 0.01, 1.0, 0.0, 0.5),
        HeadRecipe("finetune", "a trained target and heads together",
                   True, True, False, 0.02, 0.01, 0.02, 0.1, 0.125),
        HeadRecipe("distil", "heads only, on output of the target",
                   True, False, True, 0.02, 0.01, 1.0, 0.0, 0.5),
        HeadRecipe("distil-finetune", "a trained target and heads together, on its output",
                   True, True, True, 0.02, 0.01, 0.02, 0.1, 0.125),
    )
}  # fmt: skip


_KIM2024 = {
    "matrix_lr": 1e-4, "other_lr": 1e-4, "base_rate": 1.0,  # one peak rate for all weights
    "warmup": 0, "head_ramp": 0.0, "head_fraction": 1.0,  # lambda 1 throughout, all positions
    "optimizer": "adamw", "dropout": False,
}  # fmt: skip


@dataclass(frozen=True)
class Preset:
    """The training of a paper, for the recipes that the paper has.

    Attributes:
        name: name of the preset.
        first_head: whether head 1 has a network of its own.
        options: of TrainOptions, by recipe; sequence_length is an upper limit.
    """

    name: str
    first_head: bool
    options: Mapping[str, Mapping[str, Any]]


PRESETS = {
    "kim2024": Preset("kim2024", True, {
        "joint": {"steps": 200_000, "batch_size": 2048, "sequence_length": 512, **_KIM2024},
        "finetune": {"steps": 100_000, "batch_size": 2, "sequence_length": 2048, **_KIM2024},
    }),
}  # fmt: skip


def find_preset(name: str, recipe: str) -> Preset:
    """A preset by its name.

    Raises:
        ValueError: no such preset, or one that does not have the recipe.
    """
    if name not in PRESETS:
        raise ValueError(f"preset is {name!r}; expected one of {', '.join(PRESETS)}")
    if recipe not in PRESETS[name].options:
        raise ValueError(
            f"preset {name} has no recipe {recipe}; expected recipe "
            f"{' or '.join(PRESETS[name].options)}"
        )
    return PRESETS[name]


def find_recipe(name: str) -> HeadRecipe:
    """A recipe by its name.

    Raises:
        ValueError: no such recipe.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe is {name!r}; expected one of {', '.join(RECIPES)}")
    return RECIPES[name]
