"""`decode`: decodes one text or a batch with a drafter object; what is around the loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lattice_bpd.arguments import check_int
from lattice_bpd.decode.certificate.certificate import (
    Certificate,
    CertificateError,
    MarginSelector,
    certify,
)
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.loop.arguments import (
    MAX_NEW_TOKENS,
    Options,
    check_stop_tokens,
    ending_stream,
)
from lattice_bpd.decode.loop.engine import Engine
from lattice_bpd.decode.loop.prompts import (
    Prompts,
    check_prompts,
    check_texts,
    find_reread_length,
    read_together,
)
from lattice_bpd.decode.loop.request import Request, Start
from lattice_bpd.decode.state.constraint import ConstrainedText
from lattice_bpd.decode.state.model import DraftingModel, HeadsOrCallable
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.state.text_rules import ProcessedSelector, RecordingSelector, TokenRecords
from lattice_bpd.extensions import CONSTRAINTS, load_extension
from lattice_bpd.models.model_facts import described_once
from lattice_bpd.token_ids import is_sequence_of_sequences
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact
from lattice_bpd.verify.cpu_kernels import kernels_in_call
from lattice_bpd.verify.cudnn import WITHOUT_CUDNN_ATTENTION
from lattice_bpd.verify.greedy import TokenSelector

_ROWS_ON_CPU = 64  # texts at once; more compute no more tokens per second


@dataclass
class DecodeResult:
    """A decoded text.

    Attributes:
        token_ids: the decoded tokens without the prompt, including a stop token.
        finish: "stop_token", "length" (max_new_tokens reached), "positions" (the target has no
            further positions), "criterion" (another stopping criterion, such as a stop string) or
            "constraint" (no token may follow, not even a stop token).
        stats: counts and stage times.
        acceptance: name of the acceptance rule.
        lossless: whether that rule preserves the target's own output.
        certificate: margins and checked positions, if requested.
        notes: deviations from the requested options, a sentence each.
        text: the decoded tokens as text, if a tokenizer was given.
        logprobs: for each decoded token {token id: log probability}, see `generate`; None: not
            requested.
        cache: the KV cache of prompt and output, for `cache=` of the next call; None: not
            requested.
    """

    token_ids: list[int]
    finish: str
    stats: DecodeStats
    acceptance: str = "exact"
    lossless: bool = True
    certificate: Certificate | None = None
    notes: list[str] = field(default_factory=list)
    text: str | None = None
    logprobs: list[dict[int, float]] | None = None
    cache: Any = None


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
    acceptance: Acceptance | None = None,
    certificate: bool | str = False,
    constraint: Any = None,
    cpu_kernels: bool = True,
) -> Any:
    """Decode one text or a batch; the output is the target's greedy output for every drafter.

    Each text of a batch is the same as if it were decoded alone. In each step every sequence keeps
    its own accepted draft tokens; those that end leave the batch, and others take their rows where
    not all fit. The model's generation config is not used; see `generate`.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, a target, or a DraftingModel.
        prompt: (T,) ints, from 1 to the target's number of positions; or B such prompts of any
            lengths, without padding. For an encoder-decoder the source.
        drafter: proposes drafts; wrong drafts cost time but do not change the output. A list has
            one drafter for each prompt.
        heads: see `generate`; None if the drafter needs none, or of a DraftingModel.
        max_new_tokens: most tokens to decode after each prompt, 1 or more.
        stop_token_ids: a text ends after the first of these, which is kept.
        layout: verification layout: "tree" (tree attention: one row with a four-dimensional mask),
            "rows" (batched verification: one row for each draft) or "auto"; see
            `lattice_bpd.verify.verify_trees`.
        streamer: of `transformers`, such as TextStreamer, for a single prompt; receives the
            prompt, then each token, then the end, also after an error.
        acceptance: acceptance rule, see `lattice_bpd.verify.Acceptance`; None: Exact. For a lossy
            rule, `lossless` of the result is False and its statistics report the regret.
        certificate: record every token's margin, and check tokens that rounding could have changed
            by plain calls; see `Certificate`. For the exact rule only. The verdict "different"
            raises CertificateError; with "report" it is only in the result.
        constraint: constraint on the new tokens, one of lattice-bpd-constraints; the output is then
            greedy among the allowed tokens.
        cpu_kernels: see `generate`.

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
        ImportError: a constraint, but lattice-bpd-constraints is not installed.
        MemoryError: a call did not fit into memory.
    """
    with ending_stream(streamer), described_once():
        several = is_sequence_of_sequences(prompt)
        prompts = prompt if several else [prompt]
        drafting = model if isinstance(model, DraftingModel) else DraftingModel(model, heads)
        limit = check_int("decode: max_new_tokens", max_new_tokens, 1)
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
            cpu_kernels=cpu_kernels,
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
    if options.streamer is not None and len(prompts.tokens) == 1:
        options.streamer.put(torch.tensor(prompts.tokens, device="cpu"))
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
        max_draft_nodes=count_draft_nodes(drafters[0], model),
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
    rule, changed = options.acceptance, [one for one in options.rules or () if not one.is_plain]
    if not isinstance(rule, Exact):
        reason = f"the rule {rule.name!r} is not exact; leave out certificate or acceptance"
    elif options.constraint is not None:
        reason = "a constraint changes the output; leave out certificate or constraint"
    elif changed:
        names = [type(item).__name__ for item in (*changed[0].processors, *changed[0].criteria)]
        reason = (
            f"{', '.join(names)} of the generation config may change it; leave certificate out, or "
            "give a generation_config= without them"
        )
    else:
        return
    raise ValueError(
        f"decode: a certificate states whether output is plain greedy decoding, but {reason}"
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


@torch.inference_mode()
def run_loop(
    model: DraftingModel, prompts: Prompts, drafters: Sequence[Drafter], options: Options
) -> list[DecodeResult]:
    """Decode all prompts together.

    Args:
        model: target and heads.
        prompts: checked prompts.
        drafters: one for each prompt; prompts may share a drafter.
        options: see Options.

    Returns:
        A result for each prompt, in order.
    """
    rules = _start_selectors(options, prompts)
    selectors: Sequence[TokenSelector | None] = rules
    constrained: list[ConstrainedText] | None = None
    if options.constraint is not None:
        constrained = load_extension(CONSTRAINTS, "constraint")(
            options.constraint, model.vocab_size, options.stop_token_ids, rules
        )
        selectors = constrained
        options = replace(
            options,
            stop_token_ids=constrained[0].stop_token_ids,
            max_draft_nodes=options.max_draft_nodes + constrained[0].max_added,
        )
    caches = options.caches
    if caches is not None:
        refusal = "the model prepares the prompt itself" if options.prefill is not None else None
        caches.load(model, refusal)
    selectors = _recording(selectors, options.records)
    kernels = kernels_in_call(getattr(model.target, "base", None), wanted=options.cpu_kernels)
    seconds: dict[str, float] = defaultdict(float)
    clock = DecodeStats(seconds=seconds)
    with clock.stage("total"), kernels:
        with clock.stage("prompt"), WITHOUT_CUDNN_ATTENTION:
            check_texts(model, prompts, options)
            together = read_together(model, prompts, options)
            options.reread_length = find_reread_length(model, prompts, options)
            starts: Sequence[Start | None] = [None] * len(prompts.tokens)
            if caches is not None:
                starts = caches.find_starts(model, prompts.tokens)
        requests = [
            Request(
                DecodeState(
                    model, list(tokens), len(tokens), None, options.limits[number],
                    DecodeStats(seconds=seconds), selector=rules[number],
                    constrained=None if constrained is None else constrained[number],
                    is_chain=options.layout == "chain" or model.target.is_recurrent,
                ),
                drafters[number], selectors[number], options.limited_by_positions[number], number,
                starts[number],
            )
            for number, tokens in enumerate(prompts.tokens)
        ]  # fmt: skip
        engine = _start_engine(model, options, seconds, requests)
        if together is not None:
            engine.begin(*together)
        try:
            for row, ended in engine.run():
                if caches is not None:
                    caches.keep(ended.number, engine.cache, row, ended.state.tokens)
        finally:
            model.target.reset_frequencies()  # the next text is not to depend on this one
        states = [request.state for request in requests]
        _cut(states, options)
        if caches is not None:
            caches.store(model)
    return _results(engine, states, prompts)


def _start_engine(
    model: DraftingModel, options: Options, seconds: dict[str, float], requests: Sequence[Request]
) -> Engine:
    """An engine with texts that wait; criteria of a whole batch need all of them at once."""
    has_all = options.rules is not None and options.rules[0].batch is not None
    is_limited = model.device.type == "cpu" and not has_all
    engine = Engine(
        model, options, seconds, has_all=has_all,
        most_rows=min(len(requests), _ROWS_ON_CPU) if is_limited else len(requests),
    )  # fmt: skip
    for request in requests:
        engine.waiting.add(request)
    return engine


def _cut(states: Sequence[DecodeState], options: Options) -> None:
    """Cut what texts have beyond the ends that criteria of the whole batch gave them."""
    rules = options.rules
    if rules is None or rules[0].batch is None:
        return
    rules[0].batch.finish()
    for state in states:
        count = getattr(state.selector, "count", state.stats.tokens)
        if count < state.stats.tokens:
            del state.tokens[state.prompt_length + count :]
            state.stats.tokens, state.finish = count, "criterion"


def _start_selectors(options: Options, prompts: Prompts) -> list[TokenSelector | None]:
    """One for each sequence; None for all of them: argmax."""
    started: list[TokenSelector | None] = [
        MarginSelector() if options.certificate else options.acceptance.start(number, tokens)
        for number, tokens in enumerate(prompts.tokens)
    ]
    rules = options.rules
    if rules is None or (options.records is None and all(one.is_plain for one in rules)):
        return started
    records: Sequence[TokenRecords | None] = options.records or [None] * len(rules)
    texts = zip(rules, started, records, strict=True)
    return [ProcessedSelector(one, selector, record) for one, selector, record in texts]


def _recording(
    selectors: Sequence[TokenSelector | None], records: list[TokenRecords] | None
) -> list[TokenSelector | None]:
    """The selectors, with those of texts whose logits are recorded wrapped."""
    if records is None:
        return [*selectors]
    return [
        selector
        if selector is None or record.logits is None
        else RecordingSelector(selector, record.logits)
        for selector, record in zip(selectors, records, strict=True)
    ]


def _results(engine: Engine, states: Sequence[DecodeState], prompts: Prompts) -> list[DecodeResult]:
    """Build the results: divide the seconds, count relaxed tokens, make certificates."""
    options, model, rule = engine.options, engine.model, engine.options.acceptance
    shares = {name: value / len(states) for name, value in engine.seconds.items()}
    results = []
    for number, (state, prompt) in enumerate(zip(states, prompts.tokens, strict=True)):
        state.stats.seconds = dict(shares)
        selector = getattr(state.selector, "selector", state.selector)  # of the rule
        state.stats.count_relaxed(getattr(selector, "regrets", ()))
        result = DecodeResult(
            state.new_tokens, state.finish or "length", state.stats, rule.name, rule.lossless
        )
        if state.stats.flattened_trees:
            result.notes.append(
                f"{state.stats.flattened_trees} draft trees were verified as their best chain: "
                f"{model.target.refuses_tree()}"
            )
        caches = options.caches
        if caches is not None:
            result.cache, state.stats.cached_tokens = caches.caches[number], caches.reused[number]
            if caches.refusal is not None:
                result.notes.append(f"cache holds no tokens: {caches.refusal}")
        if options.records is not None:
            logprobs = options.records[number].logprobs
            result.logprobs = None if logprobs is None else logprobs[: len(result.token_ids)]
        if isinstance(selector, MarginSelector):
            result.certificate = certify(
                model, prompt, result.token_ids, selector, engine.shapes, len(states), state.source,
                cpu_kernels=options.cpu_kernels,
            )  # fmt: skip
            if result.certificate.verdict == "different" and options.certificate != "report":
                raise CertificateError(result.certificate)
        results.append(result)
    return results
