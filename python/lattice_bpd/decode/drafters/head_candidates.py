"""Head logits of all sequences, and the candidates of each slot."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from lattice_bpd.decode.constraint.lattice import Intersection
from lattice_bpd.decode.constraint.search import find_candidates
from lattice_bpd.decode.drafters.ngram_caches import NGramCaches
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.head_weights import weigh_heads
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM


def batch_head_logits(states: Sequence[DecodeState], *, all_slots: bool = False) -> torch.Tensor:
    """Head logits of all states in one call of the heads.

    Returns:
        (B, H, V) float, H the most slots that any of the states may use, or all slots.
    """
    first, start = states[0], time.perf_counter()
    slots = first.num_slots
    for state in states:
        if state.num_slots > slots:
            slots = state.num_slots
    logits = first.model.state_logits(states)
    first.stats.lap("heads", start)
    return logits if all_slots or logits.shape[1] <= slots else logits[:, :slots]


def prepare_rescoring(
    config: DraftConfig,
    lm: NGramLM | None,
    states: Sequence[DecodeState],
    caches: NGramCaches | None,
    where: str,
    *,
    top_k: int | None = None,
    all_slots: bool = False,
) -> tuple[Candidates, list[list[int]], list[Intersection] | None]:
    """What a search of the lattices starts from.

    Args:
        config: options of the drafter.
        lm: n-gram LM, or None.
        states: of the B sequences.
        caches: their n-gram caches, or None.
        where: the drafter's name, for error messages.
        top_k: k, if it is not the config's.
        all_slots: keep slots deeper than any draft may be, so that samples do not depend on the
            remaining length.

    Returns:
        Candidates (B, H, k); the contexts as far back as LM and caches reach; and the intersections
        with constraints, see `find_candidates`.

    Raises:
        ValueError: an LM of another vocabulary, top_k above V, head_scales for fewer slots.
    """
    logits = batch_head_logits(states, all_slots=all_slots)
    start = time.perf_counter()
    vocab_size, reach = int(logits.shape[2]), 1 if caches is None else caches.order
    if lm is not None:
        if lm.vocab_size != vocab_size:
            raise ValueError(
                f"{where}: the LM has a vocabulary of {lm.vocab_size}, the target one of "
                f"{vocab_size}; expected the same; train the LM on token ids of the target's "
                f"tokenizer with vocab_size={vocab_size}"
            )
        order = lm.order
        reach = order if order > reach else reach
    k = config.top_k if top_k is None else top_k
    candidates, intersections = find_candidates(states, logits, k, where)
    if config.weighs_heads:
        scores = weigh_heads(candidates.scores, config.head_scales, config.entropy_weight, where)
        candidates = Candidates(candidates.token_ids, scores)
    contexts = [state.tokens[-reach:] for state in states]
    states[0].stats.lap("top_k", start)
    return candidates, contexts, intersections
