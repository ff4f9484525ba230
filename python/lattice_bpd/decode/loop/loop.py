"""The decoding loop that all strategies share.

Prediction and verification are merged: the call that verifies a draft also returns the next exact
token and the hidden state for the next draft, so a text of m tokens with k tokens per step takes
m/k + 1 calls (Stern et al. 2018, section 4). Greedy decoding is this loop with empty drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lattice_bpd.decode.certificate.certificate import (
    CallShape,
    Certificate,
    CertificateError,
    MarginSelector,
    certify,
)
from lattice_bpd.decode.constraint.protocol import Constraint
from lattice_bpd.decode.constraint.selector import start_constrained
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.proposals import propose_trees
from lattice_bpd.decode.loop.prompts import Prompts, read_prompts
from lattice_bpd.decode.loop.text_cache import TextCaches
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.state.text_rules import TextRules
from lattice_bpd.decode.state.token_records import RecordingSelector, TokenRecords
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact
from lattice_bpd.verify.batch_cache import BatchCache
from lattice_bpd.verify.recurrent import RecurrentCache
from lattice_bpd.verify.target import TargetOutput
from lattice_bpd.verify.verification import TokenSelector, Verification, verify_trees


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


@dataclass
class Options:
    """Options of the decoding loop, independent of the drafter.

    Attributes:
        limits: most tokens to decode, for each sequence.
        limited_by_positions: for each sequence, whether its limit is the target's positions.
        stop_token_ids: decoding ends after the first of these, which is kept.
        layout: verification layout: "auto", "tree", "rows", or "chain", one draft.
        streamer: of `transformers`; receives the decoded tokens one at a time.
        streams_prompt: whether it receives the prompt first.
        acceptance: acceptance rule.
        rules: logits processors and stopping criteria of each sequence; None: neither.
        prefill: reads the prompts instead of the target's `read_prompts`; takes the cache to fill,
            or None, and returns the same as `read_prompts`.
        selectors: one for each sequence, instead of the acceptance rule's.
        records: of each sequence, filled by the loop; None: nothing is recorded.
        caches: KV caches that the texts continue, and that are filled with them; None: none.
        constraint: constraint on the new tokens; None: no constraint.
        static_cache: use a KV cache of fixed size, for compiled targets.
        max_draft_nodes: most draft tokens of a call, for which a static cache needs capacity.
        reread_length: tokens of a text at which the target's own `generate` drops its cache and
            reads the whole text again; None: it never does. Set when the prompts are read.
        certificate: whether to certify the output; "report": the verdict "different" does not
            raise.
    """

    limits: list[int]
    limited_by_positions: list[bool]
    stop_token_ids: frozenset[int] = frozenset()
    layout: str = "auto"
    streamer: Any = None
    streams_prompt: bool = True
    acceptance: Acceptance = field(default_factory=Exact)
    rules: list[TextRules] | None = None
    prefill: Callable[[Any], tuple[TargetOutput, Any]] | None = None
    selectors: list[TokenSelector] | None = None
    records: list[TokenRecords] | None = None
    caches: TextCaches | None = None
    constraint: Constraint | None = None
    static_cache: bool = False
    max_draft_nodes: int = 256
    reread_length: int | None = None
    certificate: bool | str = False


@dataclass
class _Run:
    """The active sequences and their shared state."""

    model: DraftingModel
    options: Options
    drafters: list[Drafter]
    states: list[DecodeState]
    cache: BatchCache | RecurrentCache
    seconds: dict[str, float]
    active: list[int] = field(default_factory=list)
    shapes: set[CallShape] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Set up the shared statistics and the drafters that observe decoded tokens."""
        self.stats: DecodeStats = self.states[0].stats
        observers = [getattr(drafter, "observe", None) for drafter in self.drafters]
        self.observers = [  # None if observing is a no-op
            None if getattr(observe, "__func__", None) is Drafter.observe else observe
            for observe in observers
        ]

    def step(self) -> None:
        """Draft and verify for all active sequences, in one call of the target."""
        states = [self.states[number] for number in self.active]
        if len(states[0].tokens) == self.options.reread_length:
            self.reread()
            return
        trees = propose_trees([self.drafters[number] for number in self.active], states)
        selectors, start = self.options.selectors, time.perf_counter()
        verified = verify_trees(
            self.model.target,
            self.cache,
            trees,
            layout="auto" if self.options.layout == "chain" else self.options.layout,
            selectors=None if selectors is None else [selectors[n] for n in self.active],
        )
        self.stats.lap("verify", start + verified.target_seconds)
        self.seconds["target"] = self.seconds.get("target", 0.0) + verified.target_seconds
        self.shapes.add((verified.layout, *verified.shape))
        for number, verification in zip(self.active, verified.sequences, strict=True):
            self.states[number].stats.target_calls += 1
            self.append(number, verification)
        self.drop_finished()

    def reread(self) -> None:
        """Read the whole text again, without a draft, as the target's own `generate` does here."""
        (number,) = self.active
        state = self.states[number]
        options = replace(self.options, streamer=None, prefill=None)
        (verified,), self.cache = read_prompts(self.model, Prompts([list(state.tokens)]), options)
        if verified.features is not None:
            verified.features = verified.features[-1:]  # the heads have those before
        state.stats.target_calls += 1
        self.append(number, verified)
        self.drop_finished()

    def append(self, number: int, verified: Verification, *, is_prompt: bool = False) -> None:
        """Append verified tokens to one sequence, up to a stop token, and set its finish reason."""
        state, options, stats = self.states[number], self.options, self.states[number].stats
        new = verified.token_ids
        if options.stop_token_ids:
            new = _until_stop(new, options.stop_token_ids)
        state.tokens += new
        state.hidden = verified.hidden
        if verified.features is not None:
            state.features.append(verified.features)
        stats.tokens += len(new)
        if not is_prompt:
            stats.accept_lengths.append(min(verified.accept_length, len(new)))
        stopped = bool(new) and new[-1] in options.stop_token_ids
        ended = options.selectors is not None and options.selectors[number].ended
        if stopped:
            state.finish = "stop_token"
        elif state.constrained is not None and state.constrained.automaton_state.ended:
            state.finish = "constraint"
        elif stats.tokens >= state.limit:
            state.finish = "positions" if options.limited_by_positions[number] else "length"
        elif ended:
            state.finish = "criterion"
        observe = self.observers[number]
        if observe is not None:
            observe(state, new)
        if options.streamer is not None:
            for token in new:  # one at a time, as `model.generate` does
                options.streamer.put(torch.tensor([token]))

    def drop_finished(self) -> None:
        """Remove finished sequences from the batch and the KV cache."""
        if self.options.caches is not None:
            for row, number in enumerate(self.active):
                if self.states[number].finish is not None:
                    text = self.states[number].tokens
                    self.options.caches.keep(number, self.cache, row, text)
        kept = [row for row, n in enumerate(self.active) if self.states[n].finish is None]
        if 0 < len(kept) < len(self.active) and isinstance(self.cache, BatchCache):
            self.cache.keep_sequences(kept)
        self.active = [self.active[row] for row in kept]


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
    if options.caches is not None:
        refusal = "the model prepares the prompt itself" if options.prefill is not None else None
        options.caches.load(model, "it has a fixed size" if options.static_cache else refusal)
    inner = _start_selectors(options, prompts)
    constrained = None
    if options.constraint is not None:
        constrained = start_constrained(
            options.constraint, options.stop_token_ids, inner or [None] * len(prompts.tokens)
        )
    outer: Sequence[TokenSelector] | None = constrained or inner
    if outer is not None:
        outer = _recording(outer, options.records)
    options = replace(options, selectors=outer)
    seconds: dict[str, float] = {}
    clock = DecodeStats(seconds=seconds)
    with clock.stage("total"):
        with clock.stage("prompt"):
            first, cache = read_prompts(model, prompts, options)
        states = [
            DecodeState(model, list(tokens), len(tokens), verified.hidden, limit,
                        DecodeStats(target_calls=1, seconds=seconds))
            for tokens, verified, limit in zip(prompts.tokens, first, options.limits, strict=True)
        ]  # fmt: skip
        for number, state in enumerate(states):
            state.selector = None if inner is None else inner[number]
            state.constrained = None if constrained is None else constrained[number]
            state.source = cache.source_of(number)
            state.is_chain = options.layout == "chain" or model.target.is_recurrent
        run = _Run(model, options, list(drafters), states, cache, seconds)
        run.active = list(range(len(states)))
        for number, verified in enumerate(first):
            run.append(number, verified, is_prompt=True)
        run.drop_finished()
        try:
            while run.active:
                run.step()
        finally:
            model.target.reset_frequencies()  # the next text is not to depend on this one
        if options.caches is not None:
            options.caches.store(model)
    return _results(run, prompts)


def _start_selectors(options: Options, prompts: Prompts) -> list[TokenSelector] | None:
    """One for each sequence; None: argmax."""
    if options.selectors is not None:
        return options.selectors
    started: list[TokenSelector | None] = [
        MarginSelector() if options.certificate else options.acceptance.start(number, tokens)
        for number, tokens in enumerate(prompts.tokens)
    ]
    rules = options.rules
    if options.records is not None:
        if rules is None:
            pairs = zip(prompts.tokens, options.limits, strict=True)
            rules = [TextRules.plain(tokens, limit) for tokens, limit in pairs]
        texts = zip(rules, started, options.records, strict=True)
        return [text_rules.start(selector, record) for text_rules, selector, record in texts]
    if rules is not None and not all(text_rules.is_plain for text_rules in rules):
        both = zip(rules, started, strict=True)
        return [text_rules.start(selector) for text_rules, selector in both]
    return [selector for selector in started if selector is not None] or None


def _recording(
    selectors: Sequence[TokenSelector], records: list[TokenRecords] | None
) -> list[TokenSelector]:
    """The selectors, with those of texts whose logits are recorded wrapped."""
    if records is None:
        return [*selectors]
    return [
        selector if record.logits is None else RecordingSelector(selector, record)
        for selector, record in zip(selectors, records, strict=True)
    ]


def _results(run: _Run, prompts: Prompts) -> list[DecodeResult]:
    """Build the results: divide the seconds, count relaxed tokens, make certificates."""
    states, rule = run.states, run.options.acceptance
    shares = {name: value / len(states) for name, value in run.seconds.items()}
    shapes = {("prompt", len(states), max(prompts.lengths)), *run.shapes}
    results = []
    for number, (state, prompt) in enumerate(zip(states, prompts.tokens, strict=True)):
        state.stats.seconds = dict(shares)
        state.stats.count_relaxed(getattr(state.selector, "regrets", ()))
        result = DecodeResult(
            state.new_tokens, state.finish or "length", state.stats, rule.name, rule.lossless
        )
        if state.stats.flattened_trees:
            result.notes.append(
                f"{state.stats.flattened_trees} draft trees were verified as their best chain: "
                f"{run.model.target.refuses_tree()}"
            )
        caches = run.options.caches
        if caches is not None:
            result.cache, state.stats.cached_tokens = caches.caches[number], caches.reused[number]
            if caches.refusal is not None:
                result.notes.append(f"cache holds no tokens: {caches.refusal}")
        if run.options.records is not None:
            logprobs = run.options.records[number].logprobs
            result.logprobs = None if logprobs is None else logprobs[: len(result.token_ids)]
        margins = getattr(state.selector, "selector", state.selector)
        if isinstance(margins, MarginSelector):
            result.certificate = certify(
                run.model,
                prompt,
                result.token_ids,
                margins,
                shapes,
                len(states),
                state.source,
            )
            if result.certificate.verdict == "different" and run.options.certificate != "report":
                raise CertificateError(result.certificate)
        results.append(result)
    return results


def _until_stop(token_ids: list[int], stop: frozenset[int]) -> list[int]:
    """The tokens up to the first stop token, which is kept."""
    if stop:
        for index, token in enumerate(token_ids):
            if token in stop:
                return token_ids[: index + 1]
    return token_ids
