"""LM files: native, ARPA, OpenFst; their sizes, quantization errors and checksums."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lattice_bpd import _core
from lattice_bpd.atomic_files import replacing
from lattice_bpd.lm.arpa_files import open_arpa, read_arpa_words, write_gzip
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.training import native_path, optional_id
from lattice_bpd.text_input import LM_MAGIC
from lattice_bpd.vocabulary import Vocab, encode_words, read_words

FORMATS = ("lm", "arpa", "arpa.gz", "fst", "const-fst")

_OPENFST = (2125659606).to_bytes(4, "little")  # the magic number of every OpenFst file


def read_lm(
    path: str | os.PathLike[str],
    *,
    vocab: Vocab | None = None,
    words: bool = False,
    vocab_size: int | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    unk_id: int | None = None,
    failure_label: int | None = None,
) -> NGramLM:
    """Reads an LM file; its first bytes determine the format.

    Args:
        path: A native LM file, ARPA text, gzipped ARPA text, or an OpenFst file (vector or const)
            whose labels are token id + 1 and whose states have failure (or epsilon) arcs.
        vocab: ARPA: the word of each token id: words, a tokenizer, or a file of either; see
            :func:`read_words`. None: decimal token ids ("17"). Token ids that are not in the file
            are ``<unk>``, in contexts and as events, as in KenLM; without an ``<unk>`` in the file
            they have cost 1000.
        words: The LM keeps the words of an ARPA file or of vocab, see :attr:`NGramLM.words`;
            without vocab they are numbered in file order, except ``<s>``, ``</s>`` and ``<unk>``.
            Not for native files.
        vocab_size: V; by default the number of words in vocab, else for ARPA the largest token id
            + 1. Needed for an OpenFst file without vocab.
        bos_id: token id that is ``<s>``, if any. Not for native files.
        eos_id: token id that is ``</s>``, if any.
        unk_id: token id that is ``<unk>``, if any.
        failure_label: OpenFst: the label of failure arcs; by default 0 if the FST has epsilon arcs,
            else the one that to_pywrapfst and write_lm use.

    Raises:
        OSError: the file cannot be read.
        FormatError: the content does not fit the format.
        ValueError: inconsistent options, or a word of ARPA text that is not in vocab.

    Warns:
        UserWarning: vocab has words that are not in the ARPA file. Each gets the probability of
            ``<unk>``, as in KenLM, so sums over the vocabulary exceed 1.
    """
    source = Path(native_path(path))
    with source.open("rb") as file:
        magic = file.read(8)
    known = None if vocab is None else read_words(vocab)
    size = optional_id("vocab_size", vocab_size)
    named = {"bos_id": bos_id, "eos_id": eos_id, "unk_id": unk_id}
    ids = {name: optional_id(name, value) for name, value in named.items()}
    if magic == LM_MAGIC:
        return NGramLM.load(source)
    if magic[:4] == _OPENFST:
        size = len(known or ()) if size is None else size
        if not size or (words and known is None):
            needed = "vocab" if words else "vocab_size or vocab"
            raise ValueError(f"{source}: an OpenFst file has no vocabulary; expected {needed}")
        lm = NGramLM(_core.read_lm_fst(os.fspath(source), size, **ids, failure_label=failure_label))
    else:
        with open_arpa(source) as plain:  # decompressed once
            if words and known is None:
                known = read_arpa_words(plain)
            lm = NGramLM(_core.read_arpa(plain, size, encode_words(known or ()), *ids.values()))
            if known and vocab is not None:
                _warn_of_unknown(source, plain, lm, known, ids.values())
    return lm.with_words(known) if known and words else lm


def _warn_of_unknown(
    source: Path, plain: str, lm: NGramLM, words: list[str], ids: Iterable[int | None]
) -> None:
    known = {*_core.read_arpa_words(plain), b"<s>", b"</s>", b"<unk>", b"<UNK>"}
    unknown = [
        i for i, word in enumerate(encode_words(words)) if word not in known and i not in ids
    ]
    if not unknown:
        return
    each = math.exp(lm.log_prob(unknown[0], bos=False))
    warnings.warn(
        f"{source}: {len(unknown)} of {len(words)} token ids are not among its words; each gets "
        f"the probability of <unk>, {each:.3g}, so that the probabilities of all token ids sum to "
        f"{1 + len(unknown) * each:.6g} (harmless where drafts are compared; for perplexities "
        "train with the whole vocabulary)",
        UserWarning,
        stacklevel=3,
    )


def write_lm(
    lm: NGramLM,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    vocab: Vocab | None = None,
) -> None:
    """Writes an LM in one of FORMATS, replacing the file atomically.

    Args:
        lm: the LM.
        path: the file.
        to: one of FORMATS; by default from the ending of path (.lm, .arpa, .arpa.gz, .fst). FSTs
            start after ``<s>``, and ``</s>`` is their final cost.
        vocab: ARPA: the word of each token id, see :func:`read_words`; default: the LM's words, or
            else decimal token ids. ARPA has nine significant digits: reading it back with the same
            vocab_size or vocab gives the same model. Token ids that were not in the ARPA file that
            the LM was read from are left out if its ``<unk>`` has n-grams.

    Raises:
        OSError: it cannot be written; an existing file is untouched.
        ValueError: unknown format, another number of words, words with white space or twice.
    """
    target = Path(path)
    kind = to or next(
        (f for f in ("arpa.gz", "arpa", "fst") if target.name.endswith("." + f)), "lm"
    )
    if kind not in FORMATS:
        raise ValueError(f"write_lm: the format is {kind!r}; expected one of {', '.join(FORMATS)}")
    own = (lm._core.words or b"").split(b"\n")[:-1]
    words = own if vocab is None else encode_words(read_words(vocab))
    if kind == "lm":
        lm.save(target)
    elif kind == "arpa":
        lm._core.to_arpa(native_path(target), words)
    elif kind == "arpa.gz":
        write_gzip(target, lambda plain: lm._core.to_arpa(os.fspath(plain), words))
    else:
        empty = np.zeros(0, np.int32)
        data = lm._core.to_fst_bytes(empty, True, False, True, kind == "const-fst")
        with replacing(target) as temporary:
            temporary.write_bytes(data)


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
    "unlisted ids",
    "words",
)
_PARTS = ("key", "log_prob", "backoff", "child")


@dataclass(frozen=True)
class LmInfo:
    """The content of an LM file.

    Attributes:
        vocab_size: V.
        levels: for each order: ``ngrams``, their number (of symbols for order 1), and ``bytes``,
            their total size; ``key_bytes``, ``log_prob_bytes``, ``backoff_bytes``, ``child_bytes``
            of each; ``log_prob_error``, ``backoff_error``: the largest changes by quantization, in
            nats.
        sections: ``name``, ``order``, ``offset``, ``bytes``, ``checksum`` of each.
    """

    vocab_size: int
    levels: list[dict[str, Any]]
    sections: list[dict[str, Any]]

    @property
    def order(self) -> int:
        """n."""
        return len(self.levels)

    @property
    def num_ngrams(self) -> int:
        """The number of n-grams of all orders."""
        return sum(level["ngrams"] for level in self.levels)

    @property
    def bytes_per_ngram(self) -> float:
        """Mean size of an n-gram in bytes."""
        return float(sum(level["bytes"] for level in self.levels) / self.num_ngrams)

    @property
    def is_quantized(self) -> bool:
        """Whether any number was changed by quantization."""
        return any(level["log_prob_error"] or level["backoff_error"] for level in self.levels)

    def lines(self) -> Iterator[str]:
        """The lines of a table."""
        form = "quantized" if self.is_quantized else "exact"
        yield (
            f"order {self.order}, vocabulary {self.vocab_size:,}, {self.num_ngrams:,} n-grams, "
            f"{self.bytes_per_ngram:.2f} bytes each, {form}"
        )
        yield "order       n-grams  bytes each  key+prob+backoff+child   error of prob  of backoff"
        for order, level in enumerate(self.levels, 1):
            fields = "+".join(str(level[f"{part}_bytes"]) for part in _PARTS)
            yield (
                f"{order:5} {level['ngrams']:13,} {level['bytes'] / level['ngrams']:11.2f}  "
                f"{fields:>22}  {level['log_prob_error']:14.6f} {level['backoff_error']:11.6f}"
            )
        for section in self.sections:
            yield (
                "  order {order} {name:18} {bytes:13,} bytes at {offset:13,}  checksum "
                "{checksum:016x}".format(**section)
            )


def describe_lm(path: str | os.PathLike[str]) -> LmInfo:
    """Describes an LM file after verifying its checksums.

    Raises:
        OSError: the file cannot be opened.
        FormatError: it is not an LM file, or is damaged.
    """
    lm = NGramLM.load(path, verify=True)
    sections = []
    for kind, *values in _core.list_sections(os.fspath(path)):
        name = _SECTIONS[kind] if kind < len(_SECTIONS) else f"kind {kind}"
        fields = zip(("order", "offset", "bytes", "checksum"), values, strict=True)
        sections.append({"name": name, **dict(fields)})
    return LmInfo(lm.vocab_size, _core.describe_levels(lm._core), sections)
