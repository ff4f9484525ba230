"""Backoff n-gram LMs over token ids: train, load, save, query, export."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extras import require
from lattice_bpd.lm.words import StrPath, native_path, optional_id, read_words, readable_errors
from lattice_bpd.token_ids import to_token_ids


class NGramLM:
    """A backoff n-gram LM of order 1 to 6 over token ids 0..vocab_size-1.

    Backing off has failure semantics: a backoff weight is paid only where the longer n-gram is
    absent. ``<s>``, ``</s>`` and ``<unk>`` are symbols outside the vocabulary unless bos_id,
    eos_id, unk_id name token ids for them. Log probabilities are natural logs. Immutable; safe to
    query from any number of threads.

    Made by :meth:`train`, :meth:`load` or :meth:`from_arpa`.
    """

    def __init__(self, core: _core.BackoffLm) -> None:
        """Wraps a model of the C++ core; use the class methods instead."""
        self._core = core

    @classmethod
    def train(
        cls,
        sequences: Iterable[Any],
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
        """Trains a backoff LM, by default Katz with Good-Turing discounting.

        Args:
            sequences: Sentences or documents, each (T_i,) integers; ``<s>`` and ``</s>`` are set
                around each.
            order: n, 1..6.
            vocab_size: V; token ids lie in 0..V-1. Those that the text lacks become unigrams of
                cost 1000.0, so that every path through a lattice has a probability.
            smoothing: "katz", "kneser_ney", "modified_kneser_ney", "witten_bell" or "absolute";
                see docs/ngram.md.
            unseen: What token ids get that the text lacks: "cost" 1000, or "uniform", a share.
            min_counts: For each order the count that an n-gram needs to be kept; default 1 each.
            full_count_of_counts: Take discounts from the counts of the whole corpus (right), or
                from what min_counts leaves of it (as toolkits do that prune counts first).
            katz_k: Katz: counts up to this one are discounted by Good and Turing; those above
                keep 99.9 %, so that every history leaves something to its backoff.
            bos_id: The token id that is ``<s>``, if the vocabulary has one.
            eos_id: Likewise ``</s>``.
            unk_id: Likewise ``<unk>``.
            threads: 0 for all cores.

        Raises:
            TypeError: Token ids that are not integers.
            ValueError: No text, ids outside the vocabulary, options out of range.

        Source: Katz 1987; Kim et al. 2024, appendices C.3 and D.
        """
        from lattice_bpd.train.ngram import train_ngram

        return train_ngram(
            sequences,
            order,
            vocab_size=vocab_size,
            smoothing=smoothing,
            unseen=unseen,
            min_counts=min_counts,
            full_count_of_counts=full_count_of_counts,
            katz_k=katz_k,
            bos_id=bos_id,
            eos_id=eos_id,
            unk_id=unk_id,
            threads=threads,
        )

    @classmethod
    def load(cls, path: StrPath, *, verify: bool | None = None) -> NGramLM:
        """Maps an LM file that :meth:`save` wrote.

        Args:
            path: The file; it is mapped, not read, and shared between processes.
            verify: Compare all checksums; None does so for files up to 256 MiB.

        Raises:
            OSError: The file cannot be opened.
            FormatError: Not an LM file, cut, or altered; the message has the place.
        """
        return cls(_core.load_lm(native_path(path), verify))

    def save(self, path: StrPath) -> None:
        """Writes the LM to a temporary name beside `path`, then renames it.

        Raises:
            OSError: It cannot be written; what was at `path` is untouched.
        """
        self._core.save(native_path(path))

    @classmethod
    def from_arpa(
        cls,
        path: StrPath,
        vocab_size: int | None = None,
        *,
        vocab: Sequence[str] | StrPath | None = None,
        bos_id: int | None = None,
        eos_id: int | None = None,
        unk_id: int | None = None,
    ) -> NGramLM:
        """Reads ARPA text.

        Args:
            path: The file.
            vocab_size: V; default: the largest token id + 1, or the number of words in vocab.
                Token ids that the file lacks get ``<unk>``'s probability, or cost 1000.0.
            vocab: The word of each token id, or a file with one word a line. Without it the
                file's words must be decimal token ids ("17"). For a foreign file whose words have
                no ids yet, :func:`lattice_bpd.lm.read_arpa_words` numbers them.
            bos_id: The token id that is ``<s>``, if any; likewise eos_id and unk_id.
            eos_id: See bos_id.
            unk_id: See bos_id.

        Raises:
            OSError: The file cannot be opened.
            FormatError: Malformed text; the message has the line.
            ValueError: vocab or ids that do not fit.
        """
        words = [] if vocab is None else read_words(vocab)
        named = {"vocab_size": vocab_size, "bos_id": bos_id, "eos_id": eos_id, "unk_id": unk_id}
        numbers = [optional_id(name, value) for name, value in named.items()]
        with readable_errors(path):
            return cls(_core.read_arpa(native_path(path), numbers[0], words, *numbers[1:]))

    def to_arpa(self, path: StrPath, *, vocab: Sequence[str] | StrPath | None = None) -> None:
        """Writes ARPA text with nine significant digits; reading it back gives the same model.

        Args:
            path: The file; written to a temporary name, then renamed.
            vocab: The word of each token id; decimal token ids where it is left out.

        Raises:
            OSError: It cannot be written.
            ValueError: vocab of the wrong size, words with white space, doubled words.
        """
        self._core.to_arpa(native_path(path), [] if vocab is None else read_words(vocab))

    def to_pywrapfst(
        self,
        context: Any = (),
        *,
        bos: bool = True,
        expand_failures: bool = False,
        end_of_sentence: bool = False,
    ) -> Any:
        """The LM as a ``pywrapfst.VectorFst`` over standard arcs that starts behind a context.

        Labels are token id + 1, weights natural costs. A state's failure arc carries
        :attr:`failure_label` and may be followed only where no other arc matches; a toolkit that
        takes it for an ordinary arc gets wrong answers.

        Args:
            context: (T,) token ids before the start state.
            bos: Whether ``<s>`` stands before the context.
            expand_failures: Write out every arc instead, V for each state: for toolkits without
                a phi matcher, and small models only.
            end_of_sentence: States are final at the cost of ``</s>``, else at 0.

        Raises:
            ImportError: pywrapfst is missing (extra ``openfst``).
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
            bos: Whether ``<s>`` stands before the context.

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
            bos: Whether ``<s>`` stands before the text.
            eos: Whether to score ``</s>`` behind it.

        Returns:
            (T,) float64, or (T + 1,) with eos.

        Raises:
            ValueError: Token ids outside the vocabulary.
        """
        return self._core.score(to_token_ids(token_ids, "score", self.vocab_size), bos, eos)

    @property
    def order(self) -> int:
        """n: histories have up to n - 1 tokens."""
        return self._core.order

    @property
    def vocab_size(self) -> int:
        """V, the number of token ids."""
        return self._core.vocab_size

    @property
    def num_ngrams(self) -> list[int]:
        """The number of n-grams of each order, symbols among the unigrams."""
        return self._core.num_ngrams

    @property
    def failure_label(self) -> int:
        """The label of failure arcs in :meth:`to_pywrapfst`."""
        return self._core.failure_label

    def __repr__(self) -> str:
        """Order, vocabulary and n-gram counts."""
        counts = " + ".join(f"{count:,}" for count in self.num_ngrams)
        return f"NGramLM(order {self.order}, vocabulary {self.vocab_size:,}, n-grams {counts})"
