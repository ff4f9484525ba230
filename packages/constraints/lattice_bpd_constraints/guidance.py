"""Constraints from regular expressions and JSON schemas, by llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from lattice_bpd.extensions import require
from lattice_bpd_constraints.automaton_state import MergedStates
from lattice_bpd_constraints.protocol import Mask

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
    guidance: Any = require("llguidance", "lattice-bpd-constraints")
    if isinstance(tokenizer, guidance.LLTokenizer):
        return tokenizer
    if hasattr(tokenizer, "backend_tokenizer"):
        ends = _ends_of(end_token_ids, tokenizer.eos_token_id)
        return require("llguidance.hf", "lattice-bpd-constraints").from_tokenizer(
            tokenizer, eos_token=ends
        )
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


class GuidanceConstraint:
    """The texts of a grammar; see `from_regex` and `from_json_schema`.

    Every token that the grammar can continue after is allowed. Forced text, such as a key of a JSON
    schema, is drafted in the tokenizer's canonical tokenization.

    Args:
        grammar: a grammar of `llguidance.LLMatcher.grammar_from_regex` and similar methods.
        tokenizer: the target's; see `from_regex`.
        vocab_size: see `from_regex`.
        end_token_ids: see `from_regex`.

    Raises:
        ImportError: llguidance is missing.
        TypeError: an unsupported tokenizer.
        ValueError: a grammar that llguidance rejects, a tokenizer with more than vocab_size tokens,
            or without an end-of-text token.
    """

    def __init__(
        self,
        grammar: str,
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        end_token_ids: Collection[int] | None = None,
    ) -> None:
        guidance: Any = require("llguidance", "lattice-bpd-constraints")
        self._tokenizer = to_guidance_tokenizer(tokenizer, end_token_ids)
        num_tokens = int(self._tokenizer.vocab_size)
        if vocab_size is not None and vocab_size < num_tokens:
            raise ValueError(
                f"{_WHERE}: the tokenizer has {num_tokens} tokens, vocab_size is {vocab_size}; "
                "expected as many or more; use the tokenizer that the target was trained with"
            )
        self.vocab_size = num_tokens if vocab_size is None else vocab_size
        self.learned: dict[frozenset[int], MergedStates] = {}
        self.end_token_ids = frozenset(map(int, self._tokenizer.eos_tokens))
        matcher = guidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        self._start = GuidanceState(self, matcher)
        self._start.allowed_tokens()
        if matcher.is_error():
            raise ValueError(
                f"{_WHERE}: no such grammar: {_first_lines(matcher.get_error())}; expected "
                "a grammar that llguidance accepts and that some text obeys"
            )

    @classmethod
    def from_regex(
        cls,
        regex: str,
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        end_token_ids: Collection[int] | None = None,
    ) -> GuidanceConstraint:
        """The texts that match a regular expression completely.

        Args:
            regex: in the syntax of Rust's regex crate.
            tokenizer: the target's: a fast tokenizer of `transformers`, a `tokenizers.Tokenizer`, a
                SentencePieceProcessor, an LLTokenizer, or a list with the bytes of every token.
            vocab_size: V of the target, if its embedding has more rows than its tokenizer tokens.
            end_token_ids: tokens that end a text; None: the tokenizer's own.

        Raises:
            ImportError: as the class; so are TypeError and ValueError.
        """
        matcher: Any = require("llguidance", "lattice-bpd-constraints").LLMatcher
        grammar = matcher.grammar_from_regex(regex)
        return cls(grammar, tokenizer, vocab_size=vocab_size, end_token_ids=end_token_ids)

    @classmethod
    def from_json_schema(
        cls,
        schema: str | dict[str, Any],
        tokenizer: Any,
        *,
        vocab_size: int | None = None,
        end_token_ids: Collection[int] | None = None,
        whitespace: bool = True,
    ) -> GuidanceConstraint:
        """The JSON texts that a schema describes.

        Args:
            schema: JSON Schema, as text or as a dict.
            tokenizer: see `from_regex`.
            vocab_size: see `from_regex`.
            end_token_ids: see `from_regex`.
            whitespace: whether white space is allowed between JSON elements. Without it, a text
                cannot grow by white space forever.

        Raises:
            ImportError: as the class; so are TypeError and ValueError.
        """
        matcher: Any = require("llguidance", "lattice-bpd-constraints").LLMatcher
        try:
            parsed = json.loads(schema) if isinstance(schema, str) else schema
            grammar = matcher.grammar_from_json_schema(
                parsed, overrides={"whitespace_flexible": whitespace}
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"{_WHERE}: no JSON schema: {error}; expected an object") from None
        return cls(grammar, tokenizer, vocab_size=vocab_size, end_token_ids=end_token_ids)

    def start(self) -> GuidanceState:
        """See Constraint."""
        return self._start

    def show(self, token_ids: Sequence[int]) -> str:
        """See Constraint."""
        return show_tokens(self._tokenizer, token_ids)


class GuidanceState:
    """An immutable matcher; `advance` copies it.

    Parser states cannot be compared, so the key is the set of allowed tokens.
    """

    def __init__(self, constraint: GuidanceConstraint, matcher: Any) -> None:
        self._constraint, self._matcher = constraint, matcher
        self._accepting = bool(matcher.is_accepting())
        self._mask: Mask | None = None
        self._bits: bytes | None = None

    @property
    def key(self) -> Hashable:
        """The allowed tokens as a bit mask, and whether the text may end."""
        return self._allowed_bits(), self._accepting

    @property
    def accepting(self) -> bool:
        """See ConstraintState."""
        return self._accepting

    def _allowed_bits(self) -> bytes:
        if self._bits is None:
            self._bits = self._matcher.compute_bitmask()
        return self._bits

    def allowed_tokens(self) -> Mask:
        """See ConstraintState."""
        if self._mask is None:
            constraint = self._constraint
            self._mask = np.zeros(constraint.vocab_size, np.bool_)
            bits = np.frombuffer(self._allowed_bits(), np.uint8)
            num_tokens = constraint._tokenizer.vocab_size
            unpacked = np.unpackbits(bits, count=num_tokens, bitorder="little")
            self._mask[:num_tokens] = unpacked
            self._mask[list(constraint.end_token_ids)] = False
            self._mask.flags.writeable = False
        return self._mask

    def advance(self, token_id: int) -> GuidanceState | None:
        """See ConstraintState."""
        constraint = self._constraint
        in_vocab = 0 <= token_id < constraint._tokenizer.vocab_size
        if not in_vocab or token_id in constraint.end_token_ids:
            return None
        if not self._allowed_bits()[token_id >> 3] >> (token_id & 7) & 1:
            return None
        matcher = self._matcher.deep_copy()
        if matcher.try_consume_tokens([token_id]) != 1:
            return None
        return GuidanceState(constraint, matcher)

    def expected_tokens(self) -> list[int]:
        """The canonical tokens of forced text; else the token, if only one is allowed."""
        expected: list[int] = self._matcher.compute_ff_tokens()
        if expected:
            return expected
        bits = int.from_bytes(self._allowed_bits(), "little")
        return [bits.bit_length() - 1] if bits.bit_count() == 1 else []


def _first_lines(error: str) -> str:
    return " ".join(error.split("<state>")[0].split())[:300]
