"""Checks of whether a target is the one that a BlockDrafter was trained for."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.vocabulary import check_same_ids

_ADVICE = "give the target that it was trained for"


def checked_embeddings(
    target: PreTrainedModel, config: BlockDrafterConfig
) -> tuple[nn.Module, nn.Module]:
    """The input and output embeddings of a target that fits a drafter.

    Raises:
        ValueError: a target of another vocabulary or width, or with too few layers.
    """
    text = target.config.get_text_config()
    num_layers, width = int(text.num_hidden_layers), int(text.hidden_size)
    if max(config.hidden_layers) >= num_layers:
        raise ValueError(
            f"BlockDrafter: reads the target's layers {config.hidden_layers}; the target has "
            f"{num_layers}, expected 0..{num_layers - 1}; {_ADVICE}"
        )
    if width != config.target_hidden_size:
        raise ValueError(
            f"BlockDrafter: reads hidden states of width {config.target_hidden_size}; those of "
            f"the target have {width}; {_ADVICE}"
        )
    embedding: Any = target.get_input_embeddings()
    output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
    _check(embedding, "input", config, is_own=config.has_own_embedding)
    _check(output, "output", config, is_own=config.has_own_output)
    return embedding, output


def _check(module: Any, kind: str, config: BlockDrafterConfig, *, is_own: bool) -> None:
    if module is None:
        raise ValueError(f"BlockDrafter: the target has no {kind} embedding; expected a causal LM")
    rows, width = module.weight.shape
    size = config.vocab_size or rows
    if rows != size and not is_own:
        check_same_ids("BlockDrafter", "drafter", size, rows)
    elif rows != size:
        raise ValueError(
            f"BlockDrafter: has a vocabulary of {config.vocab_size:,} tokens and the target's "
            f"{kind} embedding {rows:,} rows; {_ADVICE}"
        )
    if not is_own and width != config.hidden_size:
        raise ValueError(
            f"BlockDrafter: is {config.hidden_size} wide and the target's {kind} embedding "
            f"{width}; expected the same, or a drafter with an {kind} embedding of its own"
        )
