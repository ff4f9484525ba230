"""Converts tokenizers of several libraries to llguidance tokenizers."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from lattice_bpd.extras import require

_WHERE = "GuidanceConstraint"
_SPACE = "\u2581"  # SentencePiece's symbol for a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


def to_guidance_tokenizer(tokenizer: Any, end_token_ids: Collection[int] | None) -> Any:
    """Convert a tokenizer to an `llguidance.LLTokenizer`.

    Args:
        tokenizer: a fast tokenizer of `transformers`, a `tokenizers.Tokenizer`, a
            `sentencepiece.SentencePieceProcessor`, the bytes of every token in a list, or an
            LLTokenizer, which is returned unchanged.
        end_token_ids: tokens that end a text; None: the tokenizer's own.

    Raises:
        ImportError: llguidance is missing.
        TypeError: an unsupported tokenizer.
        ValueError: there is no end-of-text token.
    """
    guidance: Any = require("llguidance", "grammar")
    if isinstance(tokenizer, guidance.LLTokenizer):
        return tokenizer
    if hasattr(tokenizer, "backend_tokenizer"):
        ends = _ends_of(end_token_ids, tokenizer.eos_token_id)
        return require("llguidance.hf", "grammar").from_tokenizer(tokenizer, eos_token=ends)
    if hasattr(tokenizer, "to_str") and hasattr(tokenizer, "get_vocab_size"):
        return guidance.LLTokenizer(tokenizer.to_str(), eos_token=_ends_of(end_token_ids, None))
    if hasattr(tokenizer, "id_to_piece"):
        eos = tokenizer.eos_id()
        ends = _ends_of(end_token_ids, eos if eos >= 0 else None)
        return _of_texts(guidance, *_pieces_of(tokenizer), ends)
    if isinstance(tokenizer, (list, tuple)) and all(isinstance(t, bytes) for t in tokenizer):
        return _of_texts(guidance, list(tokenizer), set(), _ends_of(end_token_ids, None))
    raise TypeError(
        f"{_WHERE}: tokenizer is a {type(tokenizer).__name__}; expected a fast tokenizer of "
        "transformers, a tokenizers.Tokenizer, a SentencePieceProcessor, an LLTokenizer, or a list "
        "with the bytes of every token"
    )


def _ends_of(given: Collection[int] | None, own: int | None) -> list[int]:
    ends = sorted(given) if given is not None else [] if own is None else [own]
    if not ends:
        raise ValueError(
            f"{_WHERE}: the tokenizer names no token that ends a text; expected one; give "
            "end_token_ids=[..]"
        )
    return ends


def _pieces_of(processor: Any) -> tuple[list[bytes], set[int]]:
    """The bytes of each SentencePiece piece, and the ids of control and unknown pieces."""
    texts, special = [], set()
    for token in range(processor.get_piece_size()):
        piece: str = processor.id_to_piece(token)
        byte = _BYTE_PIECE.fullmatch(piece) if processor.is_byte(token) else None
        texts.append(bytes.fromhex(byte[1]) if byte else piece.replace(_SPACE, " ").encode())
        if processor.is_control(token) or processor.is_unknown(token):
            special.add(token)
    return texts, special


def _of_texts(guidance: Any, texts: list[bytes], special: set[int], ends: list[int]) -> Any:
    invalid = [token for token in ends if not 0 <= token < len(texts)]
    if invalid:
        raise ValueError(
            f"{_WHERE}: end_token_ids holds {invalid[0]}; expected 0..{len(texts) - 1}"
        )
    wrapper = guidance.TokenizerWrapper(_TokenTexts(texts, special | set(ends), ends[0]))
    return guidance.LLTokenizer(wrapper, eos_token=ends)


class _TokenTexts:
    """The tokenizer interface of llguidance for a list of token bytes."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: set[int], eos_token_id: int) -> None:
        self.tokens, self.eos_token_id = tokens, eos_token_id
        self.special_token_ids = sorted(special)
        plain = [(text, token) for token, text in enumerate(tokens) if token not in special]
        self._ids = {text: token for text, token in reversed(plain) if text}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        """Greedy longest-match tokenization, up to the first byte that starts no token."""
        data = text.encode() if isinstance(text, str) else text
        token_ids, offset = [], 0
        while offset < len(data):
            sizes = range(min(self._longest, len(data) - offset), 0, -1)
            size = next((n for n in sizes if data[offset : offset + n] in self._ids), 0)
            if size == 0:
                break
            token_ids.append(self._ids[data[offset : offset + size]])
            offset += size
        return token_ids


def show_tokens(tokenizer: Any, token_ids: Sequence[int]) -> str:
    """The last tokens of a prefix, as text and as ids, for error messages."""
    text = str(tokenizer.decode_str(list(token_ids[-40:])))
    return f"{text!r} (token ids .. {list(token_ids[-8:])})"
