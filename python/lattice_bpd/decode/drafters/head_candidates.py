"""What drafters on a lattice begin with: head logits of all sequences, and their candidates."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from lattice_bpd.decode.constraint.lattice import Intersection
from lattice_bpd.decode.constraint.search import find_candidates
from lattice_bpd.decode.drafters.ngram_caches import SequenceCaches
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM


def batch_head_logits(states: Sequence[DecodeState], *, whole: bool = False) -> torch.Tensor:
    """Head logits of all states in one call of the heads.

    Returns:
        (B, H, V) float, H the most slots that any of the states may use, or, if `whole`, all.
    """
    first, start = states[0], time.perf_counter()
    slots = first.num_slots
    for state in states:
        if state.num_slots > slots:
            slots = state.num_slots
    logits = first.model.state_logits(states)
    first.stats.lap("heads", start)
    return logits if whole or logits.shape[1] <= slots else logits[:, :slots]


def prepare_rescoring(
    lm: NGramLM | None,
    states: Sequence[DecodeState],
    top_k: int,
    caches: SequenceCaches | None,
    where: str,
    *,
    whole: bool = False,
) -> tuple[Candidates, list[list[int]], list[Intersection] | None]:
    """The candidates of each slot, and the contexts as far back as LM and caches can see.

    `whole` takes in slots beyond those that may be used, so that nothing depends on their number.
    Third, what `find_candidates` has to tell of constraints.
    """
    logits = batch_head_logits(states, whole=whole)
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
    candidates, found = find_candidates(states, logits, top_k, where)
    contexts = [state.tokens[-reach:] for state in states]
    states[0].stats.lap("top_k", start)
    return candidates, contexts, found
