"""Training of LMs from a corpus of files, or from counts files."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import checked_min_counts, warn_of_counts
from lattice_bpd.train.ngram.counting import OnProgress, add_corpus
from lattice_bpd.train.ngram.counts_file import StrPath, make_counter, open_counts
from lattice_bpd.train.text.corpus import Corpus


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
    """Counts a corpus and estimates an LM: the same one as NGramLM.train's on the same sequences.

    Args:
        corpus: the corpus.
        order: length of the longest n-grams, 1 to 6.
        min_counts: one entry for each order; see NGramLM.train. N-grams below it are dropped while
            runs are merged and take no memory (except for Kneser-Ney).
        smoothing: see NGramLM.train.
        unseen: see NGramLM.train.
        katz_k: see NGramLM.train.
        full_count_of_counts: see NGramLM.train.
        memory: limit in bytes ("2G") for counting, and then for the model while it is estimated;
            reading and tokenizing need more.
        threads: 0 for every core. The LM does not depend on it.
        temp_dir: folder for spilled runs; default: TMPDIR, or the system's.
        on_progress: called after each batch.

    Raises:
        OSError: a file cannot be read or written.
        FormatError: bad input; the message says where.
        ValueError: bad input or options; a model that exceeds `memory` (the message says
            how much it needs).

    Warns:
        KatzWarning, SmoothingWarning: see NGramLM.train.
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
    """Estimates an LM from the sum of counts files.

    Args:
        paths: one or more files that count_corpus or merge_counts wrote.
        order: at most theirs; default: their lowest.
        min_counts: see train_corpus.
        smoothing: see train_corpus.
        unseen: see train_corpus.
        katz_k: see train_corpus.
        full_count_of_counts: see train_corpus.
        memory: see train_corpus.
        threads: see train_corpus.
        temp_dir: see train_corpus.

    Raises:
        OSError: a file cannot be read.
        FormatError: a file is not a counts file, or is damaged.
        ValueError: vocabularies differ, or options out of range.
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
    core, texts = counter.train(
        checked_min_counts(min_counts), katz_k, full_count_of_counts, threads, smoothing, unseen
    )
    warn_of_counts(texts, smoothing, stacklevel=4)
    return NGramLM(core)
