"""Counts files: their headers, and counters that start from them."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import checked_min_counts, warn_of_counts
from lattice_bpd.text_input import STANDARD_INPUT
from lattice_bpd.train.corpus import Corpus, WordEncoder
from lattice_bpd.watcher import Watcher

StrPath = str | os.PathLike[str]

_MAGIC = b"LBPD-NC\n"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class CountsInfo:
    """The header of a counts file.

    Attributes:
        order: length of the longest n-grams that are counted.
        vocab_size: V.
        bos_id: token id that is ``<s>``, if any; likewise eos_id and unk_id.
        eos_id: see bos_id.
        unk_id: see bos_id.
        num_sequences: sequences counted.
        num_tokens: tokens counted, without ``<s>`` and ``</s>``.
        num_records: distinct n-grams of the highest order.
        file_size: bytes.
        sources: the files that were counted.
    """

    order: int
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    num_sequences: int
    num_tokens: int
    num_records: int
    file_size: int
    sources: tuple[str, ...]


def read_counts_info(path: StrPath) -> CountsInfo:
    """Reads the header of a counts file.

    Raises:
        OSError: it cannot be read.
        FormatError: it is not a counts file, or is damaged.
    """
    info = dict(_core.describe_counts(os.fspath(path)))
    info["sources"] = tuple(info["sources"].splitlines())
    return CountsInfo(**info)


def parse_memory(memory: int | str) -> int:
    """Parses a size in bytes such as "2G" or "500M" (powers of 1024).

    Raises:
        ValueError: not such a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", str(memory), re.IGNORECASE)
    if match is None:
        raise ValueError(f"memory is {memory!r}; expected bytes, or such as 500M or 2G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _make_counter(
    texts: Corpus | CountsInfo, order: int, memory: int | str, threads: int
) -> _core.CorpusCounter:
    """An empty counter for a corpus, or for such texts as a counts file has."""
    size = texts.size_of_vocabulary if isinstance(texts, Corpus) else texts.vocab_size
    ids = texts.bos_id, texts.eos_id, texts.unk_id
    return _core.CorpusCounter(size, order, parse_memory(memory), "", *ids, threads)


def _open_counts(
    paths: Sequence[StrPath], order: int | None, memory: int | str, threads: int
) -> tuple[_core.CorpusCounter, list[CountsInfo]]:
    """A counter that starts with the sum of counts files, and their headers."""
    infos = [read_counts_info(path) for path in paths]
    if not infos:
        raise ValueError("no counts files; expected at least one")
    order = min(info.order for info in infos) if order is None else order
    counter = _make_counter(infos[0], order, memory, threads)
    for path in paths:
        counter.add_file(os.fspath(path))
    return counter, infos


def is_counts_file(path: StrPath) -> bool:
    """Whether a file has the magic number of counts files."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def count_corpus(
    corpus: Corpus,
    output: StrPath,
    *,
    order: int = 4,
    memory: int | str = "2G",
    threads: int = 0,
    resume: bool = False,
    checkpoint_minutes: float | None = None,
    watcher: Watcher | None = None,
) -> CountsInfo:
    """Counts all n-grams of orders 1 to `order` and writes a counts file.

    Args:
        corpus: the corpus.
        output: the counts file; an existing file is replaced when the new one is complete.
        order: length of the longest n-grams, 1 to 6.
        memory: limit in bytes for sorting ("2G", "500M"); tokenizing needs more. The rest is in
            temporary files in TMPDIR, or the system's folder for them; nothing is left there.
        threads: 0 for every core. The counts do not depend on it.
        resume: continue from an existing counts file: skip the files that it has counted.
        checkpoint_minutes: interval at which to write the counts file (after a whole file), so
            that a killed run can be resumed. None: only at the end.
        watcher: receives progress: stage "text", a step for each MiB read.

    Returns:
        The header of the counts file.

    Raises:
        OSError: a file cannot be read or written; for a full disk the message says how many
            bytes are needed.
        FormatError: bad input; the message says where.
        ValueError: bad input or options; resume with another order or vocabulary.
        KeyboardInterrupt: no temporary files are left, and `output` is unchanged.
    """
    counter = _make_counter(corpus, order, memory, threads)
    path = os.fspath(output)
    sources: list[str] = []
    if resume and Path(path).exists():
        info = read_counts_info(path)
        if info.order != order:
            raise ValueError(
                f"{path}: it has counts of order {info.order}; order is {order}: resume with the "
                "same"
            )
        counter.add_file(path)
        sources += info.sources
    last_save = time.monotonic()
    saved = bool(sources)
    for source in _add_all(corpus, counter, sources, watcher):
        sources.append(source)
        saved = False
        if checkpoint_minutes is None or time.monotonic() < last_save + 60 * checkpoint_minutes:
            continue
        counter.save(path, _join(sources))
        last_save, saved = time.monotonic(), True
    if not saved:
        counter.save(path, _join(sources))
    return read_counts_info(path)


def merge_counts(
    paths: Sequence[StrPath],
    output: StrPath,
    *,
    order: int | None = None,
    memory: int | str = "2G",
    threads: int = 0,
    allow_repeats: bool = False,
) -> CountsInfo:
    """Adds counts files up, streaming.

    Args:
        paths: counts files of the same vocabulary, in any order.
        output: the counts file; may be one of `paths`.
        order: of the result. None: their lowest.
        memory: limit in bytes for buffers and, with very many files, early merges.
        threads: 0 for every core. The counts do not depend on it.
        allow_repeats: accept sources that several of the files have counted.

    Returns:
        The header of the counts file.

    Raises:
        OSError: a file cannot be read or written.
        FormatError: a file is not a counts file, or is damaged.
        ValueError: no files, vocabularies differ, or a source counted twice.
    """
    counter, infos = _open_counts(paths, order, memory, threads)
    sources = [source for info in infos for source in info.sources]
    repeated = [source for source, count in Counter(sources).items() if count > 1]
    repeated = [source for source in repeated if source != STANDARD_INPUT]
    if repeated and not allow_repeats:
        raise ValueError(
            f"{repeated[0]}: counted in more than one of the files; its text would count twice. "
            "Leave one file out, or allow it (allow_repeats, --allow-repeats)"
        )
    counter.save(os.fspath(output), _join(sources))
    return read_counts_info(output)


def _add_all(
    corpus: Corpus,
    counter: _core.CorpusCounter,
    skip: Sequence[str],
    watcher: Watcher | None,
) -> Iterable[str]:
    """Counts a corpus and yields each file after it has been counted."""

    def note() -> str:
        sequences, keys, runs, spilled = counter.progress()
        on_disk = f", {runs} runs of {spilled / 1e9:.2f} GB on disk" if runs else ""
        return f"{keys - sequences:,} tokens{on_disk}"

    for batch in corpus.batches(skip, watcher, note):
        counter.add(batch.token_ids, batch.offsets, batch.continues_previous, batch.continues_next)
        if batch.source is not None:
            yield batch.source


def _join(sources: Sequence[str]) -> str:
    """One source per line; file names with line ends are quoted."""
    return "".join(
        f"{source if source.splitlines() == [source] else repr(source)}\n" for source in sources
    )


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
    watcher: Watcher | None = None,
) -> NGramLM:
    """Counts a corpus and estimates an LM: the same one as NGramLM.train's on the same sequences.

    The LM of a corpus from :func:`word_corpus` has its words.

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
        watcher: receives progress: stage "text", a step for each MiB read.

    Raises:
        OSError: a file cannot be read or written.
        FormatError: bad input; the message says where.
        ValueError: bad input or options; a model that exceeds `memory` (the message says
            how much it needs).

    Warns:
        KatzWarning, SmoothingWarning: see NGramLM.train.
    """
    counter = _make_counter(corpus, order, memory, threads)
    for _ in _add_all(corpus, counter, (), watcher):
        pass
    lm = _estimate(counter, min_counts, smoothing, unseen, katz_k, full_count_of_counts, threads)
    encoder = corpus.encoder
    if isinstance(encoder, WordEncoder) and encoder.of_corpus:
        lm = lm.with_words(encoder.words)
    return lm


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

    Raises:
        OSError: a file cannot be read.
        FormatError: a file is not a counts file, or is damaged.
        ValueError: vocabularies differ, or options out of range.
    """
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    counter, _ = _open_counts(files, order, memory, threads)
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
