"""LMs straight from files: from a corpus, or from counts that were saved."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lattice_bpd import _core
from lattice_bpd.lm.training import KatzWarning, SmoothingWarning, checked_min_counts
from lattice_bpd.train.ngram.counting import OnProgress, add_corpus
from lattice_bpd.train.ngram.counts_file import StrPath, make_counter, open_counts
from lattice_bpd.train.text.corpus import Corpus

if TYPE_CHECKING:
    from lattice_bpd.lm.ngram import NGramLM


def train_corpus(
    corpus: Corpus,
    order: int = 4,
    *,
    min_counts: Sequence[int] | None = None,
    smoothing: str = "katz",
    unseen: str = "cost",
    katz_k: int = 5,
    full_count_of_counts: bool = True,
    memory: int | str = "2G",
    threads: int = 0,
    temp_dir: StrPath | None = None,
    on_progress: OnProgress | None = None,
) -> NGramLM:
    """Counts a corpus and estimates an LM: the same one as train_ngram's on the same sequences.

    Args:
        corpus: what to count.
        order: length of the longest n-grams, 1 to 6.
        min_counts: one entry for each order; see train_ngram, as for the next four. N-grams below
            it are dropped while runs are merged and take no memory then (but for Kneser-Ney).
        smoothing: see train_ngram.
        unseen: see train_ngram.
        katz_k: see train_ngram.
        full_count_of_counts: see train_ngram.
        memory: bytes that counting, and then the model while it is estimated, may take ("2G");
            reading and tokenizing come on top.
        threads: 0 for every core. The LM does not depend on it.
        temp_dir: folder for spilled runs; default: TMPDIR, or the system's.
        on_progress: is called after each batch.

    Raises:
        OSError: a file cannot be read or written.
        FormatError: bad input; the message has the place.
        ValueError: bad input or options; a model that `memory` does not hold (the message says
            how much is needed).

    Warns:
        KatzWarning, SmoothingWarning: see train_ngram.
    """
    counter = make_counter(corpus, order, memory, threads, temp_dir)
    add_corpus(corpus, counter, on_progress)
    return _estimate(counter, min_counts, smoothing, unseen, katz_k, full_count_of_counts, threads)


def train_counts(
    paths: StrPath | Sequence[StrPath],
    order: int | None = None,
    *,
    min_counts: Sequence[int] | None = None,
    smoothing: str = "katz",
    unseen: str = "cost",
    katz_k: int = 5,
    full_count_of_counts: bool = True,
    memory: int | str = "2G",
    threads: int = 0,
    temp_dir: StrPath | None = None,
) -> NGramLM:
    """Estimates an LM from counts files, which are added up.

    Args:
        paths: one or more files that count_corpus or merge_counts wrote.
        order: at most theirs; default: the lowest of theirs.
        min_counts: see train_corpus, as for all others.
        smoothing: see train_corpus.
        unseen: see train_corpus.
        katz_k: see train_corpus.
        full_count_of_counts: see train_corpus.
        memory: see train_corpus.
        threads: see train_corpus.
        temp_dir: see train_corpus.

    Raises:
        OSError: a file cannot be read.
        FormatError: a file is no counts file, cut or altered.
        ValueError: other vocabularies, or options out of range.
    """
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    counter, _ = open_counts(files, order, memory, threads, temp_dir)
    return _estimate(counter, min_counts, smoothing, unseen, katz_k, full_count_of_counts, threads)


def _estimate(
    counter: _core.CorpusCounter,
    min_counts: Sequence[int] | None,
    smoothing: str,
    unseen: str,
    katz_k: int,
    full_count_of_counts: bool,
    threads: int,
) -> NGramLM:
    from lattice_bpd.lm.ngram import NGramLM

    lm, complaints = counter.train(
        checked_min_counts(min_counts), katz_k, full_count_of_counts, threads, smoothing, unseen
    )
    category = KatzWarning if smoothing == "katz" else SmoothingWarning
    for complaint in complaints:
        warnings.warn(complaint, category, stacklevel=3)
    return NGramLM(lm)
