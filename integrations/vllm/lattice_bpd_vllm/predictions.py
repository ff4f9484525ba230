"""The target's most probable next tokens after each token of a step, for any engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.draft.mixture import NUM_PREDICTIONS
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd_vllm.batch import DraftBatch, EngineStep
from lattice_bpd_vllm.rows import first_rows


class StepPredictions(NamedTuple):
    """Rows as `rows_of_last_tokens` counts them.

    Attributes:
        token_ids: (rows, k) int32, best first; -1 in rows whose logits hold NaN or +inf.
        log_probs: (rows, k) float32, natural logs.
        draft_token_ids: the verified draft tokens of all requests, one after the other; -1 where
            the engine has padding.
    """

    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    draft_token_ids: Sequence[int]


def select_predictions(logits: Any, draft_token_ids: Any, threads: int) -> StepPredictions:
    """Of logits (rows, V) on any device, and a tensor (n,) of draft tokens or None."""
    drafts = [] if draft_token_ids is None else draft_token_ids.tolist()
    best = select_top_k(
        logits, min(NUM_PREDICTIONS, int(logits.shape[-1])), log_softmax=True,
        where="lattice-bpd", threads=threads, skip_bad_rows=True,
    )  # fmt: skip
    return StepPredictions(best.token_ids[0], best.scores[0], drafts)


def add_predictions(
    texts: Sequence[_core.MixtureText], step: EngineStep, batch: DraftBatch, vocab_size: int
) -> None:
    """Adds the predictions of a step to the texts of a batch's requests, which have its tokens."""
    found = step.predictions
    if found is None:
        return
    counts = [0] * len(step.kept) if step.verified is None else step.verified
    rows_of = first_rows(counts)
    for request, length, text in zip(batch.requests, batch.lengths, texts, strict=True):
        before, row = length - len(step.kept[request]), rows_of[request]
        if before == 0:
            continue
        chain = [step.token_ids.item(request, before - 1)]
        start = row - request  # each request before it has a row more than draft tokens
        for token in found.draft_token_ids[start : start + counts[request]]:
            if not 0 <= token < vocab_size:
                break  # padding, and what follows it
            chain.append(token)
        rows = slice(row, row + len(chain))
        tree = _core.PrefixTree(chain, list(range(-1, len(chain) - 1)))
        text.add_predictions(before, tree, found.token_ids[rows], found.log_probs[rows])
