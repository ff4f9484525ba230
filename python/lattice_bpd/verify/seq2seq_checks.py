"""Checks of encoder-decoders, and reading of their start and stop tokens."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models.adapters import refuse_adapters


def check_encoder_decoder(model: Any) -> Any:
    """The model itself; TypeError unless it is an encoder-decoder with an output embedding.

    ValueError for adapters, see `refuse_adapters`.
    """
    embedding = None
    if isinstance(model, PreTrainedModel) and getattr(model.config, "is_encoder_decoder", False):
        embedding = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if embedding is None:
        raise TypeError(
            f"Seq2SeqTarget: model is a {type(model).__name__}; expected an encoder-decoder of "
            "transformers with an output embedding; load one with AutoModelForSeq2SeqLM"
        )
    refuse_adapters(model)
    return model


def count_source_ids(base: Any) -> int:
    """The number of rows of the encoder's input embedding.

    Raises:
        TypeError: neither encoder nor model names an input embedding.
    """
    for module in (base.get_encoder(), base):
        try:
            return int(module.get_input_embeddings().weight.shape[0])
        except (AttributeError, NotImplementedError):
            continue
    raise TypeError(
        f"Seq2SeqTarget: {type(base).__name__} has no input embedding of source tokens; expected "
        "an encoder-decoder that reads text"
    )


def find_position_embedding(decoder: nn.Module) -> nn.Module | None:
    """The decoder's position embedding if it takes position ids, else None."""
    embedding: nn.Module | None = getattr(decoder, "embed_positions", None)
    if not isinstance(embedding, nn.Embedding):
        return None
    takes_ids = "position_ids" in inspect.signature(embedding.forward).parameters
    return embedding if takes_ids else None


def read_decoder_prompt(base: Any, given: Sequence[int] | None, vocab_size: int) -> list[int]:
    """The first tokens of outputs: as given, or the model's start and forced first token."""
    settings = base.generation_config
    if given is None:
        start = settings.decoder_start_token_id
        start = base.config.decoder_start_token_id if start is None else start
        forced = settings.forced_bos_token_id
        given = [token for token in (start, forced) if token is not None]
        if start is None:
            raise ValueError(
                f"Seq2SeqTarget: {type(base).__name__} names no decoder_start_token_id; give "
                "decoder_prompt=[start token id]"
            )
    prompt = [int(token) for token in given]
    if not prompt or min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ValueError(
            f"Seq2SeqTarget: decoder_prompt is {prompt}; expected one token id or more of "
            f"0..{vocab_size - 1}, the start token first"
        )
    return prompt


def read_stop_tokens(base: Any, given: Sequence[int] | None) -> frozenset[int]:
    """The stop tokens: as given, or those of the model's generation config."""
    if given is None:
        ends = base.generation_config.eos_token_id
        given = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return frozenset(int(token) for token in given)


@torch.inference_mode()
def count_target_ids(base: Any, embedding: Any) -> tuple[int, torch.device]:
    """The number of the decoder's token ids, and the device of the logits.

    Quantized and wrapped output embeddings have no weight of floats; the model is called instead.
    """
    weight = getattr(embedding, "weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point():
        return int(weight.shape[0]), weight.device
    ids = torch.zeros(1, 1, dtype=torch.long, device=base.device)
    logits = base(input_ids=ids, decoder_input_ids=ids).logits
    return int(logits.shape[-1]), logits.device
