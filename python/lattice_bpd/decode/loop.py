"""The decoding loop, the same for every strategy; only the drafter is exchanged.

Prediction and verification are merged: the call that verifies a draft also yields the next exact
token and the hidden state of the next draft, so a text of m tokens with k tokens a step costs
m/k + 1 calls (Stern et al. 2018, section 4). Greedy decoding is this loop with empty drafts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.decode.drafters import Drafter
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.decode.statistics import DecodeStats
from lattice_bpd.models import BlockwiseLM
from lattice_bpd.verify import check_cache, greedy_tokens, verify_drafts


@dataclass
class DecodeResult:
    """A decoded text.

    Attributes:
        token_ids: the decoded tokens without the prompt, a stop token included.
        finish: "stop_token", "length" (max_new_tokens reached) or "positions" (the target has
            no further positions).
        stats: counts and stage times.
    """

    token_ids: list[int]
    finish: str
    stats: DecodeStats


@torch.inference_mode()
def decode(
    model: BlockwiseLM,
    prompt: Sequence[int] | Tensor,
    drafter: Drafter,
    *,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
) -> DecodeResult:
    """Decode one text: the target's greedy output, whatever the drafter proposes.

    Args:
        model: target and heads.
        prompt: (T,) ints, 1 or more, at most the target's positions.
        drafter: proposes drafts; its mistakes cost time, never output.
        max_new_tokens: most tokens to decode, 1 or more.
        stop_token_ids: decoding ends behind the first of these, which is kept.

    Returns:
        DecodeResult.

    Raises:
        ValueError: an empty or too long prompt, ids outside the vocabulary, max_new_tokens
            below 1, a cache that cannot roll back, or NaN logits.
    """
    token_ids, limit = _check_request(model, prompt, max_new_tokens)
    stop = frozenset(stop_token_ids)
    stats = DecodeStats()
    with stats.stage("total"):
        state = _read_prompt(model, token_ids, stats)
        new = state.tokens[-1:]
        while not stop.intersection(new) and (left := limit - stats.tokens) > 0:
            state.num_slots = min(model.num_slots, left - 1)
            drafts = _propose(drafter, state)  # (p, num_slots)
            with stats.stage("verify"):
                found = verify_drafts(model, state.cache, state.tokens[-1], drafts)
            new = _until_stop(found.token_ids, stop)
            state.tokens += new
            state.hidden = found.hidden
            stats.target_calls += 1
            stats.tokens += len(new)
            stats.accept_lengths.append(min(found.accept_length, len(new)))
    finish = "length" if limit == max_new_tokens else "positions"
    if stop.intersection(new):
        finish = "stop_token"
    return DecodeResult(state.tokens[len(token_ids) :], finish, stats)


def _read_prompt(model: BlockwiseLM, prompt: list[int], stats: DecodeStats) -> DecodeState:
    """The first call: the cache over the prompt, the first exact token, the first hidden state."""
    with stats.stage("prompt"):
        output = model(
            torch.tensor([prompt], device=model.device), use_cache=True, logit_positions=1
        )
        exact = int(greedy_tokens(output.logits[0, -1]))
    if output.cache is None:
        raise ValueError("decode: the target gave no KV cache; expected one; set use_cache=True")
    check_cache(output.cache)
    stats.target_calls, stats.tokens = 1, 1
    hidden = output.hidden[0, -1]
    return DecodeState(model, [*prompt, exact], len(prompt), hidden, output.cache, 0, stats)


def _propose(drafter: Drafter, state: DecodeState) -> Tensor:
    """(p, num_slots) int64: the drafts to verify, cut to what may be used."""
    exact = state.tokens[-1]
    nothing = torch.empty((1, 0), dtype=torch.int64, device=state.model.device)
    if state.num_slots == 0:
        return nothing
    drafts = drafter.propose(state)
    if drafts is None:
        return nothing
    rows = torch.as_tensor(drafts.token_ids)[0, : int(drafts.counts[0]), : state.num_slots]
    if rows.shape[0] == 0:
        return nothing
    state.stats.count_repeats(exact, rows[0].tolist())
    return rows.to(device=state.model.device, dtype=torch.int64)


def _until_stop(token_ids: list[int], stop: frozenset[int]) -> list[int]:
    """The tokens up to the first stop token, which is kept."""
    for index, token in enumerate(token_ids):
        if token in stop:
            return token_ids[: index + 1]
    return token_ids


def _check_request(
    model: BlockwiseLM, prompt: Sequence[int] | Tensor, max_new_tokens: int
) -> tuple[list[int], int]:
    """The prompt as a list, and how many tokens may be decoded behind it."""
    ids = torch.as_tensor(np.asarray(prompt) if isinstance(prompt, Sequence) else prompt)
    if ids.ndim != 1 or ids.numel() == 0:
        raise ValueError(
            f"decode: prompt has shape {tuple(ids.shape)}; expected (tokens,) with one token or "
            "more; decode one text at a time, and begin with a start token where there is none"
        )
    model.check_token_ids(ids, "decode: prompt")
    if max_new_tokens < 1:
        raise ValueError(f"decode: max_new_tokens is {max_new_tokens}; expected 1 or more")
    token_ids = [int(token) for token in ids.tolist()]
    if model.max_positions is None:
        return token_ids, max_new_tokens
    if len(token_ids) > model.max_positions:
        raise ValueError(
            f"decode: the prompt has {len(token_ids)} tokens; the target has positions for "
            f"{model.max_positions}; cut the prompt at its beginning"
        )
    # The last decoded token is never read by the target, so it needs no position.
    return token_ids, min(max_new_tokens, model.max_positions - len(token_ids) + 1)
