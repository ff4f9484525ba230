"""Descriptions of LM files: orders, bytes, quantization errors, checksums."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM

_SECTIONS = (
    "",
    "level forms",
    "keys",
    "records",
    "log probabilities",
    "backoffs",
    "child bases",
    "samples",
    "wide children",
)


@dataclass(frozen=True)
class LevelInfo:
    """One order of an LM.

    Attributes:
        order: n.
        ngrams: number of n-grams; of symbols for order 1.
        bytes: their total size.
        form: bytes of key, log probability, backoff and first child per n-gram.
        log_prob_error: largest change of a log probability by quantization, in nats.
        backoff_error: the same for backoff weights.
    """

    order: int
    ngrams: int
    bytes: int
    form: tuple[int, int, int, int]
    log_prob_error: float
    backoff_error: float


@dataclass(frozen=True)
class SectionInfo:
    """One section of an LM file, with the checksum of its bytes."""

    name: str
    order: int
    offset: int
    bytes: int
    checksum: int


@dataclass(frozen=True)
class LmInfo:
    """The levels of an LM and, if it comes from a file, the sections of the file."""

    vocab_size: int
    levels: list[LevelInfo]
    sections: list[SectionInfo]

    @property
    def order(self) -> int:
        """n."""
        return len(self.levels)

    @property
    def num_ngrams(self) -> int:
        """The number of n-grams of all orders."""
        return sum(level.ngrams for level in self.levels)

    @property
    def bytes_per_ngram(self) -> float:
        """Mean size of an n-gram in bytes."""
        return sum(level.bytes for level in self.levels) / self.num_ngrams

    @property
    def is_quantised(self) -> bool:
        """Whether any number was changed by quantization."""
        return any(level.log_prob_error or level.backoff_error for level in self.levels)

    def lines(self) -> Iterator[str]:
        """The lines of a table."""
        form = "quantised" if self.is_quantised else "exact"
        yield (
            f"order {self.order}, vocabulary {self.vocab_size:,}, {self.num_ngrams:,} n-grams, "
            f"{self.bytes_per_ngram:.2f} bytes each, {form}"
        )
        yield "order       n-grams  bytes each  key+prob+backoff+child   error of prob  of backoff"
        for level in self.levels:
            fields = "+".join(map(str, level.form))
            yield (
                f"{level.order:5} {level.ngrams:13,} {level.bytes / level.ngrams:11.2f}  "
                f"{fields:>22}  {level.log_prob_error:14.6f} {level.backoff_error:11.6f}"
            )
        for section in self.sections:
            yield (
                f"  order {section.order} {section.name:18} {section.bytes:13,} bytes at "
                f"{section.offset:13,}  checksum {section.checksum:016x}"
            )


def describe_lm(lm: NGramLM | str | os.PathLike[str]) -> LmInfo:
    """Describes an LM, or an LM file after verifying its checksums.

    Raises:
        OSError: the file cannot be opened.
        FormatError: it is not an LM file, or is damaged.
    """
    sections: list[SectionInfo] = []
    if not isinstance(lm, NGramLM):
        path = Path(lm)
        lm = NGramLM.load(path, verify=True)
        sections = [_section(*entry) for entry in _core.list_sections(os.fspath(path))]
    levels = [
        LevelInfo(
            order,
            level["ngrams"],
            level["bytes"],
            tuple(level[f"{name}_bytes"] for name in ("key", "log_prob", "backoff", "child")),
            level["log_prob_error"],
            level["backoff_error"],
        )
        for order, level in enumerate(_core.describe_levels(lm._core), 1)
    ]
    return LmInfo(lm.vocab_size, levels, sections)


def _section(kind: int, order: int, offset: int, size: int, checksum: int) -> SectionInfo:
    name = _SECTIONS[kind] if kind < len(_SECTIONS) else f"kind {kind}"
    return SectionInfo(name, order, offset, size, checksum)
