"""What goes into and comes out of ARPA files beside the numbers: words, ids, paths."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lattice_bpd import _core

StrPath = str | os.PathLike[str]


def read_arpa_words(path: StrPath) -> list[str]:
    """The words of an ARPA file's unigrams in file order, without ``<s>``, ``</s>``, ``<unk>``.

    Raises:
        OSError: The file cannot be opened.
        FormatError: Malformed text, or not UTF-8; the message has the line.
    """
    with readable_errors(path):
        return _core.read_arpa_words(native_path(path))


def read_words(vocab: Sequence[str] | StrPath) -> list[str]:
    """The word of each token id, from a sequence or from a file with one word a line.

    Raises:
        OSError: The file cannot be opened.
        TypeError: Words that are no strings.
        ValueError: No word at all.
    """
    if isinstance(vocab, (str, os.PathLike)):
        lines = Path(vocab).read_text(encoding="utf-8").split("\n")  # a word may hold U+2028
        words = lines[:-1] if lines[-1] == "" else lines
    else:
        words = list(vocab)
    for token_id, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"vocab: the word of token id {token_id} is {word!r}; expected a str")
    if not words:
        raise ValueError("vocab has no words; leave it out where words are decimal token ids")
    return words


def native_path(path: StrPath) -> str:
    """The path as the system takes it; a NUL character would end it early."""
    native = os.fspath(path)
    if "\0" in native:
        raise ValueError(f"the path {native!r} has a NUL character in it; expected none")
    return native


def optional_id(name: str, value: int | None) -> int | None:
    """A token id or size that may be missing, as an int that the core can take.

    Raises:
        TypeError: Not an integer.
        ValueError: Negative, or no 32-bit number.
    """
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; expected an integer or None") from None
    if not 0 <= number < 2**31:
        raise ValueError(f"{name} is {number}; expected 0 or above, below 2**31")
    return number


@contextmanager
def readable_errors(path: StrPath) -> Iterator[None]:
    """Turns the failure to decode a message that quotes a file's bytes into that message."""
    try:
        yield
    except UnicodeDecodeError as error:
        text = error.object.decode("utf-8", "backslashreplace")
        raise _core.FormatError(f"{text} (bytes of {os.fspath(path)}, not all text)") from None
