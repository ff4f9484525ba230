"""Pruning finished n-gram LMs: by relative entropy, to a size, by counts, by vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.token_ids import to_token_ids


def prune_ngram(
    lm: NGramLM,
    *,
    theta: float | None = None,
    prune_to: int | None = None,
    min_counts: Sequence[int] | None = None,
    keep_ids: Any = None,
    threads: int = 0,
) -> NGramLM:
    """Makes a smaller LM; probabilities of n-grams that stay are unchanged, sums stay 1.

    What is asked for is done in this order: vocabulary, counts, threshold, size. An n-gram whose
    extension stays, as its prefix or suffix, stays too; all unigrams stay (keep_ids aside).

    Args:
        lm: The LM; it is not changed.
        theta: Drop n-grams whose removal alone raises perplexity by less than this factor - 1,
            1e-8 for instance (Stolcke 1998).
        prune_to: Drop the n-grams that cost least until at most so many are left, unigrams that
            have a probability of their own included. Ties go together.
        min_counts: One entry for each order; drop n-grams whose count, as estimated from their
            probability, is lower. Counts of the corpus are better: give them to train_ngram.
        keep_ids: (K,) token ids; drop n-grams with any other. Unigrams are scaled to sum to 1.
        threads: 0 for every core.

    Returns:
        The LM; its order is lower where no n-gram of the highest is left.

    Raises:
        ValueError: Nothing was asked for, or a number is out of range.

    Source: Stolcke 1998, "Entropy-based pruning of backoff language models"; docs/ngram.md.
    """
    if theta is None and prune_to is None and min_counts is None and keep_ids is None:
        raise ValueError(
            "prune_ngram: nothing to do; expected theta, prune_to, min_counts or keep_ids"
        )
    core = core_of("prune_ngram", lm)
    if keep_ids is not None:
        kept = to_token_ids(keep_ids, "prune_ngram: keep_ids", lm.vocab_size)
        core = _core.prune_by_vocabulary(core, kept, threads)
    if min_counts is not None:
        counts = [int(count) for count in min_counts]
        core = _core.prune_by_estimated_count(core, counts, threads)
    if theta is not None:
        core = _core.prune_by_entropy(core, theta, threads)
    if prune_to is not None:
        if prune_to < 0:
            raise ValueError(f"prune_ngram: prune_to is {prune_to}; expected 0 or above")
        core = _core.prune_to_size(core, prune_to, threads)
    return NGramLM(core)


def count_prunable(lm: NGramLM) -> int:
    """What prune_to counts: longer n-grams, and unigrams with a probability of their own."""
    return _core.count_prunable(lm._core)
