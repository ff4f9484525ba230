"""Temperature and Gumbel noise of a target that samples, for its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lattice_bpd import _core
from lattice_bpd.decode.drafters.head_candidates import HeadCandidates
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.text_rules import ProcessedSelector
from lattice_bpd.draft.sampled_tree import SharedNoise
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.verify.acceptance.sampling import RejectionSelector, SampledSelector
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.greedy import TokenSelector
from lattice_bpd.verify.prefix_tree import PrefixTree

WIDER = 4  # preselected candidates / top_k, of which the noise selects top_k
_LEAST_SAMPLED = 0.05  # a sampled path ends where its probability is below
_DRAFT_KEY = 0x6C61747469636521  # makes the noise of drafts independent of the target's


def sampling_warps(states: Sequence[DecodeState]) -> list[Warp] | None:
    """The distribution settings of each text's rule; None where a text is not sampled."""
    warps = []
    for state in states:
        selector = _sampler(state)
        if not isinstance(selector, (SampledSelector, RejectionSelector)):
            return None
        warps.append(selector.warp)
    return warps


def rejects(states: Sequence[DecodeState]) -> bool:
    """Whether all texts are sampled by rejection."""
    return all(isinstance(_sampler(state), RejectionSelector) for state in states)


def sampling_temperature(states: Sequence[DecodeState]) -> float:
    """The temperature that all texts are sampled at; 1 where they are not."""
    temperatures = {warp.temperature for warp in sampling_warps(states) or ()}
    return temperatures.pop() if len(temperatures) == 1 else 1.0


def target_noise(states: Sequence[DecodeState], sharpness: float) -> SharedNoise | None:
    """The noise of the next samples of all texts; None if one depends on more than the noise."""
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


def draft_keys(states: Sequence[DecodeState]) -> list[int]:
    """A key for sampling each text's drafts in this step, independent of the target's."""
    keys = []
    for state in states:
        key = getattr(_sampler(state), "key", 0) ^ _DRAFT_KEY
        keys.append((key + len(state.tokens) * 0x9E3779B97F4A7C15) % (1 << 64))
    return keys


def sample_paths(
    states: Sequence[DecodeState],
    texts: Sequence[_core.MixtureText],
    heads: HeadCandidates | None,
    max_nodes: int,
) -> list[PrefixTree]:
    """Paths sampled from mixtures, with the distributions that their tokens were sampled from."""
    trees = []
    for row, (text, state, key) in enumerate(zip(texts, states, draft_keys(states), strict=True)):
        of_row = (None, None, None) if heads is None else heads.row(row)
        tree = PrefixTree.of(
            text.sample(state.max_draft_length, max_nodes, _LEAST_SAMPLED, key, *of_row)
        )
        sampled = [text.distribution_after(node) for node in range(len(tree))]
        pairs = [None if ids.size == 0 else (ids, probs) for ids, probs in sampled]
        tree.sampled_from = pairs.__getitem__
        trees.append(tree)
    return trees


def _sampler(state: DecodeState) -> TokenSelector | None:
    """The selector of the acceptance rule, without the logits processors around it."""
    selector = state.selector
    return selector.selector if isinstance(selector, ProcessedSelector) else selector


def select_with_noise(
    candidates: Candidates | LatticeInput, noise: SharedNoise, top_k: int
) -> Candidates | LatticeInput:
    """The top_k candidates of each slot by the sum of score and noise.

    Args:
        candidates: (B, H, K), scores at the sampling temperature. For a LatticeInput the noise is
            not used, since its scores need not be log probabilities.
        noise: of the target's samples.
        top_k: k; K or more keeps all.

    Returns:
        (B, H, k) candidates with unchanged scores.
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
