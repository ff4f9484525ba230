"""Several prompts in one loop, each at its own speed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from lattice_bpd.decode.constraint.protocol import Constraint, check_constraint
from lattice_bpd.decode.constraint.trees import MOST_EXPECTED
from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.huggingface.arguments import (
    check_max_new_tokens,
    check_stop_tokens,
    ending,
)
from lattice_bpd.decode.loop.loop import DecodeResult, Options, run_loop
from lattice_bpd.decode.loop.prompts import Prompts, check_prompts
from lattice_bpd.decode.state.model import AnyHeads, DraftingModel
from lattice_bpd.verify.acceptance.rule import Acceptance, Exact


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
    certificate: bool | str = False,
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
    with ending(streamer):
        drafting = model if isinstance(model, DraftingModel) else DraftingModel(model, heads)
        limit = check_max_new_tokens(max_new_tokens)
        checked = check_prompts(drafting, prompts)
        stops = check_stop_tokens(stop_token_ids, drafting.vocab_size)
        options = Options(
            limits=[limit] * len(prompts),
            short_of_positions=[],
            stop_token_ids=stops or drafting.target.stop_token_ids,
            form=form,
            streamer=streamer,
            acceptance=check_rule(acceptance),
            certificate=certificate,
            constraint=constraint,
            static_cache=static_cache,
        )
        return decode_prompts(drafting, checked, drafter, options)


def decode_prompts(
    model: DraftingModel,
    prompts: Prompts,
    drafter: Drafter | Sequence[Drafter],
    options: Options,
) -> list[DecodeResult]:
    """Decode checked prompts, each as far as the target has positions.

    Args:
        model: target and heads.
        prompts: checked prompts.
        drafter: one for all prompts, or a sequence with one for each.
        options: how to decode; limits are those that the caller asked for.

    Returns:
        A DecodeResult for each prompt, in order.

    Raises:
        ValueError: options that contradict each other, and see `decode_batch`.
    """
    _check_certificate(options)
    expected = 0
    if options.constraint is not None:
        check_constraint(options.constraint, model.vocab_size)
        ends = options.stop_token_ids | options.constraint.end_token_ids
        options, expected = replace(options, stop_token_ids=ends), MOST_EXPECTED
    drafters = _one_for_each(drafter, len(prompts.tokens))
    # The last decoded token is never read by the target, so it needs no position.
    most = model.max_positions
    pairs = list(zip(options.limits, prompts.lengths, strict=True))
    remaining = [limit if most is None else most - length + 1 for limit, length in pairs]
    limits = [min(limit, rest) for limit, rest in zip(options.limits, remaining, strict=True)]
    options = replace(
        options,
        limits=limits,
        short_of_positions=[new < old for new, old in zip(limits, options.limits, strict=True)],
        most_nodes=count_most_nodes(drafters[0], model) + expected,
    )
    return run_loop(model, prompts, drafters, options)


def _check_certificate(options: Options) -> None:
    """Refuse certificates of texts that are not plain greedy's."""
    certificate = options.certificate
    if certificate not in (False, True, "report"):
        raise ValueError(
            f"decode: certificate is {certificate!r}; expected True, False or 'report', which does "
            "not raise where the output is not greedy's"
        )
    if not certificate:
        return
    rule = options.acceptance
    if not isinstance(rule, Exact):
        raise ValueError(
            f"decode: a certificate says whether output is greedy's, which the rule "
            f"{rule.name!r} does not aim at; leave out certificate or acceptance"
        )
    if options.constraint is not None:
        raise ValueError(
            "decode: a certificate says whether output is plain greedy's, which a constraint "
            "changes; leave out certificate or constraint"
        )
    for rules in options.rules or ():
        if not rules.is_plain:
            names = [type(item).__name__ for item in (*rules.processors, *rules.criteria)]
            raise ValueError(
                "decode: a certificate says whether output is plain greedy's, which "
                f"{', '.join(names)} of the generation config may change; leave certificate out, "
                "or give a generation_config= without them"
            )


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
