"""Several prompts in one loop, each at its own speed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lattice_bpd.decode.constraint import Constraint
from lattice_bpd.decode.constraint.protocol import check_constraint
from lattice_bpd.decode.constraint.trees import MOST_EXPECTED
from lattice_bpd.decode.drafters import Drafter
from lattice_bpd.decode.loop import DecodeResult, Options, run_loop
from lattice_bpd.decode.model import AnyHeads, DraftingModel
from lattice_bpd.decode.prompts import check_prompts
from lattice_bpd.verify import Acceptance, Exact


def decode_batch(
    model: Any,
    prompts: Sequence[Any],
    drafter: Drafter | Sequence[Drafter],
    *,
    heads: AnyHeads | None = None,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
    form: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool = False,
    constraint: Constraint | None = None,
) -> list[DecodeResult]:
    """Decode several texts together; each comes out as if it had been decoded alone.

    Prompts are padded on the left. In each step every sequence keeps what the target accepted of
    its own drafts, and finished sequences leave.

    Args:
        model: see `decode`.
        prompts: B sequences, arrays or tensors of (T_i,) ints, without padding.
        drafter: one for all prompts, or a sequence with one for each. A drafter that keeps notes
            in `observe` must not be shared.
        heads: see `decode`, as for all other arguments.
        max_new_tokens: most tokens to decode behind each prompt.
        stop_token_ids: a text ends behind the first of these.
        form: "auto", "tree" or "rows".
        streamer: for a single prompt only.
        static_cache: for a single prompt only.
        acceptance: see `decode`.
        certificate: see `decode`; each text has its own.
        constraint: see `decode`; the same for all prompts.

    Returns:
        A DecodeResult for each prompt, in order. Seconds of the batch are shared out equally.

    Raises:
        ValueError: as `decode`; or a shared drafter that observes, or a number of drafters other
            than that of the prompts.
    """
    drafting = model if isinstance(model, DraftingModel) else DraftingModel(model, heads)
    if max_new_tokens < 1:
        raise ValueError(f"decode: max_new_tokens is {max_new_tokens}; expected 1 or more")
    rule = check_rule(acceptance)
    if certificate and not isinstance(rule, Exact):
        raise ValueError(
            f"decode: a certificate says whether output is greedy's, which the rule "
            f"{rule.name!r} does not aim at; leave out certificate or acceptance"
        )
    if certificate and constraint is not None:
        raise ValueError(
            "decode: a certificate says whether output is plain greedy's, which a constraint "
            "changes; leave out certificate or constraint"
        )
    expected = 0
    if constraint is not None:
        check_constraint(constraint, drafting.vocab_size)
        stop_token_ids, expected = {*stop_token_ids, *constraint.end_token_ids}, MOST_EXPECTED
    checked = check_prompts(drafting, prompts)
    drafters = _one_for_each(drafter, len(prompts))
    # The last decoded token is never read by the target, so it needs no position.
    most = drafting.max_positions
    rooms = [max_new_tokens if most is None else most - n + 1 for n in checked.lengths]
    options = Options(
        limits=[min(max_new_tokens, room) for room in rooms],
        short_of_positions=[room < max_new_tokens for room in rooms],
        stop_token_ids=frozenset(stop_token_ids) or drafting.target.stop_token_ids,
        form=form,
        streamer=streamer,
        acceptance=rule,
        certificate=certificate,
        constraint=constraint,
        static_cache=static_cache,
        most_nodes=count_most_nodes(drafters[0], drafting) + expected,
    )
    try:
        return run_loop(drafting, checked, drafters, options)
    finally:
        if streamer is not None:
            streamer.end()


def check_rule(acceptance: Any) -> Acceptance:
    """The acceptance rule that was given, Exact where none was.

    Raises:
        TypeError: no rule, such as its text or its class.
    """
    if acceptance is None:
        return Exact()
    if isinstance(acceptance, type) or not callable(getattr(acceptance, "start", None)):
        raise TypeError(
            f"decode: acceptance is {acceptance!r}; expected a rule such as TopKMatch(4); "
            "parse_acceptance('top_k:4') makes one of text"
        )
    rule: Acceptance = acceptance
    return rule


def count_most_nodes(drafter: Drafter, model: DraftingModel) -> int:
    """Draft tokens that a call may hold, as far as the drafter tells; else 256."""
    nodes = getattr(drafter, "max_nodes", None)
    if nodes is None and hasattr(drafter, "num_drafts") and model.num_slots is not None:
        nodes = drafter.num_drafts * model.num_slots
    return 256 if nodes is None else int(nodes)


def _one_for_each(drafter: Drafter | Sequence[Drafter], count: int) -> list[Drafter]:
    if isinstance(drafter, Sequence):
        if len(drafter) != count:
            raise ValueError(
                f"decode: {len(drafter)} drafters for {count} prompts; expected one for each, or "
                "a single drafter for all"
            )
        return list(drafter)
    own = getattr(type(drafter), "observe", Drafter.observe)
    if count > 1 and own is not Drafter.observe:
        raise ValueError(
            f"decode: {type(drafter).__name__} observes what is accepted, so {count} prompts "
            "cannot share one; give a list with a drafter for each prompt"
        )
    return [drafter] * count
