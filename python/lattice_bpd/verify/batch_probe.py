"""A probe of whether a target masks padding and holes in batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.batch_cache import BatchCache
from lattice_bpd.verify.layout import lay_out_rows
from lattice_bpd.verify.memory import is_lack_of_memory, try_once
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.rounding import logits_match

_LONG, _SHORT = [1, 2, 3, 5, 4, 6, 7], [8, 5, 9]


def find_batch_refusal(target: Any, *, padded: bool = True) -> str | None:
    """Why texts cannot be decoded in a batch, or None; probed once per model.

    Args:
        target: see `lattice_bpd.verify.target.build_target`.
        padded: whether the prompts differ in length.
    """
    name = type(target.base).__name__
    if not target.takes_positions:
        return f"{name} takes no position ids, so sequences cannot progress at different speeds"
    if target.decoder_prompt is not None:  # of an encoder-decoder, whose prompts have one length
        return None
    if target.is_recurrent:
        return f"{name} keeps a recurrent state, which cannot skip padding"
    refusal: str | None = target.refuses_tree() if target.sliding_window is not None else None
    if refusal is not None:
        return f"a batch over a sliding window needs four-dimensional masks: {refusal}"
    implementation = str(getattr(target.base.config, "_attn_implementation", "eager"))
    key = ("batch refusal", implementation, padded)
    return try_once(facts_of(target.base), key, lambda: _try_batch(target, padded))


@torch.inference_mode()
def _try_batch(target: Any, padded: bool) -> str | None:
    name = type(target.base).__name__
    size = target.vocab_size
    long, short = ([token % size for token in text] for text in (_LONG, _SHORT))
    first = long if padded else long[: len(short)]
    try:
        actual = _read(target, [first, short])
        expected = _read(target, [short])
        wrong = _read(target, [[*long[: len(long) - len(short)], *short]])
    except Exception as error:
        if is_lack_of_memory(error):
            raise
        return f"{name} fails on a batch of padded texts ({type(error).__name__}: {error})"
    if logits_match(target.base, actual, expected, wrong):
        return None
    what = "padded texts" if padded else "texts that progress at different speeds"
    return f"{name} does not keep to the attention mask of {what}"


def _read(target: Any, texts: list[list[int]]) -> Tensor:
    """(V,) last logits of the last text, after two verifying calls that leave a hole in it."""
    longest = max(map(len, texts))
    rows = [[0] * (longest - len(text)) + text for text in texts]
    padding = torch.tensor([[longest - len(text)] for text in texts])
    steps = torch.arange(longest).expand(len(texts), -1)
    mask = (steps >= padding).long().to(target.device) if int(padding.max()) else None
    positions = (steps - padding).clamp(min=0).to(target.device)
    ids = torch.tensor(rows, device=target.device)
    _, cache = target.read_prompts(ids, mask, positions)
    state = BatchCache(cache, [len(text) for text in texts])
    counts = [3] * (len(texts) - 1) + [1]
    drafted = [token % target.vocab_size for token in (2, 3)]
    for drafts in (drafted, []):
        trees = [PrefixTree.from_drafts(4 % target.vocab_size, [drafts]) for _ in texts]
        call = lay_out_rows(target, state, trees)
        output = target(
            call.input_ids,
            state.cache,
            attention_mask=call.attention_mask,
            windowed_mask=call.windowed_mask,
            position_ids=call.position_ids,
        )
        kept = counts if drafts else [1] * len(texts)
        width = call.input_ids.shape[1]
        state.keep_rows(state.cache, list(range(len(texts))), kept, width, repeats=False)
    logits: Tensor = output.logits[-1, 0]
    return logits.float()
