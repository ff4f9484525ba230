"""Whether a draft model and its target have the same tokenizer, where both are known."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from lattice_bpd.vocabulary import read_ids

_FILE = "tokenizer.json"


def check_same_tokens(where: str, draft_model: Any, target: Any) -> None:
    """Raise ValueError if the tokenizers differ, by the files that the models were loaded with.

    A few differing tokens, such as renamed special tokens, are allowed.

    Args:
        where: name of the caller, for the message.
        draft_model: model of `transformers`.
        target: likewise.
    """
    files = [_tokenizer_file(model) for model in (draft_model, target)]
    if files[0] is None or files[1] is None or files[0] == files[1]:
        return
    differing, shared, example = _compare(files[0], files[1])
    if differing * 100 > shared:
        raise ValueError(
            f"{where}: the tokenizers of the draft model and the target differ in {differing:,} of "
            f"{shared:,} token ids, such as {example}; expected the same tokenizer "
            f"({files[0]}, {files[1]})"
        )


def _tokenizer_file(model: Any) -> str | None:
    """The tokenizer.json of the folder or hub name that a model was loaded from, if it is here."""
    name = str(getattr(model.config, "_name_or_path", None) or "")
    file = Path(name) / _FILE
    if name and file.is_file():
        return os.fspath(file.resolve())
    try:
        cached = try_to_load_from_cache(name, _FILE) if name else None
    except ValueError:  # the name of no repository
        return None
    return cached if isinstance(cached, str) else None


@functools.lru_cache(maxsize=32)
def _compare(first: str, second: str) -> tuple[int, int, str]:
    """Token ids with different words, those that both have, and an example."""
    try:
        words, others = (
            {token_id: word for word, token_id in read_ids(file).items()}
            for file in (first, second)
        )
    except (OSError, ValueError):  # unknown, then
        return 0, 0, ""
    shared = words.keys() & others.keys()
    differing = [token_id for token_id in shared if words[token_id] != others[token_id]]
    example = "" if not differing else (
        f"{min(differing)} ({words[min(differing)]!r} and {others[min(differing)]!r})"
    )  # fmt: skip
    return len(differing), len(shared), example
