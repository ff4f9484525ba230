"""Checks of the arguments of `generate`: what was found, what was expected, what to do."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from lattice_bpd.draft.search import MAX_NODES
from lattice_bpd.lm.ngram import NGramLM


class _Default(int):
    """An int that says that the caller gave none."""


MAX_NEW_TOKENS = _Default(64)
"""Most tokens to decode where neither the caller nor a generation config says."""


def is_default(value: Any) -> bool:
    """Whether max_new_tokens is the default, not given by the caller."""
    return isinstance(value, _Default)


def check_int(where: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    """The value, if it is an int of least or more, and of most or less.

    Raises:
        TypeError: no int.
        ValueError: out of range.
    """
    expected = f"an int, {least} or more" if most is None else f"an int, {least}..{most}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{where}: {name} is {value!r}; expected {expected}")
    if value < least or (most is not None and value > most):
        raise ValueError(
            f"{where}: {name} is {value}; expected {expected.removeprefix('an int, ')}"
        )
    return int(value)


def check_max_new_tokens(value: Any) -> int:
    """See `check_int`."""
    return check_int("decode", "max_new_tokens", value, 1)


def check_stop_tokens(value: Collection[int] | int, vocab_size: int) -> frozenset[int]:
    """Stop tokens as a set.

    Raises:
        TypeError: no ints.
        ValueError: ids outside the vocabulary.
    """
    given = [value] if isinstance(value, (int, np.integer)) else value
    if hasattr(given, "tolist"):
        given = given.tolist()
    if isinstance(given, (str, bytes)) or not isinstance(given, Collection):
        raise TypeError(
            f"decode: stop_token_ids is {value!r}; expected a list of token ids; a tokenizer gives "
            "that of a token by convert_tokens_to_ids(token)"
        )
    return frozenset(
        check_int("decode", "a stop token id", token, 0, vocab_size - 1) for token in given
    )


def check_lm(lm: Any) -> None:
    """Raise TypeError unless lm is an n-gram LM or None."""
    if lm is not None and not isinstance(lm, NGramLM):
        hint = f"NGramLM.load({lm!r})" if isinstance(lm, str) else "NGramLM.load(path)"
        raise TypeError(
            f"generate: lm is a {type(lm).__name__}; expected an NGramLM; load one with {hint}"
        )


def check_sizes(vocab_size: Any, top_k: Any, num_drafts: Any, max_nodes: Any) -> None:
    """Raise TypeError or ValueError for sizes of drafts that are no ints or out of range."""
    check_int("generate", "vocab_size", vocab_size, 1)
    check_int("generate", "top_k", top_k, 1, vocab_size)
    check_int("generate", "num_drafts", num_drafts, 1, MAX_NODES)
    check_int("generate", "max_nodes", max_nodes, 1, MAX_NODES)


def check_numbers(alpha: Any, temperature: Any) -> None:
    """Raise TypeError or ValueError for an alpha or a temperature that shapes no draft."""
    for name, value in (("alpha", alpha), ("temperature", temperature)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise TypeError(f"generate: {name} is {value!r}; expected a number")
    if not math.isfinite(alpha):
        raise ValueError(f"generate: alpha is {alpha}; expected a finite number")
    if not 0.0 < temperature < math.inf:
        raise ValueError(f"generate: temperature is {temperature}; expected a number above 0")


def check_weights(model: Any) -> None:
    """Raise ValueError where the target's weights are on the meta device, and so have no values."""
    base = getattr(model, "base", model)
    parameters = getattr(base, "parameters", None)
    if parameters is None or hasattr(base, "hf_device_map"):  # offloaded weights come when needed
        return
    if any(weight.is_meta for weight in parameters()):
        raise ValueError(
            "generate: the model's weights are on the meta device, which holds no values; expected "
            "a loaded model; load it with from_pretrained"
        )


@contextmanager
def ending(streamer: Any) -> Iterator[None]:
    """End the stream when the block ends, by an exception too: no consumer waits forever."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()
