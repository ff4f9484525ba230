"""A byte-level BPE tokenizer from text, by the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lattice_bpd.extras import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
"""Special token 0: it stands behind every document in training, and decoding stops at it."""


def train_byte_bpe(texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """Train a byte-level BPE: every text can be encoded, and decoded without loss.

    Args:
        texts: documents.
        vocab_size: V, the 256 bytes and END_OF_TEXT (id 0) included.

    Returns:
        The tokenizer; its vocabulary is smaller than V where the texts have too few pairs.

    Raises:
        ImportError: `tokenizers` is missing (extra `train`).
        ValueError: vocab_size below 257.
    """
    if vocab_size < 257:
        raise ValueError(
            f"train_byte_bpe: vocab_size is {vocab_size}; expected 257 or more (256 bytes and "
            f"{END_OF_TEXT})"
        )
    tokenizers = require("tokenizers", "train")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer: Tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
