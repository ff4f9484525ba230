"""Head-training recipes of the source papers, with their default options.

joint      target and heads together, from random weights (Stern et al. 2018, section 6)
frozen     heads only, on a frozen target (Stern et al. 2018, section 6.1)
finetune   a trained target and heads together, head h with loss weight lambda_h (Stern
           et al. 2018, section 6.2; Kim et al. 2024, appendix C.1)
distil     heads only, on greedy output of the target (Stern et al. 2018, section 6.2)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadRecipe:
    """A head-training recipe; its numbers are defaults of TrainOptions.

    Attributes:
        name: name of the recipe.
        summary: one line for --help.
        has_base: starts from a trained target, else from a configuration.
        train_base: whether the target is trained.
        self_generated: heads train on greedy output of the target.
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
        HeadRecipe("distil", "heads only, on greedy output of the target",
                   True, False, True, 0.02, 0.01, 1.0, 0.0, 0.5),
    )
}  # fmt: skip


def find_recipe(name: str) -> HeadRecipe:
    """A recipe by its name.

    Raises:
        ValueError: no such recipe.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe is {name!r}; expected one of {', '.join(RECIPES)}")
    return RECIPES[name]
