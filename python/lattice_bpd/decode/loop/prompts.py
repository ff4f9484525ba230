"""Checks prompts, and whether the target can decode them; reads those of targets without rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lattice_bpd.decode.loop.arguments import Options, check_evaluation_mode
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.forward import LMOutput
from lattice_bpd.token_ids import to_token_ids
from lattice_bpd.verify.memory import describe_lack_of_memory
from lattice_bpd.verify.preparation import find_reread
from lattice_bpd.verify.probes import find_batch_refusal, find_cache_refusal
from lattice_bpd.verify.recurrent_cache import RecurrentCache, find_mixers


@dataclass
class Prompts:
    """B checked prompts.

    Attributes:
        tokens: token ids of each, one or more; for an encoder-decoder the decoder prompts.
        sources: sources of an encoder-decoder; else None.
    """

    tokens: list[list[int]]
    sources: list[list[int]] | None = None

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each."""
        return [len(tokens) for tokens in self.tokens]


def check_prompts(
    model: DraftingModel, prompts: Sequence[Any], *, beyond_positions: bool = False
) -> Prompts:
    """Convert prompts to lists of ints.

    Args:
        model: target.
        prompts: B sequences, arrays or tensors of (T_i,) ints.
        beyond_positions: allow prompts longer than the target's number of positions.

    Raises:
        TypeError: ids that are not integers.
        ValueError: no prompt, an empty or too long prompt, or ids outside the vocabulary.
    """
    if len(prompts) == 0:
        raise ValueError("decode: there is no prompt; expected one or more")
    tokens = []
    for number, prompt in enumerate(prompts):
        name = "prompt" if len(prompts) == 1 else f"prompt {number}"
        ids = to_token_ids(prompt, f"decode: {name}", model.target.source_vocab_size)
        if ids.size == 0:
            raise ValueError(
                f"decode: {name} is empty; expected one token or more, such as a start token"
            )
        if not beyond_positions and len(ids) > (model.max_positions or len(ids)):
            raise ValueError(
                f"decode: {name} has {len(ids)} tokens; the target has positions for "
                f"{model.max_positions}; cut the prompt at its beginning"
            )
        tokens.append(ids.tolist())
    begin = model.target.decoder_prompt
    return Prompts(tokens) if begin is None else Prompts([list(begin) for _ in tokens], tokens)


def check_texts(model: DraftingModel, prompts: Prompts, options: Options) -> None:
    """Check that the target can decode the prompts, with these options.

    Raises:
        ValueError: it cannot.
        MemoryError: a probe of it did not fit.
    """
    lengths, longest = prompts.lengths, max(prompts.lengths)
    action = f"read {len(lengths)} prompts of {longest} tokens"
    with describe_lack_of_memory(action, "decode fewer at once, or shorter ones"):
        _check_target(model, longest, options)
    _check_batch(model, lengths, options)
    model.target.reset_frequencies()


def read_together(
    model: DraftingModel, prompts: Prompts, options: Options
) -> tuple[LMOutput, Any] | None:
    """Read in one call what texts in rows cannot be read from; None: they can.

    That are prompts that the model prepares itself, sources of an encoder-decoder, and texts of a
    target with recurrent states.
    """
    target = model.target
    if options.prefill is not None:
        output, cache = options.prefill()
    elif prompts.sources is not None or target.is_recurrent:
        ids = torch.tensor(prompts.tokens, device=model.device)
        encoding: Any = target
        given = () if prompts.sources is None else (encoding.encode(prompts.sources),)
        output, cache = target.read_prompts(ids, *given)
    else:
        return None
    return output, RecurrentCache(cache, max(prompts.lengths)) if target.is_recurrent else cache


def find_reread_length(model: DraftingModel, prompts: Prompts, options: Options) -> int | None:
    """The text length at which plain `generate` reads the whole text again; see `find_reread`."""
    target = model.target
    if prompts.sources is not None:
        return None
    is_read, extent = options.prefill is not None, max(options.limits) - 1
    pairs = zip(options.rules or (), prompts.tokens, strict=False)
    padded = [text.prompt.tolist() for text, tokens in pairs if len(text.prompt) > len(tokens)]
    texts = [*prompts.tokens, *padded]  # `generate` counts padding
    lengths = {find_reread(target, t, len(t) + extent, is_read=is_read) for t in texts}
    if lengths != {None} and len(texts) > 1:
        raise ValueError(
            f"decode: {type(target.base).__name__} reads a text again at a length of "
            f"{max(n for n in lengths if n)} tokens, padding and all texts of a batch included; "
            "decode one prompt at a time, without padding"
        )
    return lengths.pop()


def _check_target(model: DraftingModel, longest: int, options: Options) -> None:
    """Raise ValueError if the target cannot verify drafts."""
    target = model.target
    target.check_again()
    check_evaluation_mode(target.base)
    needs_tree = options.layout == "tree" and options.max_draft_nodes > 0
    refusal = target.refuses_tree() if needs_tree else None
    if refusal is not None:
        raise ValueError(f"decode: layout='tree' is not possible: {refusal}; or use layout='rows'")
    if target.decoder_prompt is not None:
        return
    if target.is_recurrent:
        find_mixers(target)
    elif (refusal := find_cache_refusal(target)) is not None:
        raise ValueError(f"decode: {refusal}; use the model's own generate, or another target")
    longest_text = longest + max(options.limits) + options.max_draft_nodes
    target.find_limits(longest_text)
    selected = target.windows.selected
    if selected is not None and longest_text > selected:
        raise ValueError(
            f"decode: {type(target.base).__name__} has sparse attention that selects {selected} "
            f"tokens, and texts have up to {longest_text} with their drafts; its selection among "
            "equal scores depends on the shape of a call, so the output could differ from the "
            "target's; expected shorter texts or fewer drafts; use the model's own generate"
        )


def _check_batch(model: DraftingModel, lengths: list[int], options: Options) -> None:
    """Raise ValueError if the target cannot decode prompts of these lengths together."""
    target, batch_size, longest = model.target, len(lengths), max(lengths)
    if batch_size == 1:
        return
    if options.streamer is not None:
        raise ValueError(
            f"decode: a streamer takes one text, found {batch_size} prompts; decode them one at a "
            "time, or without a streamer"
        )
    # the model pads and masks the prompts that it prepares itself
    padded = min(lengths) < longest and options.prefill is None
    length = longest + max(options.limits)
    refusal = target.limits.refuses_batch(
        type(target.base).__name__, min(lengths), length
    ) or find_batch_refusal(target, length + options.max_draft_nodes, padded=padded)
    if refusal is not None:
        raise ValueError(f"decode: {refusal}; decode one prompt at a time")
