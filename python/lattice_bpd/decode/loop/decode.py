"""`decode`: decodes one text or a batch with a drafter object."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from lattice_bpd.decode.constraint.protocol import Constraint, check_constraint
from lattice_bpd.decode.constraint.trees import MOST_EXPECTED
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.loop.arguments import (
    MAX_NEW_TOKENS,
    check_max_new_tokens,
    check_stop_tokens,
    ending_stream,
    is_batch,
)
from lattice_bpd.decode.loop.loop import DecodeResult, Options, run_loop
from lattice_bpd.decode.loop.prompts import Prompts, check_prompts
from lattice_bpd.decode.state.heads import HeadsOrCallable
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact


def decode(
    model: Any,
    prompt: Any,
    drafter: Drafter | Sequence[Drafter],
    *,
    heads: HeadsOrCallable | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop_token_ids: Collection[int] = (),
    layout: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool | str = False,
    constraint: Constraint | None = None,
) -> Any:
    """Decode one text or a batch; the output is the target's greedy output for every drafter.

    Each text of a batch is the same as if it were decoded alone. In each step every sequence keeps
    its own accepted draft tokens, and finished sequences leave the batch. The model's generation
    config is not used; see `generate`.

    Args:
        model: a BlockwiseLM, a causal LM or an encoder-decoder of `transformers`, a target,
            or a DraftingModel.
        prompt: (T,) ints, from 1 to the target's number of positions; or B such prompts of any
            lengths, without padding. For an encoder-decoder the source.
        drafter: proposes drafts; wrong drafts cost time but do not change the output. A list has
            one drafter for each prompt.
        heads: callable (B, D) hidden states -> (B, H, V) logits, if the drafter needs heads and the
            model has none.
        max_new_tokens: most tokens to decode after each prompt, 1 or more.
        stop_token_ids: a text ends after the first of these, which is kept.
        layout: verification layout: "tree" (tree attention: one row with a four-dimensional mask),
            "rows" (batched verification: one row for each draft) or "auto"; see
            `lattice_bpd.verify.verify_trees`.
        streamer: of `transformers`, such as TextStreamer, for a single prompt; receives the
            prompt, then each token, then the end, also after an error.
        static_cache: use a KV cache of fixed size, for a single prompt and a compiled target.
        acceptance: acceptance rule, see `lattice_bpd.verify.Acceptance`; None: Exact. For a lossy
            rule, `lossless` of the result is False and its statistics report the regret.
        certificate: record every token's margin, and check tokens that rounding could have changed
            by plain calls; see `Certificate`. For the exact rule only. The verdict "different"
            raises CertificateError; with "report" it is only in the result.
        constraint: constraint on the new tokens, see `lattice_bpd.decode.Constraint`; the output is
            then greedy among the allowed tokens.

    Returns:
        A DecodeResult for one prompt; for several a list of them, in order. The texts of a batch
        share its seconds equally.

    Raises:
        ValueError: an empty or too long prompt, ids outside the vocabulary, max_new_tokens
            below 1, a cache that cannot roll back, NaN logits, a constraint of another
            vocabulary or without a legal continuation, or a list of drafters of another length than
            the prompts.
        CertificateError: the output differs from plain greedy decoding (a ValueError).
        TypeError: model is not a supported model, or constraint is not a constraint.
        MemoryError: a call did not fit into memory.
    """
    with ending_stream(streamer):
        several = is_batch(prompt)
        prompts = prompt if several else [prompt]
        drafting = model if isinstance(model, DraftingModel) else DraftingModel(model, heads)
        limit = check_max_new_tokens(max_new_tokens)
        checked = check_prompts(drafting, prompts)
        stops = check_stop_tokens(stop_token_ids, drafting.vocab_size)
        options = Options(
            limits=[limit] * len(prompts),
            limited_by_positions=[],
            stop_token_ids=stops or drafting.target.stop_token_ids,
            layout=layout,
            streamer=streamer,
            acceptance=check_rule(acceptance),
            certificate=certificate,
            constraint=constraint,
            static_cache=static_cache,
        )
        results = decode_prompts(drafting, checked, drafter, options)
        return results if several else results[0]


def decode_prompts(
    model: DraftingModel,
    prompts: Prompts,
    drafter: Drafter | Sequence[Drafter],
    options: Options,
) -> list[DecodeResult]:
    """Decode checked prompts, each up to the target's number of positions.

    Args:
        model: target and heads.
        prompts: checked prompts.
        drafter: one for all prompts, or a sequence with one for each.
        options: options; `limits` are the caller's.

    Returns:
        A DecodeResult for each prompt, in order.

    Raises:
        ValueError: options that contradict each other, and see `decode`.
    """
    _check_certificate(options)
    expected_nodes = 0
    if options.constraint is not None:
        check_constraint(options.constraint, model.vocab_size)
        ends = options.stop_token_ids | options.constraint.end_token_ids
        options, expected_nodes = replace(options, stop_token_ids=ends), MOST_EXPECTED
    drafters = _one_for_each(drafter, len(prompts.tokens))
    # The last decoded token is never read by the target, so it needs no position.
    positions = model.max_positions
    limits = [
        limit if positions is None else min(limit, positions - length + 1)
        for limit, length in zip(options.limits, prompts.lengths, strict=True)
    ]
    options = replace(
        options,
        limits=limits,
        limited_by_positions=[new < old for new, old in zip(limits, options.limits, strict=True)],
        max_draft_nodes=count_draft_nodes(drafters[0], model) + expected_nodes,
    )
    return run_loop(model, prompts, drafters, options)


def _check_certificate(options: Options) -> None:
    """Raise ValueError if a certificate is requested for other than plain greedy decoding."""
    certificate = options.certificate
    if certificate not in (False, True, "report"):
        raise ValueError(
            f"decode: certificate is {certificate!r}; expected True, False or 'report', which does "
            "not raise if the output is not greedy"
        )
    if not certificate:
        return
    rule = options.acceptance
    if not isinstance(rule, Exact):
        raise ValueError(
            f"decode: a certificate states whether output is plain greedy decoding, but the rule "
            f"{rule.name!r} is not exact; leave out certificate or acceptance"
        )
    if options.constraint is not None:
        raise ValueError(
            "decode: a certificate states whether output is plain greedy decoding, but a "
            "constraint changes the output; leave out certificate or constraint"
        )
    for rules in options.rules or ():
        if not rules.is_plain:
            names = [type(item).__name__ for item in (*rules.processors, *rules.criteria)]
            raise ValueError(
                "decode: a certificate states whether output is plain greedy decoding, but "
                f"{', '.join(names)} of the generation config may change it; leave certificate "
                "out, or give a generation_config= without them"
            )


def check_rule(acceptance: Any) -> Acceptance:
    """The given acceptance rule, by default Exact.

    Raises:
        TypeError: not a rule, such as its text or its class.
    """
    if acceptance is None:
        return Exact()
    if isinstance(acceptance, type) or not callable(getattr(acceptance, "start", None)):
        raise TypeError(
            f"decode: acceptance is {acceptance!r}; expected a rule such as TopKMatch(4); "
            "parse_acceptance('top_k:4') parses text"
        )
    rule: Acceptance = acceptance
    return rule


def count_draft_nodes(drafter: Drafter, model: DraftingModel) -> int:
    """Most draft tokens of a call according to the drafter; 256 if it does not define it."""
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
    return [drafter] * count
