"""Training a small causal LM that rescores drafts (Kim et al. 2024, section 7.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy.typing as npt
from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.joint import TrainOptions, TrainReport, train_blockwise

RESCORER_OPTIONS = TrainOptions(steps=900, batch_size=32, sequence_length=128)


def train_rescorer(
    model: PreTrainedModel,
    token_ids: npt.ArrayLike,
    options: TrainOptions = RESCORER_OPTIONS,
    on_step: Callable[[TrainReport], None] | None = None,
) -> TrainReport:
    """Trains a causal LM on next tokens, in place, as `train_blockwise` trains a target.

    The best training text is self-generated text of the target (`generate_texts`), since the
    target accepts nothing else.

    Args:
        model: any causal LM over the target's token ids; left in evaluation mode.
        token_ids: (N,) ints, concatenated texts; longer than sequence_length + 2.
        options: see TrainOptions; options of draft heads have no effect.
        on_step: called after every step; the first loss is the model's.

    Returns:
        The report of the last step.

    Raises:
        TypeError: not a causal LM with an output embedding.
        ValueError: a text that is too short, ids outside the vocabulary, options out of range, or
            a loss that is not finite.
    """
    # The trainer requires a draft head: size 1, loss weight 0, evaluated at one position.
    heads = BlockwiseLM(model, num_heads=2, inner_size=1)
    one = 1.0 / (options.batch_size * options.sequence_length) if options.batch_size > 0 else 1.0
    chosen = replace(options, head_weights=(1.0, 0.0), head_fraction=one, train_base=True)
    return train_blockwise(heads, token_ids, chosen, on_step)
