"""Self-generated training text for the target's heads and n-gram LM.

Greedy verification accepts only tokens that the target generates, so drafters should be trained on
its output. Heads of a 260 K Llama reach a block efficiency of 2.43 when trained on greedy
continuations and 1.54 on text sampled at temperature 1 (argmax drafts, 400 steps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import GenerationConfig, PreTrainedModel

from lattice_bpd.models.lm_call import CACHE_NAMES, pass_cache
from lattice_bpd.token_ids import Int32Array, integer_array


@torch.inference_mode()
def generate_texts(
    model: PreTrainedModel,
    prompts: npt.ArrayLike,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    num_beams: int = 1,
    batch_size: int = 256,
    seed: int = 0,
    on_batch: Callable[[], None] | None = None,
) -> Int32Array:
    """Continues prompts of equal length.

    Args:
        model: the target; any causal LM.
        prompts: (N, P) ints, P at least 1.
        max_new_tokens: m, generated tokens per prompt; no token ends a row early.
        temperature: 0: greedy; else samples from softmax(logits / t).
        num_beams: beams of a beam search, the teacher of Stern et al. 2018, section 6.2; 1: none.
        batch_size: prompts per call; changes greedy text only by rounding.
        seed: seed of the samples.
        on_batch: called after each batch.

    Returns:
        (N, P + m) int32, prompts and continuations.

    Raises:
        ValueError: prompts of another shape, ids outside the vocabulary, more tokens than the
            target has positions for, a negative temperature, or beams below 1 or with sampling.
    """
    ids = torch.from_numpy(integer_array(prompts, "generate_texts: prompts").astype(np.int64))
    _check(model, ids, max_new_tokens, temperature)
    if num_beams < 1 or (num_beams > 1 and temperature > 0.0):
        raise ValueError(
            f"generate_texts: num_beams is {num_beams} with temperature {temperature}; expected 1 "
            "or more, and temperature 0 with a beam search"
        )
    generator = torch.Generator(model.device).manual_seed(seed)
    rows = [ids.new_empty(0, ids.shape[-1] + max_new_tokens)]
    for batch in torch.split(ids, batch_size):
        if num_beams > 1:
            rows.append(_search(model, batch, max_new_tokens, num_beams).cpu())
        else:
            rows.append(_generate(model, batch, max_new_tokens, temperature, generator).cpu())
        if on_batch is not None:
            on_batch()
    return torch.cat(rows).numpy().astype(np.int32)


def _generate(
    model: PreTrainedModel,
    batch: torch.Tensor,
    count: int,
    temperature: float,
    generator: torch.Generator,
) -> torch.Tensor:
    tokens = [batch.to(model.device)]
    cache: Any = None
    for _ in range(count):
        output = model(
            input_ids=tokens[-1], **pass_cache(model, cache), use_cache=True, logits_to_keep=1
        )
        cache = next(getattr(output, name) for name in CACHE_NAMES if hasattr(output, name))
        logits = output.logits[:, -1].float()
        if temperature == 0.0:
            tokens.append(logits.argmax(dim=-1, keepdim=True))
        else:
            probabilities = (logits / temperature).softmax(dim=-1)
            tokens.append(torch.multinomial(probabilities, 1, generator=generator))
    return torch.cat(tokens, dim=1)


def _search(
    model: PreTrainedModel, batch: torch.Tensor, count: int, num_beams: int
) -> torch.Tensor:
    """The best continuations of exactly `count` tokens that a beam search finds."""
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        num_beams=num_beams, do_sample=False, max_new_tokens=count, min_new_tokens=count,
        use_cache=True, bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    batch = batch.to(model.device)
    found: Any = model.generate(  # type: ignore[operator]
        batch, attention_mask=torch.ones_like(batch), generation_config=config
    )
    return torch.as_tensor(found, device=batch.device)


def _check(model: PreTrainedModel, ids: torch.Tensor, count: int, temperature: float) -> None:
    where = "generate_texts"
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(
            f"{where}: prompts has shape {tuple(ids.shape)}; expected (N, P) with one token or "
            "more in each; cut the prompts to one length"
        )
    vocab_size = int(model.config.vocab_size)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(
            f"{where}: prompts has ids {int(ids.min())}..{int(ids.max())}; expected 0.."
            f"{vocab_size - 1}; use the tokenizer that the target was trained with"
        )
    limit = getattr(model.config, "max_position_embeddings", None)
    if count < 1 or (limit is not None and ids.shape[1] + count - 1 > limit):
        raise ValueError(
            f"{where}: max_new_tokens is {count} after prompts of {ids.shape[1]} tokens; expected "
            f"1 or more, and at most {limit} positions; lower it"
        )
    if temperature < 0.0:
        raise ValueError(f"{where}: temperature is {temperature}; expected 0 or more")
