"""The n-grams of texts in memory with their counts, as the core counts them for training."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.lm import RaggedIds
from lattice_bpd.lm.training import flatten_sequences


def count_ngrams(
    sequences: Iterable[Any] | RaggedIds,
    order: int,
    *,
    vocab_size: int,
    min_counts: Sequence[int] = (),
    bos_id: int | None = None,
    eos_id: int | None = None,
    threads: int = 0,
    targets: Sequence[npt.NDArray[Any]] | None = None,
) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint64]]]:
    """For each order n from 1: the n-grams, (N, n), sorted; and their counts, (N,)."""
    ids, offsets = flatten_sequences("count_ngrams", sequences, vocab_size)
    chosen = None if targets is None else np.concatenate(targets).astype(np.int32)
    return _core.count_ngrams(
        ids, offsets, vocab_size, order, min_counts, bos_id, eos_id, None, threads, chosen
    )
