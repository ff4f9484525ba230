"""Probes of what a target can do: a draft in one call, masks of trees, masks of batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.model_facts import attention_of, facts_of
from lattice_bpd.verify.memory import is_lack_of_memory, try_once
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.reading import read_texts
from lattice_bpd.verify.rounding import read_parts, texts_match
from lattice_bpd.verify.verification import lay_out_rows

_PROMPT, _NEXT = [1, 2, 3, 5, 4], [6, 3, 7, 9, 8, 5]
_LONG, _SHORT = [1, 2, 3, 5, 4, 6, 7], [8, 5, 9]


def find_cache_refusal(target: Any) -> str | None:
    """Why drafts cannot be verified in one call, or None; probed once per model.

    Args:
        target: a CausalLMTarget whose layers are attention; for others see `find_mixers`.
    """
    return try_once(facts_of(target.base), "cache refusal", lambda: _try_cache(target))


@torch.inference_mode()
def _try_cache(target: Any) -> str | None:
    name = type(target.base).__name__
    selected = (target.windows.selected or 64) - len(_PROMPT)
    count = max(min(target.limits.capacity or len(_NEXT), selected), 2)
    first: list[Tensor] = []

    def read(tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        prompt, following = tokens[: len(_PROMPT)], tokens[len(_PROMPT) :]
        together = read_parts(target, prompt, [following])
        singly = read_parts(target, prompt, [[token] for token in following])
        first.append(singly)
        # as if the cache were empty
        return together, singly, read_parts(target, prompt[-1:], [following])

    try:
        matches = texts_match(target, _PROMPT + _NEXT[:count], read)
    except Exception as error:
        if str(error).startswith("decode:") or is_lack_of_memory(error):
            raise
        return f"{name} fails on tokens that follow a cache ({type(error).__name__}: {error})"
    if matches or bool(torch.isnan(first[0]).any()):  # the first call of decoding reports NaN
        return None
    return (
        f"{name} gives other logits for several tokens at once than for one after another: it "
        "reads them in both directions (then set is_decoder=True in its config), or keeps a state "
        "outside its cache"
    )


def find_parts_refusal(target: Any) -> str | None:
    """Why no text is read in parts as in one call, or None."""
    name, config = type(target.base).__name__, target.base.config
    if config.get_text_config(decoder=True) is not config:  # may read in both directions
        return f"{name} reads more than text"
    if target.is_recurrent:
        return f"{name} keeps a recurrent state, which cannot drop tokens"
    if target.feature_layers:
        return "the heads read outputs of layers, which a cache does not hold"
    return None


def find_tree_refusal(target: Any) -> str | None:
    """Why the target cannot use tree attention, or None; probed once per model.

    Args:
        target: see `lattice_bpd.verify.target.build_target`.

    Raises:
        RuntimeError, MemoryError: no memory for the probe; no result is stored.
    """
    name = type(target.base).__name__
    if target.is_recurrent:
        return f"{name} keeps a recurrent state, which cannot branch"
    window = target.windows.by_cache_position
    if window is not None:
        return (
            f"{name} has layers that see the last {window} cache positions, whichever tokens they "
            "hold"
        )
    implementation = attention_of(target.base.config)
    facts, key = facts_of(target.base), ("tree refusal", implementation)
    if key not in facts:
        facts[key] = _try_tree(target, implementation)
    refusal: str | None = facts[key]
    return refusal


@torch.inference_mode()
def _try_tree(target: Any, implementation: str) -> str | None:
    """Compare a token that has a sibling in its row with the same token alone."""
    name = type(target.base).__name__
    if implementation not in ("eager", "sdpa"):
        return (
            f"attention implementation {implementation!r} takes no custom mask; load the model "
            "with attn_implementation='sdpa' or 'eager'"
        )
    if not target.takes_positions:
        return f"{type(target.base.base_model).__name__} takes no position ids"
    # tokens 0 1 2 are the text; 3 and 4 both follow it
    allowed = torch.ones(5, 5, dtype=torch.bool, device="cpu").tril()
    allowed[4, 3] = False
    mask = torch.zeros(1, 1, 5, 5, dtype=target.dtype, device="cpu")
    mask.masked_fill_(~allowed, torch.finfo(target.dtype).min)
    mask = mask.to(target.device)
    positions = torch.tensor([[0, 1, 2, 3, 3]], device=target.device)

    def last_logits(tokens: list[int], positions: Tensor, **masks: Any) -> Tensor:
        row = torch.tensor([tokens], device=target.device)
        steps = positions - target.shift
        logits: Tensor = target(row, target.new_cache(), position_ids=steps, **masks).logits
        return logits[0, -1].float()

    steps = torch.arange(5, device=target.device)[None]

    def read(ids: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        actual = last_logits(ids, positions, attention_mask=mask, windowed_mask=mask)
        return actual, last_logits([*ids[:3], ids[4]], steps[:, :4]), last_logits(ids, steps)

    try:
        matches = texts_match(target, _PROMPT, read)
    except Exception as error:
        if is_lack_of_memory(error):
            raise
        return f"{name} fails on a four-dimensional mask ({error})"
    return None if matches else f"{name} does not keep to a four-dimensional mask"


def find_batch_refusal(
    target: Any, length: int | None = None, *, padded: bool = True
) -> str | None:
    """Why texts cannot be decoded in a batch, or None; probed once per model.

    Args:
        target: see `lattice_bpd.verify.target.build_target`.
        length: tokens of the longest text at its end, with drafts; None: any number.
        padded: whether texts of different lengths are read in one call.
    """
    name = type(target.base).__name__
    if not target.takes_positions:
        return f"{name} takes no position ids, so sequences cannot progress at different speeds"
    if target.decoder_prompt is not None:  # of an encoder-decoder, whose prompts have one length
        return None
    if target.is_recurrent:
        return f"{name} keeps a recurrent state, which cannot skip padding"
    window = target.windows.by_cache_position
    if window is not None and (length is None or length > window):
        texts = "longer texts" if length is None else f"texts of up to {length} tokens"
        return (
            f"{name} has layers that see the last {window} cache positions, so they cannot see all "
            f"of {texts} in a batch"
        )
    refusal: str | None = target.refuses_tree() if target.sliding_window is not None else None
    if refusal is not None:
        return f"a batch over a sliding window needs four-dimensional masks: {refusal}"
    key = ("batch refusal", attention_of(target.base.config), padded)
    return try_once(facts_of(target.base), key, lambda: _try_batch(target, padded))


@torch.inference_mode()
def _try_batch(target: Any, padded: bool) -> str | None:
    name = type(target.base).__name__

    def read(tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        long, short = tokens[: len(_LONG)], tokens[len(_LONG) :]
        actual = _read_batch(target, [long if padded else long[: len(short)], short])
        wrong = _read_batch(target, [[*long[: len(long) - len(short)], *short]])
        return actual, _read_batch(target, [short]), wrong

    try:
        matches = texts_match(target, _LONG + _SHORT, read)
    except Exception as error:
        if is_lack_of_memory(error):
            raise
        return f"{name} fails on a batch of texts ({type(error).__name__}: {error})"
    return None if matches else f"{name} does not keep the texts of a batch apart"


def _read_batch(target: Any, texts: list[list[int]]) -> Tensor:
    """(V,) last logits of the last text, of two verifying calls, of which it keeps less."""
    _, state = read_texts(target, texts)
    counts = [3] * (len(texts) - 1) + [1]
    drafted = [token % target.vocab_size for token in (2, 3)]
    for drafts in (drafted, []):
        trees = [PrefixTree.from_drafts(4 % target.vocab_size, [drafts]) for _ in texts]
        call = lay_out_rows(target, state, trees)
        output = call.run(target, state)
        state.keep_rows(range(len(texts)), counts if drafts else [1] * len(texts))
    logits: Tensor = output.logits[-1, 0]
    return logits.float()
