"""Counts files: their headers, and counters that start from them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lattice_bpd import _core
from lattice_bpd.train.text.corpus import Corpus

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


def make_counter(
    corpus: Corpus, order: int, memory: int | str, threads: int, temp_dir: StrPath | None
) -> _core.CorpusCounter:
    """An empty counter for a corpus."""
    return _core.CorpusCounter(
        corpus.size_of_vocabulary,
        order,
        parse_memory(memory),
        "" if temp_dir is None else os.fspath(temp_dir),
        corpus.bos_id,
        corpus.eos_id,
        corpus.unk_id,
        threads,
    )


def open_counts(
    paths: Sequence[StrPath],
    order: int | None,
    memory: int | str,
    threads: int,
    temp_dir: StrPath | None,
) -> tuple[_core.CorpusCounter, list[CountsInfo]]:
    """A counter that starts with the sum of counts files, and their headers."""
    infos = [read_counts_info(path) for path in paths]
    if not infos:
        raise ValueError("no counts files; expected at least one")
    counter = _core.CorpusCounter(
        infos[0].vocab_size,
        order if order is not None else min(info.order for info in infos),
        parse_memory(memory),
        "" if temp_dir is None else os.fspath(temp_dir),
        infos[0].bos_id,
        infos[0].eos_id,
        infos[0].unk_id,
        threads,
    )
    for path in paths:
        counter.add_file(os.fspath(path))
    return counter, infos


def is_counts_file(path: StrPath) -> bool:
    """Whether a file has the magic number of counts files."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
