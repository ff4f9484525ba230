"""Prompts: checked, padded on the left, and read by the target in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import StaticCache

from lattice_bpd.decode.model import DraftingModel
from lattice_bpd.verify import (
    BatchCache,
    Seq2SeqTarget,
    StackedCache,
    Verification,
    check_cache,
    greedy_tokens,
)
from lattice_bpd.verify.verification import NO_OFFER

if TYPE_CHECKING:
    from lattice_bpd.decode.loop import Options

_ROOM = 512  # slots that a growing cache is given behind the prompt, at most


@dataclass
class Prompts:
    """B checked prompts.

    Attributes:
        tokens: token ids of each, one or more; of an encoder-decoder what outputs begin with.
        sources: of an encoder-decoder the sources; else None.
    """

    tokens: list[list[int]]
    sources: list[list[int]] | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each."""
        return [len(tokens) for tokens in self.tokens]


def check_prompts(
    model: DraftingModel, prompts: Sequence[Any], *, beyond_positions: bool = False
) -> Prompts:
    """Prompts as lists of ints.

    Args:
        model: target.
        prompts: B sequences, arrays or tensors of (T_i,) ints.
        beyond_positions: let prompts be longer than what the target's config names.

    Raises:
        ValueError: no prompt, an empty or too long one, or ids outside the vocabulary.
    """
    if len(prompts) == 0:
        raise ValueError("decode: there is no prompt; expected one or more")
    tokens = []
    for number, prompt in enumerate(prompts):
        ids = torch.as_tensor(np.asarray(prompt) if isinstance(prompt, Sequence) else prompt)
        name = "prompt" if len(prompts) == 1 else f"prompt {number}"
        if ids.ndim != 1 or ids.numel() == 0:
            raise ValueError(
                f"decode: {name} has shape {tuple(ids.shape)}; expected (tokens,) with one token "
                "or more; begin with a start token where there is none"
            )
        model.check_token_ids(ids, f"decode: {name}", model.target.source_vocab_size)
        if not beyond_positions and len(ids) > (model.max_positions or len(ids)):
            raise ValueError(
                f"decode: {name} has {len(ids)} tokens; the target has positions for "
                f"{model.max_positions}; cut the prompt at its beginning"
            )
        tokens.append([int(token) for token in ids.tolist()])
    begin = model.target.decoder_prompt
    return Prompts(tokens) if begin is None else Prompts([list(begin) for _ in tokens], tokens)


def read_prompts(
    model: DraftingModel, prompts: Prompts, options: Options
) -> tuple[list[Verification], BatchCache]:
    """The first call: the exact token behind each prompt, its hidden state, and the cache."""
    if options.streamer is not None:
        options.streamer.put(torch.tensor(prompts.tokens))
    lengths, longest = prompts.lengths, max(prompts.lengths)
    rows = [[0] * (longest - len(tokens)) + tokens for tokens in prompts.tokens]
    input_ids = torch.tensor(rows, device=model.device)
    mask = places = None
    if min(lengths) < longest:
        steps = torch.arange(longest).expand(len(rows), -1)
        padding = longest - torch.tensor(lengths)[:, None]
        mask = (steps >= padding).long().to(model.device)
        places = (steps - padding).clamp(min=0).to(model.device)
    _check_batch(model, len(rows), options, ragged=mask is not None)
    static = _static_cache(model, longest, options) if options.static_cache else None
    given: Any = static
    if isinstance(model.target, Seq2SeqTarget):
        given = model.target.encode(prompts.sources or [])
    output, cache = model.target.read_prompts(input_ids, mask, places, given)
    check_cache(cache)
    room = min(_ROOM, max(options.limits) + options.most_nodes)
    kept: Any = cache if static is not None else StackedCache.from_cache(cache, room) or cache
    tokens = _first_tokens(output.logits[:, -1], options)
    if model.heads is not None and model.num_slots is None:
        # tells how many slots there are
        model.head_logits(output.hidden[:1, -1], tokens[0][-1:] or None)
    found = [Verification(t, 0, output.hidden[row, -1]) for row, t in enumerate(tokens)]
    state = BatchCache(kept, lengths)
    return found, state


def _first_tokens(logits: Tensor, options: Options) -> list[list[int]]:
    """The exact token behind each prompt, from (B, V) logits."""
    if options.choosers is None:
        return [[token] for token in greedy_tokens(logits).tolist()]
    chosen = [
        chooser.choose(row, NO_OFFER) for chooser, row in zip(options.choosers, logits, strict=True)
    ]
    return [[] if token is None else [token] for token in chosen]


def _check_batch(model: DraftingModel, batch_size: int, options: Options, *, ragged: bool) -> None:
    target = model.target
    if options.static_cache and isinstance(target, Seq2SeqTarget):
        raise ValueError(
            f"decode: {type(target.base).__name__} is an encoder-decoder, whose cache holds a "
            "source as well and is not of fixed size; leave static_cache out"
        )
    if batch_size == 1:
        return
    if options.streamer is not None:
        raise ValueError(
            f"decode: a streamer takes one text, found {batch_size} prompts; decode them one at a "
            "time, or without a streamer"
        )
    if options.static_cache:
        raise ValueError(
            f"decode: a static cache holds one text, found {batch_size} prompts; decode them one "
            "at a time, or without static_cache"
        )
    if not target.takes_positions:
        raise ValueError(
            f"decode: {type(target.base.base_model).__name__} takes no position ids, so sequences "
            "of a batch cannot progress at different speeds; decode one prompt at a time"
        )
    refusal = target.refuses_tree() if target.sliding_window is not None else None
    if refusal is not None:
        raise ValueError(
            f"decode: a batch over a sliding window needs four-dimensional masks: {refusal}"
        )
    del ragged


def _static_cache(model: DraftingModel, length: int, options: Options) -> StaticCache:
    slots = length + options.limits[0] + options.most_nodes + 1
    return StaticCache(config=model.target.base.config, max_cache_len=slots)
