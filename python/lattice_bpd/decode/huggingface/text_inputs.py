"""Prompts as users of transformers hold them: text, token ids, or what a tokenizer returned."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass
class TextInput:
    """One prompt.

    Attributes:
        token_ids: (T,) int64, without padding on the right.
        mask: (T,) int64, 0 where a token is hidden; None where none was given.
    """

    token_ids: Tensor
    mask: Tensor | None = None

    def visible(self, mask: Tensor | None = None) -> Tensor:
        """The tokens that a mask, or the prompt's own, does not hide."""
        mask = self.mask if mask is None else mask
        return self.token_ids if mask is None else self.token_ids[mask != 0]


def read_single_text(input_ids: Any, attention_mask: Any, tokenizer: Any) -> list[TextInput]:
    """The one prompt of `generate`.

    Args:
        input_ids: (T,) or (1, T) ints, or a string.
        attention_mask: of the same shape, or None.
        tokenizer: turns a string into token ids; None where input_ids are token ids.

    Raises:
        ValueError: several prompts, shapes that do not fit, or a masked array.
        TypeError: neither text nor token ids, or text without a tokenizer.
    """
    _check_kind(input_ids, "generate", "input_ids")
    batch = input_ids if _has_two_axes(input_ids) else [input_ids]
    if len(batch) != 1:
        raise ValueError(
            f"generate: input_ids holds {len(batch)} sequences; expected one text, of shape "
            "(tokens,) or (1, tokens); use generate_batch for several"
        )
    if attention_mask is not None and not _has_two_axes(attention_mask):
        attention_mask = [attention_mask]
    return read_texts(batch, attention_mask, tokenizer, "generate")


def read_texts(
    prompts: Any, attention_mask: Any, tokenizer: Any, where: str = "generate_batch"
) -> list[TextInput]:
    """The prompts of `generate_batch`.

    Args:
        prompts: B sequences of ints, of any lengths, or (B, T) ints, or B strings.
        attention_mask: 0 where a token is hidden, of the same shape; None: nothing is hidden.
        tokenizer: see `read_single_text`.
        where: for messages.

    Raises:
        ValueError: see there.
        TypeError: see there.
    """
    _check_kind(prompts, where, "input_ids")
    if isinstance(prompts, str) or (isinstance(prompts, Sequence) is hasattr(prompts, "ndim")):
        raise TypeError(
            f"{where}: prompts is a {type(prompts).__name__}; expected a list of prompts, each a "
            "string or token ids, or an array of shape (prompts, tokens)"
        )
    texts = [TextInput(_read_token_ids(prompt, tokenizer, where)) for prompt in prompts]
    if attention_mask is None:
        return texts
    if len(attention_mask) != len(texts):
        raise ValueError(
            f"{where}: attention_mask has {len(attention_mask)} rows for {len(texts)} prompts; "
            "expected one for each"
        )
    return [_mask(text, row, where) for text, row in zip(texts, attention_mask, strict=True)]


def check_token_types(token_type_ids: Any, base: Any) -> None:
    """Raise ValueError for token types that change what the model reads.

    Args:
        token_type_ids: (T,) or (B, T) ints, or None.
        base: the model. One without a table of token types of its own (GPT-2) takes their word
            embeddings, so that zeros are not nothing there.
    """
    if token_type_ids is None:
        return
    rows = token_type_ids if _has_two_axes(token_type_ids) else [token_type_ids]
    reads = "token_type_ids" in inspect.signature(base.forward).parameters
    has_table = hasattr(base.config, "type_vocab_size")
    if any(bool(np.any(np.asarray(row))) for row in rows) or (reads and not has_table):
        raise ValueError(
            "generate: token_type_ids cannot be honored; expected zeros, for a model with "
            "token-type embeddings; leave token_type_ids out (return_token_type_ids=False)"
        )


def _mask(text: TextInput, row: Any, where: str) -> TextInput:
    mask = torch.as_tensor(row).to(torch.int64).cpu().reshape(-1)
    if len(mask) != len(text.token_ids) or not bool(mask.any()):
        raise ValueError(
            f"{where}: attention_mask has {int((mask != 0).sum())} visible tokens of {len(mask)}, "
            f"the prompt {len(text.token_ids)} tokens; expected as many entries as tokens, and one "
            "visible token or more"
        )
    end = int(torch.nonzero(mask)[-1]) + 1  # padding on the right is cut off
    return TextInput(text.token_ids[:end], mask[:end])


def _read_token_ids(prompt: Any, tokenizer: Any, where: str) -> Tensor:
    _check_kind(prompt, where, "a prompt")
    if isinstance(prompt, str):
        prompt = _tokenize(prompt, tokenizer, where)
    try:
        ids = torch.as_tensor(np.asarray(prompt) if isinstance(prompt, Sequence) else prompt)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{where}: a prompt is {_shorten(prompt)}; expected token ids (ints) or a string"
        ) from error
    if ids.is_meta:
        raise ValueError(
            f"{where}: input_ids is on the meta device, which holds no values; expected token ids "
            "in memory"
        )
    return ids.cpu()


def _tokenize(text: str, tokenizer: Any, where: str) -> Any:
    if tokenizer is None:
        raise TypeError(
            f"{where}: the prompt is text ({_shorten(text)}); give tokenizer=, or token ids"
        )
    if callable(tokenizer):  # of transformers
        return tokenizer(text)["input_ids"]
    if hasattr(tokenizer, "encode") and not isinstance(tokenizer, str):  # of tokenizers
        found = tokenizer.encode(text)
        return getattr(found, "ids", found)
    raise TypeError(
        f"{where}: tokenizer is a {type(tokenizer).__name__}; expected a tokenizer of transformers "
        "or of tokenizers; load one with AutoTokenizer.from_pretrained"
    )


def decode_text(tokenizer: Any, token_ids: Sequence[int]) -> str | None:
    """The text of token ids, special tokens left out; None without a tokenizer."""
    if tokenizer is None:
        return None
    return str(tokenizer.decode(token_ids, skip_special_tokens=True))


def _check_kind(value: Any, where: str, name: str) -> None:
    """Refuse what is none of text, token ids and arrays of them."""
    if isinstance(value, Mapping):
        raise TypeError(
            f"{where}: {name} is a {type(value).__name__} with {', '.join(map(str, value))}; "
            f"expected its contents as arguments: {where}(model, **inputs)"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{where}: {name} is a masked array, whose hidden values would be read as tokens; give "
            "a plain array, and attention_mask= where tokens are hidden"
        )
    if value is None or not hasattr(value, "__len__"):
        raise TypeError(
            f"{where}: {name} is {_shorten(value)}; expected token ids of shape (tokens,), or "
            "text with tokenizer="
        )


def _has_two_axes(values: Any) -> bool:
    if hasattr(values, "ndim"):
        return int(values.ndim) == 2
    if isinstance(values, str):
        return False
    return len(values) > 0 and hasattr(values[0], "__len__")


def _shorten(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
