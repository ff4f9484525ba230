"""Arguments of `decode` and `generate`: their checks, and the options of the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.nn.modules.dropout import _DropoutNd

from lattice_bpd.arguments import check_int
from lattice_bpd.decode.loop.text_cache import TextCaches
from lattice_bpd.decode.state.text_rules import TextRules, TokenRecords
from lattice_bpd.models.forward import LMOutput
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact

MAX_NEW_TOKENS = 64
"""Most tokens to decode if neither the caller nor a generation config sets it."""


@dataclass
class Options:
    """Options of the decoding loop, independent of the drafter.

    Attributes:
        limits: most tokens to decode, for each sequence.
        limited_by_positions: for each sequence, whether its limit is the target's positions.
        stop_token_ids: decoding ends after the first of these, which is kept.
        layout: verification layout: "auto", "tree", "rows", or "chain", one draft.
        streamer: of `transformers`; receives the decoded tokens one at a time.
        acceptance: acceptance rule.
        rules: logits processors and stopping criteria of each sequence; None: neither.
        prefill: reads the prompts, padded on the left, instead of the target's `read_prompts`;
            returns the same.
        records: of each sequence, filled by the loop; None: nothing is recorded.
        caches: KV caches that the texts continue, and that are filled with them; None: none.
        constraint: constraint on the new tokens; None: no constraint.
        max_draft_nodes: most draft tokens of a call.
        reread_length: tokens of a text at which the target's own `generate` drops its cache and
            reads the whole text again; None: it never does. Set when the prompts are read.
        certificate: whether to certify the output; "report": the verdict "different" does not
            raise.
        cpu_kernels: see `generate`.
    """

    limits: list[int]
    limited_by_positions: list[bool]
    stop_token_ids: frozenset[int] = frozenset()
    layout: str = "auto"
    streamer: Any = None
    acceptance: Acceptance = field(default_factory=Exact)
    rules: list[TextRules] | None = None
    prefill: Callable[[], tuple[LMOutput, Any]] | None = None
    records: list[TokenRecords] | None = None
    caches: TextCaches | None = None
    constraint: Any = None
    max_draft_nodes: int = 256
    reread_length: int | None = None
    certificate: bool | str = False
    cpu_kernels: bool = True


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
