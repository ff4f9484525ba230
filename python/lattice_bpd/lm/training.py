"""Training n-gram LMs on token ids in memory.

The corpus goes to the C++ core as one flat array and an offsets array, is counted by sorting,
and becomes a backoff LM: Katz (paper 001, section 4: Katz backoff, orders 2 to 4) or one of the
smoothing methods that docs/ngram.md compares.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.lm.options import checked_id
from lattice_bpd.token_ids import Int32Array, Int64Array, concatenate, to_token_ids

if TYPE_CHECKING:
    from lattice_bpd.lm.ngram import NGramLM


class SmoothingWarning(UserWarning):
    """The corpus breaks an assumption of the smoothing; the text names order and numbers."""


class KatzWarning(SmoothingWarning):
    """The same for Katz smoothing."""


class RaggedIds(NamedTuple):
    """A corpus that is flat already: sequence i is token_ids[offsets[i]:offsets[i + 1]].

    Attributes:
        token_ids: (N,) int32.
        offsets: (number of sequences + 1,) int64, from 0 to N, never falling.
    """

    token_ids: Int32Array
    offsets: Int64Array


def train_ngram(
    sequences: Iterable[Any] | RaggedIds,
    order: int = 4,
    *,
    vocab_size: int,
    min_counts: Sequence[int] | None = None,
    katz_k: int = 5,
    bos_id: int | None = None,
    eos_id: int | None = None,
    unk_id: int | None = None,
    smoothing: str = "katz",
    unseen: str = "cost",
    full_count_of_counts: bool = True,
    threads: int = 0,
    targets: Iterable[Any] | None = None,
) -> NGramLM:
    """Count n-grams and estimate a backoff LM.

    Each sequence is read as ``<s> w1 .. wm </s>``: no n-gram crosses a boundary, ``<s>`` is only
    ever a context and ``</s>`` an event.

    Args:
        sequences: 1-D integer arrays (or lists), one a sentence or document; or a RaggedIds.
        order: length of the longest n-grams, 1 to 6.
        vocab_size: number of token ids of the model, at most 2**21.
        min_counts: one entry for each order; rarer n-grams go unless a kept n-gram needs them.
            None keeps all. The paper: ``[1, 1, 2, 4]`` for order 4.
        katz_k: Katz: counts up to this one are discounted by Good and Turing, 1 to 32; those
            above keep 99.9 %.
        bos_id: token id that is ``<s>``; a sequence that starts with it gets no second one.
            None: a symbol outside the vocabulary. So too for the next two.
        eos_id: token id that is ``</s>``; a sequence that ends with it gets no second one.
        unk_id: token id that is ``<unk>``.
        smoothing: "katz" (Good-Turing discounts), "kneser_ney", "modified_kneser_ney" (as KenLM's
            lmplz), "witten_bell" or "absolute"; docs/ngram.md has the formulas.
        unseen: what token ids get that never occur: "cost" 1000, or "uniform": unigrams are
            discounted absolutely and what is taken off is spread over all symbols but ``<s>``.
        full_count_of_counts: take counts of counts (and continuation counts) from the whole corpus
            (right) or from what min_counts leaves of it (what toolkits do that prune counts before
            estimating).
        threads: number of threads; 0 for every core. The LM does not depend on it.
        targets: for each sequence (T_i,) integers: what to count behind each token instead of the
            token that follows it; -1: nothing. So an n-gram's last token is a target, and all
            before it are the sequence's. ``</s>`` is no event then. None: the sequences themselves.

    Returns:
        The LM. Its order is lower than asked where no n-gram of that order is left; a warning
        says so.

    Raises:
        TypeError: a sequence holds something else than integers.
        ValueError: a token id outside 0..vocab_size-1, a sequence that is not 1-D, a corpus
            without text, targets of other lengths or outside -1..vocab_size-1, or an option out of
            its range.

    Warns:
        KatzWarning: the counts of counts of an order break Good-Turing's assumptions (small or
            artificial corpora); the affected counts keep 99.9 %.
        SmoothingWarning: the same for another smoothing, which then takes fixed discounts.
    """
    from lattice_bpd.lm.ngram import NGramLM

    ragged = flatten_sequences(sequences, vocab_size)
    lm, complaints = _core.train_ngram(
        ragged.token_ids,
        ragged.offsets,
        vocab_size,
        order,
        checked_min_counts(min_counts),
        katz_k,
        bos_id,
        eos_id,
        unk_id,
        full_count_of_counts,
        threads,
        smoothing,
        unseen,
        flatten_targets(targets, ragged),
    )
    category = KatzWarning if smoothing == "katz" else SmoothingWarning
    for complaint in complaints:
        warnings.warn(complaint, category, stacklevel=3)
    return NGramLM(lm)


def count_ngrams(
    sequences: Iterable[Any] | RaggedIds,
    order: int,
    *,
    vocab_size: int,
    min_counts: Sequence[int] | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    threads: int = 0,
    targets: Iterable[Any] | None = None,
) -> list[tuple[Int32Array, npt.NDArray[np.uint64]]]:
    """Count the n-grams that train_ngram would estimate from.

    Args:
        sequences: as for train_ngram, and so are the other arguments.
        order: length of the longest n-grams, 1 to 6.
        vocab_size: number of token ids of the model.
        min_counts: one entry for each order; None keeps all.
        bos_id: token id that is ``<s>``; None: symbol vocab_size.
        eos_id: token id that is ``</s>``; None: the first symbol free from vocab_size on.
        threads: number of threads; 0 for every core.
        targets: as for train_ngram.

    Returns:
        For each order n from 1: the n-grams, (N, n) int32, sorted; and their counts, (N,) uint64.

    Raises:
        TypeError: as for train_ngram.
        ValueError: as for train_ngram.
    """
    ragged = flatten_sequences(sequences, vocab_size)
    tables: list[tuple[Int32Array, npt.NDArray[np.uint64]]] = _core.count_ngrams(
        ragged.token_ids,
        ragged.offsets,
        vocab_size,
        order,
        checked_min_counts(min_counts),
        bos_id,
        eos_id,
        None,
        threads,
        flatten_targets(targets, ragged),
    )
    return tables


def flatten_sequences(sequences: Iterable[Any] | RaggedIds, vocab_size: int) -> RaggedIds:
    """Put all sequences into one (N,) int32 array with (number of sequences + 1,) int64 offsets.

    Raises:
        TypeError: a sequence holds something else than integers.
        ValueError: a sequence is not 1-D, or a token id lies outside 0..vocab_size-1 (those in
            int32 arrays are left to the core, which checks them in one pass).
    """
    checked_id("train_ngram: vocab_size", vocab_size)
    if isinstance(sequences, RaggedIds):
        return RaggedIds(
            _as_token_ids(sequences.token_ids, "token_ids", vocab_size),
            np.ascontiguousarray(sequences.offsets, dtype=np.int64),
        )
    arrays = [_as_token_ids(ids, f"sequence {i}", vocab_size) for i, ids in enumerate(sequences)]
    return RaggedIds(*concatenate(arrays))


def flatten_targets(targets: Iterable[Any] | None, ragged: RaggedIds) -> Int32Array | None:
    """The targets of all sequences as one (N,) int32 array; None for None.

    Raises:
        TypeError: targets that are not integers.
        ValueError: a sequence has targets of another number.
    """
    if targets is None:
        return None
    arrays = [np.asarray(values) for values in targets]
    lengths = np.diff(ragged.offsets).tolist()
    for number, array in enumerate(arrays):
        if array.size and not np.issubdtype(array.dtype, np.integer):
            raise TypeError(
                f"train_ngram: targets of sequence {number} are {array.dtype}; expected integers"
            )
    found = [len(array) if array.ndim == 1 else -1 for array in arrays]
    if found != lengths:
        raise ValueError(
            f"train_ngram: the targets have lengths {found[:8]}, the sequences {lengths[:8]}; "
            "expected one target for each token"
        )
    flat: Int32Array = np.concatenate([np.zeros(0, np.int32), *arrays]).astype(np.int32)
    return flat


def _as_token_ids(values: Any, name: str, vocab_size: int) -> Int32Array:
    if type(values) is np.ndarray and values.dtype == np.int32 and values.ndim == 1:
        return np.ascontiguousarray(values)
    limit = vocab_size if vocab_size > 0 else None  # the core says what is wrong with 0
    return to_token_ids(values, f"train_ngram: {name}", limit)


def checked_min_counts(min_counts: Sequence[int] | None) -> list[int]:
    """min_counts as the core wants them: empty for None.

    Raises:
        ValueError: an entry below 1, or none.
    """
    counts = [int(count) for count in min_counts] if min_counts is not None else []
    if min_counts is not None and (not counts or min(counts) < 1):
        raise ValueError(
            f"train_ngram: min_counts is {counts}; expected an entry of at least 1 for each order"
        )
    return counts
