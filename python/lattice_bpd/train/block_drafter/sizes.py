"""The default sizes of a block drafter for a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.token_ids import Int32Array

_FEATURES = 5
_CHUNK = 1 << 20


def config_for(
    target: PreTrainedModel,
    num_layers: int,
    block_size: int,
    mask_token_id: int,
    *,
    hidden_layers: Sequence[int] = (),
    intermediate_size: int | None = None,
) -> BlockDrafterConfig:
    """Layers of the target's sizes, which read some of its layers.

    Args:
        target: a causal LM.
        num_layers: layers of the drafter.
        block_size: K.
        mask_token_id: a token that texts do not contain.
        hidden_layers: see `spread_layers` for the default.
        intermediate_size: None: the target's.
    """
    text = target.config.get_text_config()
    width, heads = int(text.hidden_size), int(text.num_attention_heads)
    inner = intermediate_size or getattr(text, "intermediate_size", None) or 4 * width
    return BlockDrafterConfig(
        hidden_size=width,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=int(getattr(text, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(text, "head_dim", None) or width // heads),
        intermediate_size=int(inner),
        vocab_size=embedding_rows(target),
        target_hidden_size=width,
        hidden_layers=tuple(hidden_layers) or spread_layers(int(text.num_hidden_layers)),
        block_size=block_size,
        mask_token_id=mask_token_id,
    )


def embedding_rows(target: PreTrainedModel) -> int:
    """V, rows of the target's input embedding, which may be more than its tokenizer has tokens."""
    embedding: Any = target.get_input_embeddings()
    return len(embedding.weight)


def spread_layers(count: int) -> tuple[int, ...]:
    """The layers that are read of a target with `count`; see BlockJob.hidden_layers.

    The range from the second to the third to last is that of DFlash (arXiv 2602.06036).
    """
    if count < _FEATURES + 3:
        return tuple(sorted({0, count // 2, count - 1}))
    return tuple(round(float(layer)) for layer in np.linspace(1, count - 3, _FEATURES))


def find_unused_token(ids: Int32Array, vocab_size: int) -> int:
    """The largest token id that a text (N,) does not contain.

    Raises:
        ValueError: it contains all.
    """
    counts = np.zeros(vocab_size, dtype=np.int64)
    for start in range(0, len(ids), _CHUNK):
        counts += np.bincount(ids[start : start + _CHUNK], minlength=vocab_size)
    unused = np.flatnonzero(counts == 0)
    if not len(unused):
        raise ValueError(
            f"the text contains all {vocab_size:,} token ids; expected one that can be the mask of "
            "blocks; choose a rare one with mask_token_id (--mask-token-id)"
        )
    return int(unused[-1])
