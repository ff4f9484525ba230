"""Test prompts of different lengths, with repetitions."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTHS = (5, 12, 19)  # the two longer ones exceed the windows of tiny models
_TEXTS = (
    "The capital of France is",
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n    return",
    "One fish, two fish, red fish, blue fish. One fish, two fish, red fish,",
)


def random_prompts(vocab_size: int, seed: int = 3) -> list[list[int]]:
    """Random token ids with repetitions, so that lookup finds drafts.

    Args:
        vocab_size: V; ids are from its middle, where special tokens are rare.
        seed: of the random numbers.
    """
    rng = np.random.default_rng(seed)
    low, high = vocab_size // 10, max(vocab_size * 3 // 4, vocab_size // 10 + 2)
    prompts = []
    for length in LENGTHS:
        piece = rng.integers(low, high, max(1, length * 3 // 5)).tolist()
        prompts.append((piece * 2)[:length])
    return prompts


def text_prompts(tokenizer: Any) -> list[list[int]]:
    """Token ids of three texts.

    Args:
        tokenizer: of `transformers`.
    """
    return [list(tokenizer(text)["input_ids"]) for text in _TEXTS]
