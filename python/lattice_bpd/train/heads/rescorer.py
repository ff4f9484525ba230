"""Training a small causal LM that rescores drafts (Kim et al. 2024, section 7.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy.typing as npt
from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.train.heads.joint import TrainOptions, TrainReport, train_blockwise

RESCORER_OPTIONS = TrainOptions(steps=900, batch_size=32, sequence_length=128)


def train_rescorer(
    model: PreTrainedModel,
    token_ids: npt.ArrayLike,
    options: TrainOptions = RESCORER_OPTIONS,
    on_step: Callable[[TrainReport], None] | None = None,
) -> TrainReport:
    """Train a causal LM on next tokens, in place, as `train_blockwise` trains a target.

    What it should learn from is what the target writes (`write_own_text`): its drafts are judged
    by that.

    Args:
        model: any causal LM over the target's token ids; left in evaluation mode.
        token_ids: (N,) ints, texts one behind the other; longer than sequence_length + 2.
        options: see TrainOptions; what they say of draft heads is of no effect.
        on_step: called after every step; the first of its losses is the model's.

    Returns:
        TrainReport of the last step.

    Raises:
        TypeError: no causal LM with an output embedding.
        ValueError: a text that is too short, ids outside the vocabulary, options out of range, or
            a loss that is not finite.
    """
    # The trainer wants a draft head: one of a single number, without weight and at one position.
    heads = BlockwiseLM(model, num_heads=2, inner_size=1)
    one = 1.0 / (options.batch_size * options.sequence_length) if options.batch_size > 0 else 1.0
    chosen = replace(options, head_weights=(1.0, 0.0), head_fraction=one, train_base=True)
    return train_blockwise(heads, token_ids, chosen, on_step)
