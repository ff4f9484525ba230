"""The stop tokens of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast


def find_stop_tokens(model: Any, tokenizer: Path | None = None) -> frozenset[int]:
    """The tokens that end a text: those of the first source that names any.

    The sources are the model's generation config, which `model.generate` reads; its config; and the
    tokenizer's EOS token. Ids that the model cannot generate, such as -1, end no text.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, or a BlockwiseLM.
        tokenizer: the tokenizer's file, with its tokenizer_config.json in the same folder.

    Returns:
        Token ids, 0..V-1; none if no source names any.
    """
    base = getattr(model, "base", model)
    config = getattr(base, "config", None)
    text_config = config.get_text_config(decoder=True) if config is not None else None
    for source in (getattr(base, "generation_config", None), config, text_config):
        ends = getattr(source, "eos_token_id", None)
        if ends is not None:
            break
    else:
        ends = None if tokenizer is None else _read_eos(tokenizer.parent)
    if ends is None:
        return frozenset()
    limit = getattr(text_config, "vocab_size", None)
    ids = {int(token) for token in (ends if isinstance(ends, (list, tuple)) else [ends])}
    return frozenset(token for token in ids if token >= 0 and (limit is None or token < limit))


def _read_eos(folder: Path) -> Any:
    """The EOS token of a tokenizer's folder; None if it names none or cannot be loaded."""
    for kind in (AutoTokenizer, PreTrainedTokenizerFast):  # the second for a class of its own
        try:
            tokenizer = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception:  # many kinds
            continue
        return tokenizer.eos_token_id
    return None
