"""Argument checks of `decode` and `generate`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.dropout import _DropoutNd

from lattice_bpd.arguments import check_int

MAX_NEW_TOKENS = 64
"""Most tokens to decode if neither the caller nor a generation config sets it."""


def check_max_new_tokens(value: Any) -> int:
    """The value as an int, 1 or more; see `check_int`."""
    return check_int("decode: max_new_tokens", value, 1)


def check_stop_tokens(value: Collection[int] | int, vocab_size: int) -> frozenset[int]:
    """Stop tokens as a set.

    Raises:
        TypeError: not ints.
        ValueError: ids outside the vocabulary.
    """
    token_ids: Any = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(token_ids, int):
        token_ids = [token_ids]
    if isinstance(token_ids, (str, bytes)) or not isinstance(token_ids, Collection):
        raise TypeError(
            f"decode: stop_token_ids is {value!r}; expected a list of token ids; a tokenizer has "
            "convert_tokens_to_ids(token)"
        )
    return frozenset(
        check_int("decode: a stop token id", token, 0, vocab_size - 1) for token in token_ids
    )


def check_weights(model: Any) -> None:
    """Raise ValueError if the target's weights are on the meta device, which holds no values."""
    base = getattr(model, "base", model)
    parameters = getattr(base, "parameters", None)
    if parameters is None or hasattr(base, "hf_device_map"):  # offloaded: loaded on demand
        return
    if any(weight.is_meta for weight in parameters()):
        raise ValueError(
            "generate: the model's weights are on the meta device, which holds no values; expected "
            "a loaded model; load it with from_pretrained"
        )


def check_evaluation_mode(base: Any) -> None:
    """Raise ValueError if the target is in training mode, unless that changes nothing.

    A model built from its config is in training mode; without dropout it computes the same.

    Args:
        base: the target's model; not a module: nothing is checked.
    """
    if not getattr(base, "training", False):
        return
    if any(module.training and _is_random(module) for module in base.modules()):
        raise ValueError(
            f"decode: {type(base).__name__} is in training mode, with dropout or gradient "
            "checkpointing; expected evaluation mode; call model.eval()"
        )


def _is_random(module: Any) -> bool:
    """Whether training mode changes a module: dropout or jitter, or no KV cache."""
    if getattr(module, "gradient_checkpointing", False) is True:
        return True
    if isinstance(module, _DropoutNd):
        return module.p > 0.0
    return any(
        isinstance(value, float) and value > 0.0 and ("drop" in name or "jitter" in name)
        for name, value in vars(module).items()
    )


@contextmanager
def ending_stream(streamer: Any) -> Iterator[None]:
    """End the stream after the block, also after an exception, so that no consumer hangs."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


def is_batch(prompts: Any) -> bool:
    """Whether the argument is a batch, possibly with one prompt, rather than a prompt.

    Args:
        prompts: ints, a string, or several of either; a list or an array.
    """
    if hasattr(prompts, "ndim"):
        return int(prompts.ndim) == 2
    if isinstance(prompts, str):
        return False
    # a tensor of 0 dimensions has the method too
    return (
        len(prompts) > 0 and hasattr(prompts[0], "__len__") and getattr(prompts[0], "ndim", 1) > 0
    )
