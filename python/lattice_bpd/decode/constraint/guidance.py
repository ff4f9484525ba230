"""Constraints from regular expressions and JSON schemas, using llguidance (extra `grammar`)."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from lattice_bpd.decode.constraint.automaton_state import MergedStates
from lattice_bpd.decode.constraint.protocol import Mask
from lattice_bpd.decode.constraint.token_texts import show_tokens, to_guidance_tokenizer
from lattice_bpd.extras import require

_WHERE = "GuidanceConstraint"


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
        guidance: Any = require("llguidance", "grammar")
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
        matcher: Any = require("llguidance", "grammar").LLMatcher
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
        matcher: Any = require("llguidance", "grammar").LLMatcher
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
