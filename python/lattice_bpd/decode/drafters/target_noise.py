"""What drafts may know of a target that samples: its temperature, and the noise of its draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lattice_bpd import _core
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.text_rules import ProcessedSelector
from lattice_bpd.draft.sampled_tree import SharedNoise
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.verify.acceptance.sampling import RejectionSelector, SampledSelector
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.verification import TokenSelector

WIDER = 4  # so many times top_k candidates are looked at before noise picks top_k of them
_KEY_OF_DRAWS = 0x6C61747469636521  # makes the noise of drafts another than the target's


def sampling_temperature(states: Sequence[DecodeState]) -> float:
    """The temperature that all texts are sampled at; 1 where they are not."""
    if states[0].selector is None:
        return 1.0
    selectors = [_sampler(state) for state in states]
    warps = {
        selector.warp
        for selector in selectors
        if isinstance(selector, (SampledSelector, RejectionSelector))
    }
    found = [warp.temperature for warp in warps if isinstance(warp, Warp)]
    return found[0] if len(found) == 1 else 1.0


def target_noise(states: Sequence[DecodeState], sharpness: float) -> SharedNoise | None:
    """The noise of the next draws of all texts; None where one is not drawn by it alone."""
    if states[0].selector is None or any(state.constrained is not None for state in states):
        return None
    selectors = [_sampler(state) for state in states]
    sampled = [selector for selector in selectors if isinstance(selector, SampledSelector)]
    if len(sampled) < len(selectors):
        return None
    return SharedNoise(
        [selector.key for selector in sampled],
        [selector.position for selector in sampled],
        sharpness,
    )


def keys_of_draws(states: Sequence[DecodeState]) -> list[int]:
    """A key for the draws of each text's drafts in this step, independent of the target's."""
    keys = []
    for state in states:
        key = getattr(_sampler(state), "key", 0) ^ _KEY_OF_DRAWS
        keys.append((key + len(state.tokens) * 0x9E3779B97F4A7C15) % (1 << 64))
    return keys


def _sampler(state: DecodeState) -> TokenSelector | None:
    """The selector of the acceptance rule, without the logits processors around it."""
    selector = state.selector
    return selector.selector if isinstance(selector, ProcessedSelector) else selector


def favoured(
    candidates: Candidates | LatticeInput, noise: SharedNoise, top_k: int
) -> Candidates | LatticeInput:
    """Of each slot the top_k candidates by score and noise together.

    Args:
        candidates: (B, H, K), scores at the temperature of sampling. Of a LatticeInput the noise
            is not looked at, since its scores need not be log probabilities.
        noise: of the target's draws.
        top_k: k; K or more leaves everything.

    Returns:
        (B, H, k) candidates with the scores that they had.
    """
    token_ids = candidates.token_ids
    if token_ids.shape[-1] <= top_k:
        return candidates
    if isinstance(candidates, LatticeInput):
        return candidates.cut(candidates.num_slots, top_k)
    rows = zip(noise.keys, noise.positions, token_ids, strict=True)
    gumbel: Any = np.stack([_core.gumbel_noise(key, first, ids) for key, first, ids in rows])
    best = np.argpartition(-(candidates.scores + gumbel), top_k - 1, axis=-1)[..., :top_k]
    return replace(
        candidates,
        token_ids=np.ascontiguousarray(np.take_along_axis(token_ids, best, axis=-1)),
        scores=np.ascontiguousarray(np.take_along_axis(candidates.scores, best, axis=-1)),
    )
