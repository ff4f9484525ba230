"""Backoff n-gram LMs over token ids: train, load, save, query, export."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.extras import require
from lattice_bpd.lm.arpa_files import open_arpa, write_gzip
from lattice_bpd.lm.options import native_path, optional_id
from lattice_bpd.token_ids import to_token_ids
from lattice_bpd.vocabulary import StrPath, Vocab, ascii_codec, encode_words, read_words


class NGramLM:
    """A backoff n-gram LM of order 1 to 6 over token ids 0..vocab_size-1.

    Backing off has failure semantics: a backoff weight is paid only where the longer n-gram is
    absent. ``<s>``, ``</s>`` and ``<unk>`` are symbols outside the vocabulary unless bos_id,
    eos_id, unk_id name token ids for them. Log probabilities are natural logs. Immutable; safe to
    query from any number of threads. Pickles hold the path of the file that the LM is mapped from,
    which must be there unchanged when they are read, or all of an LM that is in memory.

    Made by :meth:`train`, :meth:`load` or :meth:`from_arpa`.
    """

    def __init__(self, core: _core.BackoffLm) -> None:
        """Wraps a model of the C++ core; use the class methods instead."""
        self._core = core
        self._file: tuple[str, bytes] | None = None  # absolute path and header, where it is mapped

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
        from lattice_bpd.lm.training import train_ngram

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
        name = native_path(path)
        lm = cls(_core.load_lm(name, verify))
        lm._file = (os.path.abspath(name), _read_header(name))  # noqa: PTH100
        return lm

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
        vocab: Vocab | None = None,
        encoding: str = "utf-8",
        bos_id: int | None = None,
        eos_id: int | None = None,
        unk_id: int | None = None,
    ) -> NGramLM:
        """Reads ARPA text.

        Args:
            path: The file, plain or gzipped.
            vocab_size: V; default: the largest token id + 1, or the number of words in vocab.
                Token ids that the file lacks get ``<unk>``'s probability, or cost 1000.0.
            vocab: The word of each token id: words, a tokenizer, or a file of either; see
                :func:`lattice_bpd.lm.read_words`. Without it the file's words must be decimal
                token ids ("17"). For a foreign file whose words have no ids yet,
                :func:`lattice_bpd.lm.read_arpa_words` numbers them.
            encoding: Of the file's words: UTF-8, or another one that extends ASCII, such as
                Latin-1. A byte order mark is skipped.
            bos_id: The token id that is ``<s>``, if any; likewise eos_id and unk_id.
            eos_id: See bos_id.
            unk_id: See bos_id.

        Raises:
            OSError: The file cannot be opened.
            FormatError: Malformed text; the message has the line.
            ValueError: vocab, encoding or ids that do not fit.
        """
        codec = ascii_codec(encoding)
        words = [] if vocab is None else encode_words(read_words(vocab), codec)
        named = {"vocab_size": vocab_size, "bos_id": bos_id, "eos_id": eos_id, "unk_id": unk_id}
        numbers = [optional_id(name, value) for name, value in named.items()]
        with open_arpa(path, codec) as plain:
            return cls(_core.read_arpa(plain, numbers[0], words, *numbers[1:]))

    def to_arpa(self, path: StrPath, *, vocab: Vocab | None = None) -> None:
        """Writes ARPA text with nine significant digits; reading it back gives the same model.

        Args:
            path: The file; written to a temporary name, then renamed. Gzipped where the name ends
                in ``.gz``.
            vocab: The word of each token id, see :func:`lattice_bpd.lm.read_words`; decimal token
                ids where it is left out.

        Raises:
            OSError: It cannot be written.
            ValueError: vocab of the wrong size, words with white space, doubled words.
        """
        name = native_path(path)
        words = [] if vocab is None else encode_words(read_words(vocab))
        if name.endswith(".gz"):
            write_gzip(Path(name), lambda plain: self._core.to_arpa(os.fspath(plain), words))
        else:
            self._core.to_arpa(name, words)

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

    def __copy__(self) -> NGramLM:
        """The LM itself, which never changes."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NGramLM:
        """The LM itself, which never changes."""
        return self

    def __reduce__(self) -> tuple[Callable[..., NGramLM], tuple[Any, ...]]:
        """Pickles the path of the LM's file, or the LM where it is not mapped from one.

        Reading such a pickle raises an OSError where the file cannot be opened, and a FormatError
        where it holds another LM by then.
        """
        if self._file is not None:
            return _load_again, self._file
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "lm")
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
        TypeError: It is no NGramLM.
    """
    if isinstance(lm, NGramLM):
        return lm._core
    if isinstance(lm, (str, os.PathLike)):
        name = os.fspath(lm)
        raise TypeError(
            f"{where}: lm is the path {name!r}; expected an NGramLM: load the file once with "
            f"NGramLM.load({name!r}), or with lattice_bpd.lm.read_lm where it is ARPA text"
        )
    raise TypeError(
        f"{where}: lm is a {type(lm).__name__}; expected an NGramLM (NGramLM.load reads one)"
    )


def _read_header(path: StrPath) -> bytes:
    """What tells an LM file from all others: its header has a checksum over those of the rest."""
    with Path(path).open("rb") as file:
        return file.read(64)


def _load_again(path: str, header: bytes) -> NGramLM:
    """The LM of a pickle that holds a path."""
    try:
        lm = NGramLM.load(path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{path}: a pickled LM is mapped from this file, which cannot be opened "
            f"({os.strerror(error.errno or 0)}); put it back, or load an LM from another file",
            path,
        ) from None
    if lm._file != (path, header):
        raise _core.FormatError(
            f"{path}: the file holds another LM than when it was pickled; put that one back, or "
            "load the file instead of the pickle"
        )
    return lm


def _load_bytes(data: bytes) -> NGramLM:
    """The LM of a pickle that holds the LM: a mapping of a file that has no name any more."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lm")
        path.write_bytes(data)
        return NGramLM(_core.load_lm(os.fspath(path), None))
