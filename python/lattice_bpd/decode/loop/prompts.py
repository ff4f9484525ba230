"""Prompts: checked, padded on the left, and read by the target in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import StaticCache

from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify.batch_cache import MAX_HOLES, BatchCache
from lattice_bpd.verify.batch_probe import find_batch_refusal
from lattice_bpd.verify.cache import check_cache
from lattice_bpd.verify.cache_probe import find_cache_refusal
from lattice_bpd.verify.greedy import greedy_tokens
from lattice_bpd.verify.recurrent import RecurrentCache, find_mixers
from lattice_bpd.verify.seq2seq_target import Seq2SeqTarget
from lattice_bpd.verify.stacked_cache import StackedCache
from lattice_bpd.verify.verification import NO_OFFER, Verification

if TYPE_CHECKING:
    from lattice_bpd.decode.loop.loop import Options

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
) -> tuple[list[Verification], BatchCache | RecurrentCache]:
    """The first call: the exact token behind each prompt, its hidden state, and the cache."""
    if options.streamer is not None and options.streams_prompt:
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
    _check_target(model, longest, options)
    _check_batch(model, lengths, options)
    static = _static_cache(model, longest, options) if options.static_cache else None
    given: Any = static
    if isinstance(model.target, Seq2SeqTarget):
        given = model.target.encode(prompts.sources or [])
    if options.prefill is not None:
        output, cache = options.prefill(given)
    else:
        output, cache = model.target.read_prompts(input_ids, mask, places, given)
    if not model.target.is_recurrent:
        check_cache(cache)
    room = min(_ROOM, max(options.limits) + options.most_nodes)
    kept: Any = cache if static is not None else StackedCache.from_cache(cache, room) or cache
    state = (
        RecurrentCache(kept, longest) if model.target.is_recurrent else BatchCache(kept, lengths)
    )
    tokens = _first_tokens(output.logits[:, -1], options)
    if model.heads is not None and model.num_slots is None:
        # tells how many slots there are
        model.head_logits(output.hidden[:1, -1], tokens[0][-1:] or None)
    found = [Verification(t, 0, output.hidden[row, -1]) for row, t in enumerate(tokens)]
    return found, state


def _first_tokens(logits: Tensor, options: Options) -> list[list[int]]:
    """The exact token behind each prompt, from (B, V) logits."""
    if options.choosers is None:
        return [[token] for token in greedy_tokens(logits).tolist()]
    chosen = [
        chooser.choose(row, NO_OFFER) for chooser, row in zip(options.choosers, logits, strict=True)
    ]
    return [[] if token is None else [token] for token in chosen]


def _check_target(model: DraftingModel, longest: int, options: Options) -> None:
    """Raise ValueError where the target cannot verify drafts, before anything is decoded."""
    target = model.target
    refusal = target.refuses_tree() if options.form == "tree" and options.most_nodes > 0 else None
    if refusal is not None:
        raise ValueError(f"decode: form='tree' is not possible: {refusal}; or use form='rows'")
    if isinstance(target, Seq2SeqTarget):
        return
    if target.is_recurrent:
        find_mixers(target)
    elif (refusal := find_cache_refusal(target)) is not None:
        raise ValueError(f"decode: {refusal}; use the model's own generate, or another target")
    most, selected = longest + max(options.limits) + options.most_nodes, target.windows.selected
    if selected is not None and most > selected:
        raise ValueError(
            f"decode: {type(target.base).__name__} has sparse attention that selects {selected} "
            f"tokens, found texts of up to {most} with their drafts; which of several equal scores "
            "it selects depends on the shape of a call, so that the output would not be the "
            "target's; expected shorter texts or fewer drafts; use the model's own generate"
        )


def _check_batch(model: DraftingModel, lengths: list[int], options: Options) -> None:
    """Raise ValueError for what the target cannot do with prompts of these lengths together."""
    target, batch_size, longest = model.target, len(lengths), max(lengths)
    if options.static_cache and (isinstance(target, Seq2SeqTarget) or target.is_recurrent):
        what = "keeps a recurrent state" if target.is_recurrent else "is an encoder-decoder"
        raise ValueError(
            f"decode: {type(target.base).__name__} {what}, which needs a cache of its own; leave "
            "static_cache out"
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
    # a prompt that the model prepares itself is read under its own mask
    padded = min(lengths) < longest and options.prefill is None
    refusal = _exceeds_window(target, longest, options) or find_batch_refusal(target, padded=padded)
    if refusal is not None:
        raise ValueError(f"decode: {refusal}; decode one prompt at a time")


def _exceeds_window(target: Any, longest: int, options: Options) -> str | None:
    """Why texts are too long for windows that count cache positions; None where they are not."""
    window = None if isinstance(target, Seq2SeqTarget) else target.windows.by_slot
    if window is None:
        return None
    most = longest + max(options.limits) + options.most_nodes
    if most + max(MAX_HOLES, most // 2) <= window:
        return None
    return (
        f"{type(target.base).__name__} has layers that see the last {window} cache positions, "
        f"whichever tokens they hold, and texts of up to {most} tokens in a batch have padding "
        "among them"
    )


def _static_cache(model: DraftingModel, length: int, options: Options) -> StaticCache:
    slots = length + options.limits[0] + options.most_nodes + 1
    return StaticCache(config=model.target.base.config, max_cache_len=slots)
