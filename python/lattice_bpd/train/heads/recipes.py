"""The ways to train heads that the source papers use, by name, with the numbers each begins from.

joint      target and heads together from random weights (Stern et al. 2018, section 6)
frozen     heads alone on a target that stays as it is (Stern et al. 2018, section 6.1)
finetune   a trained target and heads together, each head's loss with its weight lambda_h
(Stern et al. 2018, section 6.2; Kim et al. 2024, appendix C.1)
distil     heads alone, on what the target itself writes greedily (Stern et al. 2018, section 6.2)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HeadRecipe:
    """A way to train heads; the numbers are defaults that options override.

    Attributes:
        name: of the recipe.
        summary: one line for people.
        has_base: it begins from a trained target; else from a configuration.
        train_base: the target's weights change.
        own_text: heads learn from the target's own greedy output.
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
    own_text: bool
    matrix_lr: float
    other_lr: float
    base_rate: float
    head_ramp: float
    head_fraction: float


RECIPES = {
    recipe.name: recipe
    for recipe in (
        HeadRecipe("joint", "target and heads together from random weights",
                   False, True, False, 0.02, 0.03, 1.0, 0.5, 0.125),
        HeadRecipe("frozen", "heads alone, the target stays as it is",
                   True, False, False, 0.02, 0.01, 1.0, 0.0, 0.5),
        HeadRecipe("finetune", "a trained target and heads together",
                   True, True, False, 0.02, 0.01, 0.02, 0.1, 0.125),
        HeadRecipe("distil", "heads alone, on the target's own greedy output",
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
