"""What drafters on a lattice begin with: head logits of all sequences, and their candidates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lattice_bpd import NGramLM
from lattice_bpd.decode.constraint.lattice import Intersection
from lattice_bpd.decode.constraint.search import find_candidates
from lattice_bpd.decode.sequence_caches import SequenceCaches
from lattice_bpd.decode.state import DecodeState
from lattice_bpd.lattice.logits import Candidates


def batch_head_logits(states: Sequence[DecodeState], *, whole: bool = False) -> torch.Tensor:
    """Head logits of all states in one call of the heads.

    Returns:
        (B, H, V) float, H the most slots that any of the states may use, or, if `whole`, all.
    """
    first, slots = states[0], max(state.num_slots for state in states)
    with first.stats.stage("heads"):
        logits = first.model.state_logits(states)
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
    if lm is not None and lm.vocab_size != states[0].model.vocab_size:
        raise ValueError(
            f"{where}: the LM has a vocabulary of {lm.vocab_size}, the target one of "
            f"{states[0].model.vocab_size}; expected the same; train the LM on token ids of the "
            f"target's tokenizer with vocab_size={states[0].model.vocab_size}"
        )
    logits = batch_head_logits(states, whole=whole)
    with states[0].stats.stage("top_k"):
        candidates, found = find_candidates(states, logits, top_k, where)
    reach = max(1 if lm is None else lm.order, 1 if caches is None else caches.order)
    return candidates, [state.tokens[-reach:] for state in states], found
