"""Training of byte-level BPE tokenizers with the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lattice_bpd.extras import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
"""Special token 0: ends every document in training, and stops decoding."""


def train_byte_bpe(texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """Trains a byte-level BPE, which encodes every text without loss.

    Args:
        texts: documents.
        vocab_size: V, including the 256 bytes and END_OF_TEXT (id 0).

    Returns:
        The tokenizer; its vocabulary is smaller than V if the texts have too few pairs.

    Raises:
        ImportError: `tokenizers` is not installed (extra `train`).
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
