"""Several n-gram LMs in one: linear interpolation as a static backoff LM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.lm.training import RaggedIds, flatten_sequences


def interpolate(
    lms: Sequence[NGramLM],
    *,
    weights: Sequence[float] | None = None,
    heldout: Iterable[Any] | RaggedIds | None = None,
    threads: int = 0,
) -> NGramLM:
    """Mixes LMs of one vocabulary into one backoff LM.

    It lists the n-grams of all of them, each with the mixture's probability (every LM backing off
    by itself where it lacks the n-gram), and computes backoff weights so that sums are 1. What it
    does not list gets about, not exactly, the mixture's probability.

    Args:
        lms: the LMs; orders may differ.
        weights: one for each, scaled to sum to 1.
        heldout: sequences of token ids to tune weights on, if there are none; see tune_weights.
        threads: 0 for every core.

    Raises:
        ValueError: vocabularies differ, or not exactly one of weights and heldout is given.

    Source: Jelinek and Mercer 1980; docs/ngram.md.
    """
    if (weights is None) == (heldout is None):
        raise ValueError("interpolate: expected either weights or heldout")
    if weights is None:
        assert heldout is not None
        weights = tune_weights(lms, heldout, threads=threads)
    cores = [core_of("interpolate", lm) for lm in lms]
    return NGramLM(_core.interpolate(cores, [float(weight) for weight in weights], threads))


def tune_weights(
    lms: Sequence[NGramLM], heldout: Iterable[Any] | RaggedIds, *, threads: int = 0
) -> list[float]:
    """The weights that make a held-out text most probable under the mixture, by EM.

    Args:
        lms: the LMs, of one vocabulary.
        heldout: sequences of token ids, as train_ngram takes them; not from the training text.
        threads: 0 for every core.

    Returns:
        One weight for each LM; they sum to 1.

    Raises:
        ValueError: vocabularies differ, no token is known to any LM, or bad sequences.
    """
    if not lms:
        raise ValueError("tune_weights: no LM; expected one at least")
    cores = [core_of("tune_weights", lm) for lm in lms]
    ragged = flatten_sequences(heldout, lms[0].vocab_size)
    return _core.tune_weights(cores, ragged.token_ids, ragged.offsets, threads)
