"""N-gram LMs distilled from the target's argmax predictions on a corpus.

Verification accepts what the target generates, not what the corpus says. So the target reads the
corpus once, teacher-forced, and the LM counts its argmax after each history of the text: as many
events as the corpus has tokens, without generating any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import (
    RaggedIds,
    checked_min_counts,
    flatten_sequences,
    warn_of_counts,
)
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.head_states import batch_by_length
from lattice_bpd.verify.greedy import greedy_tokens

_WHERE = "distil"
_LOGITS = 1 << 25  # numbers in the logits of one call: 128 MiB of float32
_MAX_TOKENS = {"cpu": 2048}  # per call: attention fits a CPU's caches, twice as fast
_DEFAULT_MAX_TOKENS = 16384
_WINDOW = 1024  # tokens, if the target has no limit

OnTokens = Callable[[int, int], None]  # tokens done, total tokens


class _Window(NamedTuple):
    """Tokens begin .. end - 1 of the corpus; predictions count from `first` on."""

    begin: int
    first: int
    end: int


def distil_ngram(
    model: PreTrainedModel,
    sequences: Iterable[Any] | RaggedIds,
    order: int = 4,
    *,
    bos_id: int | None = None,
    window: int | None = None,
    on_tokens: OnTokens | None = None,
    smoothing: str = "katz",
    unseen: str = "cost",
    min_counts: Sequence[int] | None = None,
    full_count_of_counts: bool = True,
    katz_k: int = 5,
    eos_id: int | None = None,
    unk_id: int | None = None,
    threads: int = 0,
) -> NGramLM:
    """Trains an n-gram LM on the target's predictions after each history of a corpus.

    For tokens x_1 .. x_T and predictions y_t = argmax P(. | x_1 .. x_{t-1}) it counts the
    n-grams (x_{t-n+1} .. x_{t-1}, y_t) of each order up to `order`, and estimates as NGramLM.train.

    Args:
        model: the target; on any device.
        sequences: token ids of the target's tokenizer, as NGramLM.train takes them. They are
            held in memory, with as many predictions.
        order: n, 1 to 6.
        bos_id: the token that starts every text, also for the target; it is prepended to sequences
            that lack it, and is the LM's ``<s>``. None: texts are read as they are.
        window: maximum tokens per sequence of a call; longer sequences are read in windows that
            overlap by half. Default: the target's positions, at most 1024.
        on_tokens: called after each call of the target with the tokens done and the total.
        smoothing: see NGramLM.train, as for the next ones.
        unseen: see there.
        min_counts: see there.
        full_count_of_counts: see there.
        katz_k: see there.
        eos_id: see there.
        unk_id: see there.
        threads: see there.

    Returns:
        The LM over the target's vocabulary.

    Raises:
        TypeError: a sequence holds something else than integers.
        ValueError: ids outside the target's vocabulary, a corpus without text, options out of
            range, or NaN logits.

    Warns:
        KatzWarning, SmoothingWarning: see NGramLM.train.
    """
    size = _vocab_size_of(model)
    ragged = flatten_sequences("distil_ngram", sequences, size)
    if bos_id is not None:
        ragged = _begin_with(ragged, bos_id)
    chosen = _predict_all(model, ragged, window, on_tokens)
    core, warnings = _core.train_ngram(
        ragged.token_ids, ragged.offsets, size, order, checked_min_counts(min_counts), katz_k,
        bos_id, eos_id, unk_id, full_count_of_counts, threads, smoothing, unseen, chosen,
    )  # fmt: skip
    warn_of_counts(warnings, smoothing)
    return NGramLM(core)


def predict_targets(
    model: PreTrainedModel,
    sequences: Iterable[Any] | RaggedIds,
    *,
    window: int | None = None,
    on_tokens: OnTokens | None = None,
) -> list[Int32Array]:
    """The target's argmax prediction after every token, teacher-forced.

    Args:
        model: see distil_ngram, as for the others.
        sequences: see there.
        window: see there.
        on_tokens: see there.

    Returns:
        For each sequence (T_i,) int32: entry t is the argmax after tokens 0 .. t; ties go to the
        smallest id.

    Raises:
        TypeError: see there.
        ValueError: ids outside the target's vocabulary, a window below 2 or above the target's
            positions, or NaN logits.
    """
    ragged = flatten_sequences("predict_targets", sequences, _vocab_size_of(model))
    chosen = _predict_all(model, ragged, window, on_tokens)
    bounds = zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)
    return [chosen[begin:end] for begin, end in bounds]


@torch.inference_mode()
def _predict_all(
    model: PreTrainedModel,
    ragged: RaggedIds,
    window: int | None,
    on_tokens: OnTokens | None,
) -> Int32Array:
    """(N,) the prediction after each token of the corpus."""
    vocab_size = _vocab_size_of(model)
    _check_ids(ragged.token_ids, vocab_size)
    windows = list(_cut(ragged, _window_size(model, window)))
    chosen = np.zeros(len(ragged.token_ids), np.int32)
    done = 0
    max_tokens = _MAX_TOKENS.get(model.device.type, _DEFAULT_MAX_TOKENS)
    lengths = [part.end - part.begin for part in windows]
    for numbers in batch_by_length(lengths, min(_LOGITS // vocab_size, max_tokens)):
        batch = [windows[number] for number in numbers]
        rows = _predict(model, ragged.token_ids, batch)
        for row, part in zip(rows, batch, strict=True):
            chosen[part.first : part.end] = row[part.first - part.begin : part.end - part.begin]
            done += part.end - part.first
        if on_tokens is not None:
            on_tokens(done, len(chosen))
    return chosen


def _predict(base: PreTrainedModel, ids: Int32Array, batch: Sequence[_Window]) -> Int32Array:
    """(B, T) predictions for windows padded on the right, which causal attention ignores."""
    longest = max(part.end - part.begin for part in batch)
    rows = np.zeros((len(batch), longest), np.int64)
    for row, part in zip(rows, batch, strict=True):
        row[: part.end - part.begin] = ids[part.begin : part.end]
    inputs = torch.from_numpy(rows).to(base.device)
    logits = base(input_ids=inputs, use_cache=False).logits
    predicted: Int32Array = greedy_tokens(logits).cpu().numpy().astype(np.int32)
    return predicted


def _vocab_size_of(model: PreTrainedModel) -> int:
    return int(model.get_output_embeddings().weight.shape[0])  # type: ignore[no-untyped-call]


def _window_size(base: PreTrainedModel, window: int | None) -> int:
    limit = getattr(base.config.get_text_config(decoder=True), "max_position_embeddings", None)
    if window is None:
        return min(_WINDOW, limit or _WINDOW)
    if window < 2 or window > (limit or window):
        limit_text = "" if limit is None else f", at most the target's {limit} positions"
        raise ValueError(f"{_WHERE}: window is {window}; expected 2 or more{limit_text}")
    return window


def _check_ids(ids: Int32Array, vocab_size: int) -> None:
    if len(ids) == 0 or 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        return
    raise ValueError(
        f"{_WHERE}: the corpus has ids {int(ids.min())}..{int(ids.max())}; expected 0.."
        f"{vocab_size - 1}; use the tokenizer that the target was trained with"
    )


def _cut(ragged: RaggedIds, size: int) -> Iterator[_Window]:
    """All sequences, long ones in windows; all but the first count only their second half."""
    step = size // 2
    for begin, end in zip(ragged.offsets[:-1].tolist(), ragged.offsets[1:].tolist(), strict=True):
        first, start = begin, begin
        while first < end:
            stop = min(start + size, end)
            yield _Window(start, first, stop)
            first, start = stop, stop - (size - step)


def _begin_with(ragged: RaggedIds, bos_id: int) -> RaggedIds:
    """The same sequences, each starting with bos_id."""
    starts, lengths = ragged.offsets[:-1], np.diff(ragged.offsets)
    first = np.full(len(starts), -1, np.int64)
    first[lengths > 0] = ragged.token_ids[starts[lengths > 0]]
    lacks = first != bos_id
    ids = np.insert(ragged.token_ids, starts[lacks], bos_id).astype(np.int32)
    added = np.concatenate([[0], np.cumsum(lacks)])
    return RaggedIds(ids, ragged.offsets + added)
