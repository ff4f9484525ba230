"""Backoff n-gram LMs over token ids: train, load, save, query, change, export."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.atomic_files import temporary_folder
from lattice_bpd.extensions import require
from lattice_bpd.lm.training import (
    RaggedIds,
    TextScore,
    checked_min_counts,
    flatten_sequences,
    native_path,
    warn_of_counts,
)
from lattice_bpd.text_input import LM_MAGIC, refuse_foreign
from lattice_bpd.token_ids import to_token_ids
from lattice_bpd.vocabulary import StrPath, Vocab, encode_words, read_words


class NGramLM:
    """A backoff n-gram LM of order 1 to 6 over token ids 0..vocab_size-1.

    Backing off has failure semantics: a backoff weight is paid only where the longer n-gram is
    absent. ``<s>``, ``</s>`` and ``<unk>`` are symbols outside the vocabulary unless bos_id,
    eos_id, unk_id name token ids for them. Log probabilities are natural logs. Immutable; any
    number of threads may query it. A pickle holds the path of the file that the LM is mapped from,
    which must still be there unchanged when it is read, or the whole LM if it is in memory.

    Made by :meth:`train`, :meth:`load`, :meth:`interpolate` or :func:`lattice_bpd.lm.read_lm`.
    """

    def __init__(self, core: _core.BackoffLm) -> None:
        """Wraps a model of the C++ core; use the class methods instead."""
        self._core = core
        self._file: tuple[str, bytes] | None = None  # absolute path and header of a mapped file

    @classmethod
    def train(
        cls,
        sequences: Iterable[Any] | RaggedIds,
        order: int = 4,
        *,
        vocab_size: int,
        smoothing: str = "katz",
        unseen: str = "cost",
        min_counts: Sequence[int] | None = None,
        full_count_of_counts: bool = True,
        katz_k: int = 5,
        bos_id: int | None = None,
        eos_id: int | None = None,
        unk_id: int | None = None,
        threads: int = 0,
    ) -> NGramLM:
        """Counts n-grams and estimates a backoff LM, by default Katz with Good-Turing discounts.

        Each sequence is read as ``<s> w1 .. wm </s>``: no n-gram crosses a boundary, ``<s>`` is
        only ever a context and ``</s>`` an event.

        Args:
            sequences: Sentences or documents, (T_i,) integers each; or a RaggedIds.
            order: n, 1..6.
            vocab_size: V, at most 2**21; token ids lie in 0..V-1.
            smoothing: "katz", "kneser_ney", "modified_kneser_ney" (as KenLM's lmplz),
                "witten_bell" or "absolute"; docs/ngram.md has the formulas.
            unseen: What token ids that never occur get: "cost" 1000, so that every path through a
                lattice has a probability; or "uniform": unigrams are discounted absolutely and
                the discounted mass is spread over all symbols but ``<s>``.
            min_counts: Smallest count to keep, for each order, such as 1,1,2,4 (the paper's);
                rarer n-grams are dropped unless a kept n-gram needs them. None: all are kept.
            full_count_of_counts: Take counts of counts (and continuation counts) from the whole
                corpus (right), or from what min_counts leaves of it (as toolkits do that prune
                counts before they estimate).
            katz_k: Katz: counts up to this one, 1..32, get Good-Turing discounts; counts above it
                keep 99.9 %, so that every history leaves some probability to its backoff.
            bos_id: Token id that is ``<s>``; a sequence that starts with it gets no second one.
                None: a symbol outside the vocabulary. Likewise the next two.
            eos_id: Token id that is ``</s>``; a sequence that ends with it gets no second one.
            unk_id: Token id that is ``<unk>``.
            threads: 0 for every core. The LM does not depend on it.

        Returns:
            The LM. Its order is lower than requested if no n-gram of that order is left; a warning
            says so.

        Raises:
            TypeError: Token ids that are not integers.
            ValueError: No text, ids outside the vocabulary, sequences that are not 1-D, or
                options out of range.

        Warns:
            KatzWarning: The counts of counts of an order break Good-Turing's assumptions (small or
                artificial corpora); the affected counts keep 99.9 %.
            SmoothingWarning: The same for another smoothing, which then uses fixed discounts.

        Source: Katz 1987; Kim et al. 2024, section 4 and appendices C.3 and D.
        """
        ragged = flatten_sequences("NGramLM.train", sequences, vocab_size)
        core, warnings = _core.train_ngram(
            ragged.token_ids, ragged.offsets, vocab_size, order, checked_min_counts(min_counts),
            katz_k, bos_id, eos_id, unk_id, full_count_of_counts, threads, smoothing, unseen,
        )  # fmt: skip
        warn_of_counts(warnings, smoothing)
        return cls(core)

    @classmethod
    def interpolate(
        cls,
        lms: Sequence[NGramLM],
        *,
        weights: Sequence[float] | None = None,
        heldout: Iterable[Any] | RaggedIds | None = None,
        threads: int = 0,
    ) -> NGramLM:
        """Mixes LMs of one vocabulary into one static backoff LM.

        It lists the n-grams of all of them, each with the mixture's probability (every LM backs
        off by itself if it lacks the n-gram), and computes backoff weights so that sums are 1.
        N-grams that it does not list get the mixture's probability approximately.

        Args:
            lms: The LMs; orders may differ.
            weights: One for each LM, scaled to sum to 1.
            heldout: Sequences of token ids to tune weights on, instead of weights; see
                :meth:`tune_weights`.
            threads: 0 for every core.

        Raises:
            TypeError: An element of lms is not an NGramLM.
            ValueError: Vocabularies differ, or not exactly one of weights and heldout is given.

        Source: Jelinek and Mercer 1980; docs/ngram.md.
        """
        if (weights is None) == (heldout is None):
            raise ValueError("NGramLM.interpolate: expected either weights or heldout")
        if heldout is not None:
            weights = cls.tune_weights(lms, heldout, threads=threads)
        cores = [core_of("NGramLM.interpolate", lm) for lm in lms]
        return cls(_core.interpolate(cores, [float(weight) for weight in weights or ()], threads))

    @staticmethod
    def tune_weights(
        lms: Sequence[NGramLM], heldout: Iterable[Any] | RaggedIds, *, threads: int = 0
    ) -> list[float]:
        """The interpolation weights that maximize the probability of a held-out text, by EM.

        Args:
            lms: The LMs, of one vocabulary.
            heldout: Sequences as :meth:`train` takes them; not part of the training text.
            threads: 0 for every core.

        Returns:
            One weight for each LM; they sum to 1.

        Raises:
            TypeError: An element of lms is not an NGramLM.
            ValueError: Vocabularies differ, no token is known to any LM, or bad sequences.
        """
        cores = [core_of("NGramLM.tune_weights", lm) for lm in lms]
        if not cores:
            raise ValueError("NGramLM.tune_weights: no LM; expected at least one")
        ragged = flatten_sequences("NGramLM.tune_weights", heldout, cores[0].vocab_size)
        return _core.tune_weights(cores, ragged.token_ids, ragged.offsets, threads)

    @classmethod
    def load(cls, path: StrPath, *, verify: bool | None = None) -> NGramLM:
        """Maps an LM file that :meth:`save` wrote.

        Args:
            path: The file; it is mapped, not read, and shared between processes.
            verify: Compare all checksums; None does so for files up to 256 MiB.

        Raises:
            OSError: The file cannot be opened.
            FormatError: Not an LM file, truncated, or altered; the message says where.
        """
        name = native_path(path)
        try:
            lm = cls(_core.load_lm(name, verify))
        except _core.FormatError:
            refuse_foreign(name, expected="an LM file of build or ngram train", magic=LM_MAGIC)
            raise
        lm._file = (os.path.abspath(name), _read_header(name))  # noqa: PTH100
        return lm

    def save(self, path: StrPath) -> None:
        """Writes the LM to a temporary file next to `path`, then renames it.

        Raises:
            OSError: It cannot be written; an existing file is untouched.
        """
        self._core.save(native_path(path))

    def with_words(self, vocab: Vocab) -> NGramLM:
        """The same LM with the word of each token id, which :meth:`save` writes into its file.

        Args:
            vocab: V words without ASCII white space, see :func:`lattice_bpd.lm.read_words`.

        Raises:
            ValueError: Another number of words, a word twice, or none that text can have.
        """
        lines = b"".join(word + b"\n" for word in encode_words(read_words(vocab)))
        return NGramLM(_core.with_words(self._core, lines))

    def to_pywrapfst(
        self,
        context: Any = (),
        *,
        bos: bool = True,
        expand_failures: bool = False,
        end_of_sentence: bool = False,
    ) -> Any:
        """The LM as a ``pywrapfst.VectorFst`` over standard arcs that starts after a context.

        Labels are token id + 1, weights natural costs. A state's failure arc carries
        :attr:`failure_label` and may be followed only if no other arc matches; a toolkit that
        treats it as an ordinary arc computes wrong scores.

        Args:
            context: (T,) token ids before the start state.
            bos: Whether the context starts after ``<s>``.
            expand_failures: Write out every arc instead, V for each state: for small models and
                toolkits without a phi matcher.
            end_of_sentence: Final costs are those of ``</s>``, else 0.

        Raises:
            ImportError: pywrapfst is not installed (extra ``openfst``).
            ValueError: Token ids outside the vocabulary, or too many arcs to write out.
        """
        pywrapfst = require("pywrapfst", "openfst")
        history = to_token_ids(context, "to_pywrapfst: context", self.vocab_size)
        data = self._core.to_fst_bytes(history, bos, expand_failures, end_of_sentence)
        return pywrapfst.Fst.read_from_string(data)

    def log_prob(self, token_id: int, context: Any = (), *, bos: bool = True) -> float:
        """ln P(token_id | context) with exact backoff.

        Args:
            token_id: 0..V-1.
            context: (T,) token ids before it; only the last order - 1 matter.
            bos: Whether the context starts after ``<s>``.

        Raises:
            ValueError: Token ids outside the vocabulary.
        """
        word = to_token_ids([token_id], "log_prob: token_id", self.vocab_size)
        history = to_token_ids(context, "log_prob: context", self.vocab_size)
        return self._core.log_prob(int(word[0]), history, bos)

    def score(
        self, token_ids: Any, *, bos: bool = True, eos: bool = False
    ) -> npt.NDArray[np.float64]:
        """ln P of each token of a text given the tokens before it.

        Args:
            token_ids: (T,) integers.
            bos: Whether the text starts after ``<s>``.
            eos: Whether to score ``</s>`` at its end.

        Returns:
            (T,) float64, or (T + 1,) with eos.

        Raises:
            ValueError: Token ids outside the vocabulary.
        """
        return self._core.score(to_token_ids(token_ids, "score", self.vocab_size), bos, eos)

    def prune(
        self,
        *,
        theta: float | None = None,
        prune_to: int | None = None,
        min_counts: Sequence[int] | None = None,
        keep_ids: Any = None,
        threads: int = 0,
    ) -> NGramLM:
        """Returns a smaller LM; kept n-grams keep their probabilities, sums stay 1.

        Criteria apply in this order: vocabulary, counts, threshold, size. The prefix and the
        suffix of a kept n-gram are kept too, and so are all unigrams (unless keep_ids drops them).

        Args:
            theta: Drop n-grams whose removal alone raises perplexity by less than this factor - 1,
                for instance 1e-8 (Stolcke 1998).
            prune_to: Drop the n-grams that cost least until at most so many are left; symbols
                without a probability of their own stay and do not count, see :attr:`num_prunable`.
                Ties are dropped together.
            min_counts: One entry for each order; drop n-grams whose count, as estimated from their
                probability, is lower. Counts of the corpus are better: give them to :meth:`train`.
            keep_ids: (K,) token ids; drop n-grams with any other. Unigrams are scaled to sum to 1.
            threads: 0 for every core.

        Returns:
            The LM; its order is lower if no n-gram of the highest order is left.

        Raises:
            ValueError: No criterion, or a number out of range.

        Source: Stolcke 1998, "Entropy-based pruning of backoff language models"; docs/ngram.md.
        """
        if theta is None and prune_to is None and min_counts is None and keep_ids is None:
            raise ValueError(
                "NGramLM.prune: nothing to do; expected theta, prune_to, min_counts or keep_ids"
            )
        if prune_to is not None and prune_to < 0:
            raise ValueError(f"NGramLM.prune: prune_to is {prune_to}; expected 0 or above")
        core = self._core
        if keep_ids is not None:
            kept = to_token_ids(keep_ids, "NGramLM.prune: keep_ids", self.vocab_size)
            core = _core.prune_by_vocabulary(core, kept, threads)
        if min_counts is not None:
            counts = [int(count) for count in min_counts]
            core = _core.prune_by_estimated_count(core, counts, threads)
        if theta is not None:
            core = _core.prune_by_entropy(core, theta, threads)
        if prune_to is not None:
            core = _core.prune_to_size(core, prune_to, threads)
        return NGramLM(core)

    def quantize(self, bits: int = 8) -> NGramLM:
        """Returns an LM whose log probabilities and backoffs take 2**bits values for each order.

        The values come from one-dimensional k-means. Backoffs of 0 and the costs that encode
        unseen and impossible events stay exact. :func:`lattice_bpd.lm.describe_lm` reports the
        largest error.

        Args:
            bits: 8 (about 4.2 bytes per n-gram), 12 or 16 (about 5.8 bytes, errors of rounding).

        Raises:
            ValueError: Another number of bits.

        Source: Lloyd 1982, "Least squares quantization in PCM".
        """
        return NGramLM(_core.quantize(self._core, bits))

    def evaluate(
        self,
        sequences: Iterable[Any] | RaggedIds,
        *,
        bos: bool = True,
        eos: bool = True,
        threads: int = 0,
    ) -> TextScore:
        """Perplexity, unknown tokens and hits by order on a text, in one pass.

        Args:
            sequences: Sentences or documents, (T_i,) integers each; or a RaggedIds.
            bos: Whether each sequence starts after ``<s>``.
            eos: Whether to score ``</s>`` at the end of each.
            threads: 0 for every core; the result does not depend on it.

        Raises:
            TypeError: Token ids that are not integers.
            ValueError: A token id outside the vocabulary, or no text.
        """
        ids, offsets = flatten_sequences("NGramLM.evaluate", sequences, self.vocab_size)
        return TextScore(*_core.evaluate_lm(self._core, ids, offsets, bos, eos, threads))

    @property
    def order(self) -> int:
        """n: histories have up to n - 1 tokens."""
        return self._core.order

    @property
    def vocab_size(self) -> int:
        """V, the number of token ids."""
        return self._core.vocab_size

    @property
    def words(self) -> list[str] | None:
        """The word of each token id; None if the LM has token ids alone."""
        lines = self._core.words
        return None if lines is None else lines.decode("utf-8", "replace").split("\n")[:-1]

    @property
    def num_ngrams(self) -> list[int]:
        """The number of n-grams of each order; unigrams include symbols."""
        return self._core.num_ngrams

    @property
    def num_prunable(self) -> int:
        """What prune_to counts: longer n-grams, and unigrams with a probability of their own."""
        return _core.count_prunable(self._core)

    @property
    def failure_label(self) -> int:
        """The label of failure arcs in :meth:`to_pywrapfst`."""
        return self._core.failure_label

    def __copy__(self) -> NGramLM:
        """The LM itself, since it is immutable."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NGramLM:
        """The LM itself, since it is immutable."""
        return self

    def __reduce__(self) -> tuple[Callable[..., NGramLM], tuple[Any, ...]]:
        """Pickles the path of a mapped LM file, or else the whole LM.

        Reading a pickled path raises an OSError if the file cannot be opened, and a FormatError if
        it holds another LM.
        """
        if self._file is not None:
            return _load_again, self._file
        with temporary_folder() as folder:
            path = folder / "lm"
            self._core.save(os.fspath(path))
            return _load_bytes, (path.read_bytes(),)

    def __repr__(self) -> str:
        """Order, vocabulary and n-gram counts."""
        counts = " + ".join(f"{count:,}" for count in self.num_ngrams)
        return f"NGramLM(order {self.order}, vocabulary {self.vocab_size:,}, n-grams {counts})"


def core_of(where: str, lm: Any) -> _core.BackoffLm:
    """The core's LM of an argument `lm`.

    Args:
        where: The caller's name, for error messages.
        lm: The argument, not None.

    Raises:
        TypeError: It is not an NGramLM.
    """
    if isinstance(lm, NGramLM):
        return lm._core
    if isinstance(lm, (str, os.PathLike)):
        name = os.fspath(lm)
        raise TypeError(
            f"{where}: lm is the path {name!r}; expected an NGramLM: load the file once with "
            f"NGramLM.load({name!r}), or with lattice_bpd.lm.read_lm if it is ARPA text"
        )
    raise TypeError(
        f"{where}: lm is a {type(lm).__name__}; expected an NGramLM (NGramLM.load reads one)"
    )


def _read_header(path: StrPath) -> bytes:
    """The header, which identifies an LM file: it has a checksum of the sections' checksums."""
    with Path(path).open("rb") as file:
        return file.read(64)


def _load_again(path: str, header: bytes) -> NGramLM:
    """Restores an LM from a pickled path."""
    lm = NGramLM.load(path)
    if lm._file != (path, header):
        raise _core.FormatError(
            f"{path}: the file holds another LM than when it was pickled; put that one back, or "
            "load the file instead of the pickle"
        )
    return lm


def _load_bytes(data: bytes) -> NGramLM:
    """Restores a pickled LM: it maps a temporary file that is deleted at once."""
    with temporary_folder() as folder:
        path = folder / "lm"
        path.write_bytes(data)
        return NGramLM(_core.load_lm(os.fspath(path), None))
