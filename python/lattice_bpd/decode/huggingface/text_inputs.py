"""Converts the prompts of `generate`, text or token ids, to tensors."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lattice_bpd.token_ids import integer_array, is_sequence_of_sequences


@dataclass
class TextInput:
    """One prompt.

    Attributes:
        token_ids: (T,) int64, without padding on the right.
        mask: (T,) int64, 0 for masked tokens; None if not given.
    """

    token_ids: Tensor
    mask: Tensor | None = None

    def visible(self) -> Tensor:
        """The tokens that are not masked."""
        return self.token_ids if self.mask is None else self.token_ids[self.mask != 0]


def read_prompts(
    input_ids: Any, attention_mask: Any, tokenizer: Any
) -> tuple[list[TextInput], bool]:
    """The prompts of `generate`, and whether they are a batch, possibly with one prompt.

    Args:
        input_ids: (T,) ints or a string; or B of them, of any lengths, or (B, T) ints.
        attention_mask: of the same shape, 0 for masked tokens; None: nothing is masked.
        tokenizer: encodes strings; None if input_ids are token ids.

    Raises:
        ValueError: shapes that do not match.
        TypeError: neither text nor token ids, a masked array, or text without a tokenizer.
    """
    _check_kind(input_ids, "input_ids")
    _refuse_messages(input_ids)
    several = is_sequence_of_sequences(input_ids)
    batch = input_ids if several else [input_ids]
    if several and isinstance(batch, Sequence) is hasattr(batch, "ndim"):
        raise TypeError(
            f"generate: input_ids is a {type(batch).__name__}; expected a list of prompts, each a "
            "string or token ids, or an array of shape (prompts, tokens)"
        )
    texts = [TextInput(_read_token_ids(prompt, tokenizer)) for prompt in batch]
    if attention_mask is None:
        return texts, several
    if not is_sequence_of_sequences(attention_mask):
        attention_mask = [attention_mask]
    if len(attention_mask) != len(texts):
        raise ValueError(
            f"generate: attention_mask has {len(attention_mask)} rows for {len(texts)} prompts; "
            "expected one for each"
        )
    pairs = zip(texts, attention_mask, strict=True)
    return [_mask(text, row) for text, row in pairs], several


def check_token_types(token_type_ids: Any, base: Any) -> None:
    """Raise ValueError for token types that change the model's output.

    Args:
        token_type_ids: (T,) or (B, T) ints, or None.
        base: the model. One without token-type embeddings (GPT-2) adds the word embeddings of the
            ids, so that zeros also change its output.
    """
    if token_type_ids is None:
        return
    rows = token_type_ids if is_sequence_of_sequences(token_type_ids) else [token_type_ids]
    takes_types = "token_type_ids" in inspect.signature(base.forward).parameters
    has_table = hasattr(base.config, "type_vocab_size")
    if any(bool(np.any(np.asarray(row))) for row in rows) or (takes_types and not has_table):
        raise ValueError(
            "generate: token_type_ids cannot be honored; expected zeros, for a model with "
            "token-type embeddings; leave token_type_ids out (return_token_type_ids=False)"
        )


def _mask(text: TextInput, row: Any) -> TextInput:
    mask = torch.as_tensor(row, device="cpu").to(torch.int64).reshape(-1)
    if len(mask) != len(text.token_ids) or not bool(mask.any()):
        raise ValueError(
            f"generate: attention_mask has {int((mask != 0).sum())} visible tokens of {len(mask)}, "
            f"the prompt {len(text.token_ids)} tokens; expected as many entries as tokens, and one "
            "visible token or more"
        )
    end = int(torch.nonzero(mask)[-1]) + 1  # remove padding on the right
    return TextInput(text.token_ids[:end], mask[:end])


def _read_token_ids(prompt: Any, tokenizer: Any) -> Tensor:
    _check_kind(prompt, "a prompt")
    if isinstance(prompt, str):
        prompt = _tokenize(prompt, tokenizer)
    return torch.from_numpy(integer_array(prompt, "generate: a prompt").astype(np.int64))


def _tokenize(text: str, tokenizer: Any) -> Any:
    if tokenizer is None:
        raise TypeError(
            f"generate: the prompt is text ({reprlib.repr(text)}); give tokenizer=, or token ids"
        )
    if callable(tokenizer):  # of transformers
        return tokenizer(text)["input_ids"]
    if hasattr(tokenizer, "encode") and not isinstance(tokenizer, str):  # of tokenizers
        encoding = tokenizer.encode(text)
        return getattr(encoding, "ids", encoding)
    raise TypeError(
        f"generate: tokenizer is a {type(tokenizer).__name__}; expected a tokenizer of "
        "transformers or tokenizers; load one with AutoTokenizer.from_pretrained"
    )


def _refuse_messages(prompts: Any) -> None:
    """Raise TypeError for the messages of a chat, or a list of chats."""
    first = prompts
    for _ in range(2):
        if isinstance(first, (list, tuple)) and len(first) > 0:
            first = first[0]
    if isinstance(first, Mapping) and "role" in first:
        raise TypeError(
            "generate: input_ids holds chat messages; expected token ids; give generate(model, "
            "**tokenizer.apply_chat_template(messages, add_generation_prompt=True, "
            'return_dict=True, return_tensors="pt"))'
        )


def _check_kind(value: Any, name: str) -> None:
    """Raise unless the value is text, token ids or an array of them."""
    if isinstance(value, Mapping):
        raise TypeError(
            f"generate: {name} is a {type(value).__name__} with {', '.join(map(str, value))}; "
            f"expected its contents as arguments: generate(model, **inputs)"
        )
    if value is None or not hasattr(value, "__len__"):
        raise TypeError(
            f"generate: {name} is {reprlib.repr(value)}; expected token ids of shape (tokens,), or "
            "text with tokenizer="
        )
