"""Checks of the options that searches share."""

from __future__ import annotations

from typing import Any, Literal, get_args

from lattice_bpd.token_ids import (
    Int32Array,
    Int64Array,
    concatenate,
    is_sequence_of_sequences,
    pack,
    to_token_ids,
)

Objective = Literal["score", "accept_length", "greedy_walk"]


def is_chain(where: str, objective: Objective, num_drafts: int, engine: str) -> bool:
    """Whether the objective returns one draft; checks the options that it excludes.

    Raises:
        ValueError: An unknown objective; several drafts of an objective that returns one, or an
            engine that does not support it.
    """
    if objective not in get_args(Objective):
        names = ", ".join(f'"{name}"' for name in get_args(Objective))
        raise ValueError(f"{where}: objective is {objective!r}; expected one of {names}")
    if objective == "score":
        return False
    if num_drafts != 1:
        raise ValueError(
            f'{where}: num_drafts is {num_drafts} with objective "{objective}", which gives one '
            "draft; expected num_drafts=1; for more tokens to verify use rescore_tree"
        )
    if engine == "openfst":
        raise ValueError(
            f'{where}: engine "openfst" has no search for objective "{objective}"; use "fused" '
            'or "auto"'
        )
    return True


def engine_of(where: str, engine: str) -> str:
    """The engine's name; the core checks whether it exists.

    Raises:
        TypeError: It is no string.
    """
    if not isinstance(engine, str):
        raise TypeError(f"{where}: engine is {engine!r}; expected a name such as 'auto'")
    return engine


def contexts_of(
    where: str, context: Any, batch: int, batched: bool, vocab_size: int | None
) -> tuple[Int32Array, Int64Array]:
    """The concatenated contexts, and their offsets (batch + 1,)."""
    if not batched:
        return pack([context], vocab_size) or concatenate([context_of(where, context, vocab_size)])
    if isinstance(context, list) and len(context) == batch:
        packed = pack(context, vocab_size)
        if packed is not None:
            return packed
    if not hasattr(context, "__len__"):
        raise TypeError(
            f"{where}: context is a {type(context).__name__}; expected {batch} sequences of "
            "token ids (maybe empty), one for each lattice"
        )
    if len(context) != batch or (batch > 0 and not is_sequence_of_sequences(context)):
        raise ValueError(
            f"{where}: context has {len(context)} entries for a batch of {batch} lattices; "
            "expected one sequence of token ids (maybe empty) for each"
        )
    return pack(list(context), vocab_size) or concatenate(
        [
            to_token_ids(row, f"{where}: context of row {number}", vocab_size)
            for number, row in enumerate(context)
        ]
    )


def context_of(where: str, context: Any, vocab_size: int | None) -> Int32Array:
    """The context of a single lattice, (T,) int32.

    Raises:
        TypeError: Elements that are not integers.
        ValueError: Several sequences, or ids out of range.
    """
    try:
        return to_token_ids(context, f"{where}: context", vocab_size)
    except ValueError:
        if not is_sequence_of_sequences(context):
            raise
    raise ValueError(
        f"{where}: context holds several sequences for a single lattice; pass one "
        "sequence of token ids, or head_logits of shape (batch, slots, vocab)"
    )
