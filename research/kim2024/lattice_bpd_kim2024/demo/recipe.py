"""Sizes and steps of demo models, such as that of `make demo ARGS=--train`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftRecipe:
    """Drafting options of a demo model, and sizes of its tuning and test data.

    Attributes:
        order: n of the n-gram LM.
        prompt_length: tokens of a prompt.
        max_new_tokens: tokens decoded after it.
        tune_prompts: prompts that alpha and temperature are tuned on.
        test_prompts: prompts that results are reported on.
        alphas: weights of the LM that are tried.
        temperatures: of trees that are tried.
        top_k: k.
        num_drafts: p.
        max_nodes: N of trees.
        seed: of weights, batches and prompts.
    """

    order: int = 4
    prompt_length: int = 48
    max_new_tokens: int = 40
    tune_prompts: int = 12
    test_prompts: int = 80
    alphas: tuple[float, ...] = (0.1, 0.15, 0.2, 0.3, 0.5)
    temperatures: tuple[float, ...] = (1.0, 1.5, 2.0)
    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int = 36
    seed: int = 0


@dataclass(frozen=True)
class Recipe(DraftRecipe):
    """A demo model trained from scratch.

    Attributes:
        name: of the folder for trained parts.
        max_files: training files used; None: all.
        vocab_size: V of the byte-level BPE.
        num_heads: h, the target's own included.
        steps: training steps of the blockwise LM.
        draft_weight: lambda of heads 2..h; 1 for head 1.
        max_train_seconds: a slower machine does fewer steps instead of exceeding this.
        batch_size: sequences per step.
        sequence_length: tokens of a training sequence, and the target's positions.
        min_counts: rarer n-grams are left out, by order.
    """

    name: str = "model"
    max_files: int | None = None
    vocab_size: int = 1024
    num_heads: int = 9
    steps: int = 2600
    draft_weight: float = 0.5
    max_train_seconds: float = 220.0
    batch_size: int = 8
    sequence_length: int = 256
    min_counts: tuple[int, ...] = (1, 1, 2, 2)

    def trained_by(self) -> dict[str, object]:
        """The fields that the trained parts depend on; others may change without retraining."""
        names = (
            "max_files vocab_size num_heads steps draft_weight batch_size sequence_length order "
            "min_counts seed"
        )
        values = ((name, getattr(self, name)) for name in names.split())
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values}


FULL = Recipe()
QUICK = Recipe(
    name="model-quick",
    max_files=250,
    steps=500,
    max_train_seconds=35.0,
    tune_prompts=4,
    test_prompts=16,
    alphas=(0.05, 0.15),
)
