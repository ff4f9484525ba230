"""The decoding loop, the same for every strategy; only the drafter is exchanged.

Prediction and verification are merged: the call that verifies a draft also yields the next exact
token and the hidden state of the next draft, so a text of m tokens with k tokens a step costs
m/k + 1 calls (Stern et al. 2018, section 4). Greedy decoding is this loop with empty drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.decode.certificate.certificate import (
    CallShape,
    Certificate,
    CertificateError,
    MarginChooser,
    certify,
)
from lattice_bpd.decode.constraint.chooser import start_constrained
from lattice_bpd.decode.constraint.protocol import Constraint
from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.drafters.proposals import propose_trees
from lattice_bpd.decode.loop.prompts import Prompts, read_prompts
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.state.text_rules import TextRules
from lattice_bpd.verify.acceptance.rule import Acceptance, Exact
from lattice_bpd.verify.batch_cache import BatchCache
from lattice_bpd.verify.recurrent import RecurrentCache
from lattice_bpd.verify.target import TargetOutput
from lattice_bpd.verify.verification import Chooser, Verification, verify_trees


@dataclass
class DecodeResult:
    """A decoded text.

    Attributes:
        token_ids: the decoded tokens without the prompt, a stop token included.
        finish: "stop_token", "length" (max_new_tokens reached), "positions" (the target has no
            further positions), "criterion" (another stopping criterion, such as a stop string) or
            "constraint" (nothing may follow, not even a stop token).
        stats: counts and stage times.
        acceptance: name of the rule that kept the draft tokens.
        lossless: whether that rule keeps what the target alone would have written.
        certificate: margins, and what was decided again, where that was asked for.
        notes: what was done otherwise than asked, in a sentence each.
        text: the decoded tokens as text, where a tokenizer was given.
    """

    token_ids: list[int]
    finish: str
    stats: DecodeStats
    acceptance: str = "exact"
    lossless: bool = True
    certificate: Certificate | None = None
    notes: list[str] = field(default_factory=list)
    text: str | None = None


@dataclass
class Options:
    """How to decode, whatever is drafted.

    Attributes:
        limits: most tokens to decode, for each sequence.
        short_of_positions: for each sequence, whether its limit is the target's positions.
        stop_token_ids: decoding ends behind the first of these, which is kept.
        form: how drafts are verified: "auto", "tree" or "rows".
        streamer: of `transformers`; gets the tokens as they are decoded, one at a time.
        streams_prompt: whether it gets the prompt first.
        acceptance: which draft tokens are kept.
        rules: logits processors and stopping criteria of each sequence; None: neither.
        prefill: reads the prompts instead of the target's `read_prompts`; gets the cache to fill,
            or None, and returns what `read_prompts` does.
        choosers: one for each sequence instead of the acceptance rule's.
        constraint: what the new tokens must obey; None: nothing.
        static_cache: decode in a cache of fixed size, for compiled targets.
        most_nodes: draft tokens of a call, for which a static cache must have room.
        certificate: whether margins are kept, and tokens decided again where they are small;
            "report": the same, and a verdict "different" does not raise.
    """

    limits: list[int]
    short_of_positions: list[bool]
    stop_token_ids: frozenset[int] = frozenset()
    form: str = "auto"
    streamer: Any = None
    streams_prompt: bool = True
    acceptance: Acceptance = field(default_factory=Exact)
    rules: list[TextRules] | None = None
    prefill: Callable[[Any], tuple[TargetOutput, Any]] | None = None
    choosers: list[Chooser] | None = None
    constraint: Constraint | None = None
    static_cache: bool = False
    most_nodes: int = 256
    certificate: bool | str = False


@dataclass
class _Run:
    """Sequences that go on, and what they share."""

    model: DraftingModel
    options: Options
    drafters: list[Drafter]
    states: list[DecodeState]
    cache: BatchCache | RecurrentCache
    seconds: dict[str, float]
    active: list[int] = field(default_factory=list)
    shapes: set[CallShape] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Statistics whose seconds are everybody's, and who is told what was decoded."""
        self.stats: DecodeStats = self.states[0].stats
        observers = [getattr(drafter, "observe", None) for drafter in self.drafters]
        nobody = Drafter.observe
        self.observers = [
            None if getattr(tell, "__func__", None) is nobody else tell for tell in observers
        ]

    def step(self) -> None:
        """Draft, verify, keep; for all active sequences in one call of the target."""
        states = [self.states[number] for number in self.active]
        trees = propose_trees([self.drafters[number] for number in self.active], states)
        choosers, start = self.options.choosers, time.perf_counter()
        found = verify_trees(
            self.model.target,
            self.cache,
            trees,
            form=self.options.form,
            choosers=None if choosers is None else [choosers[n] for n in self.active],
        )
        self.stats.lap("verify", start + found.target_seconds)
        self.seconds["target"] = self.seconds.get("target", 0.0) + found.target_seconds
        self.shapes.add((found.form, *found.shape))
        for number, verified in zip(self.active, found.sequences, strict=True):
            self.states[number].stats.target_calls += 1
            self.keep(number, verified)
        self.drop_finished()

    def keep(self, number: int, verified: Verification, *, is_prompt: bool = False) -> None:
        """Take over what was verified for one sequence, up to a stop token or the limit."""
        state, options, stats = self.states[number], self.options, self.states[number].stats
        new = verified.token_ids
        if options.stop_token_ids:
            new = _until_stop(new, options.stop_token_ids)
        state.tokens += new
        state.hidden = verified.hidden
        stats.tokens += len(new)
        if not is_prompt:
            stats.accept_lengths.append(min(verified.accept_length, len(new)))
        stopped = bool(new) and new[-1] in options.stop_token_ids
        ended = options.choosers is not None and options.choosers[number].ended
        if stopped:
            state.finish = "stop_token"
        elif state.constrained is not None and state.constrained.place.ended:
            state.finish = "constraint"
        elif stats.tokens >= state.limit:
            state.finish = "positions" if options.short_of_positions[number] else "length"
        elif ended:
            state.finish = "criterion"
        observe = self.observers[number]
        if observe is not None:
            observe(new)
        if options.streamer is not None:
            for token in new:  # one at a time, as `model.generate` does
                options.streamer.put(torch.tensor([token]))

    def drop_finished(self) -> None:
        """Finished sequences leave the cache."""
        going = [place for place, n in enumerate(self.active) if self.states[n].finish is None]
        if 0 < len(going) < len(self.active) and isinstance(self.cache, BatchCache):
            self.cache.keep_sequences(going)
        self.active = [self.active[place] for place in going]


@torch.inference_mode()
def run_loop(
    model: DraftingModel, prompts: Prompts, drafters: Sequence[Drafter], options: Options
) -> list[DecodeResult]:
    """Decode all prompts together.

    Args:
        model: target and heads.
        prompts: checked prompts.
        drafters: one for each prompt; the same one may stand for several.
        options: see Options.

    Returns:
        A result for each prompt, in order.
    """
    inner = _start_choosers(options, prompts)
    constrained = None
    if options.constraint is not None:
        constrained = start_constrained(
            options.constraint, options.stop_token_ids, inner or [None] * len(prompts.tokens)
        )
    options = replace(options, choosers=inner if constrained is None else [*constrained])
    seconds: dict[str, float] = {}
    clock = DecodeStats(seconds=seconds)
    with clock.stage("total"):
        with clock.stage("prompt"):
            first, cache = read_prompts(model, prompts, options)
        states = [
            DecodeState(model, list(tokens), len(tokens), found.hidden, limit,
                        DecodeStats(target_calls=1, seconds=seconds))
            for tokens, found, limit in zip(prompts.tokens, first, options.limits, strict=True)
        ]  # fmt: skip
        for number, state in enumerate(states):
            state.chooser = None if inner is None else inner[number]
            state.constrained = None if constrained is None else constrained[number]
            state.source = cache.source_of(number)
        run = _Run(model, options, list(drafters), states, cache, seconds)
        run.active = list(range(len(states)))
        for number, found in enumerate(first):
            run.keep(number, found, is_prompt=True)
        run.drop_finished()
        while run.active:
            run.step()
    return _results(run, prompts)


def _start_choosers(options: Options, prompts: Prompts) -> list[Chooser] | None:
    """One for each sequence; None where argmax is what is wanted."""
    if options.certificate:
        return [MarginChooser() for _ in prompts.tokens]
    if options.choosers is not None:
        return options.choosers
    started = [options.acceptance.start(n, tokens) for n, tokens in enumerate(prompts.tokens)]
    if options.rules is not None and not all(rules.is_plain for rules in options.rules):
        pairs = zip(options.rules, started, strict=True)
        return [rules.start(chooser) for rules, chooser in pairs]
    return [chooser for chooser in started if chooser is not None] or None


def _results(run: _Run, prompts: Prompts) -> list[DecodeResult]:
    """What was decoded, with shared-out seconds, what a lossy rule cost, and certificates."""
    states, rule = run.states, run.options.acceptance
    shares = {name: value / len(states) for name, value in run.seconds.items()}
    shapes = {("prompt", len(states), max(prompts.lengths)), *run.shapes}
    results = []
    for state, prompt in zip(states, prompts.tokens, strict=True):
        state.stats.seconds = dict(shares)
        state.stats.count_relaxed(getattr(state.chooser, "regrets", ()))
        result = DecodeResult(
            state.new_tokens, state.finish or "length", state.stats, rule.name, rule.lossless
        )
        if state.stats.flattened_trees:
            result.notes.append(
                f"{state.stats.flattened_trees} draft trees were verified as their best chain: "
                f"{run.model.target.refuses_tree()}"
            )
        if isinstance(state.chooser, MarginChooser):
            result.certificate = certify(
                run.model,
                prompt,
                result.token_ids,
                state.chooser,
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


def decode(
    model: Any,
    prompt: Sequence[int] | Tensor,
    drafter: Drafter,
    *,
    heads: Any = None,
    max_new_tokens: int = 64,
    stop_token_ids: Collection[int] = (),
    form: str = "auto",
    streamer: Any = None,
    static_cache: bool = False,
    acceptance: Acceptance | None = None,
    certificate: bool | str = False,
    constraint: Constraint | None = None,
) -> DecodeResult:
    """Decode one text: the target's greedy output, whatever the drafter proposes.

    The model's generation config is not read: `generate` does that.

    Args:
        model: a BlockwiseLM, a causal LM or an encoder-decoder of `transformers`, or a
            Seq2SeqTarget.
        prompt: (T,) ints, 1 or more, at most the target's positions; of an encoder-decoder the
            source.
        drafter: proposes drafts; its mistakes cost time, never output.
        heads: callable (B, D) hidden states -> (B, H, V) logits, where the model brings none and
            the drafter asks for them.
        max_new_tokens: most tokens to decode, 1 or more.
        stop_token_ids: decoding ends behind the first of these, which is kept.
        form: how drafts are verified: "tree" (one row under a four-dimensional mask), "rows"
            (a row for each draft) or "auto" (see `lattice_bpd.verify.verify_trees`).
        streamer: of `transformers`, such as TextStreamer; gets the prompt, then each token, then
            the end, by an error too.
        static_cache: keep keys and values in a cache of fixed size, for compiled targets.
        acceptance: which draft tokens are kept, see `lattice_bpd.verify.Acceptance`; None: Exact.
            The result names a lossy rule as such, and its statistics what it cost.
        certificate: keep every token's margin, and decide those by plain calls again where rounding
            could have decided; see `Certificate`. For the exact rule only. A verdict "different"
            raises CertificateError; with "report" it is only in the result.
        constraint: what the new tokens must obey, see `lattice_bpd.decode.Constraint`; the output
            is then the greedy one among the tokens that it allows.

    Returns:
        DecodeResult.

    Raises:
        ValueError: an empty or too long prompt, ids outside the vocabulary, max_new_tokens
            below 1, a cache that cannot roll back, NaN logits, or a constraint of another
            vocabulary or without a legal continuation.
        CertificateError: the output is not plain greedy decoding's (a ValueError).
        TypeError: model is no causal LM, or constraint no constraint.
        MemoryError: a call did not fit.
    """
    from lattice_bpd.decode.loop.batch import decode_batch

    if isinstance(prompt, (list, tuple)):
        prompt = torch.as_tensor(prompt)
    if getattr(prompt, "ndim", 1) != 1 or len(prompt) == 0:
        raise ValueError(
            f"decode: prompt has shape {tuple(getattr(prompt, 'shape', ()))}; expected (tokens,) "
            "with one token or more; use decode_batch for several texts, and begin with a start "
            "token where there is none"
        )
    return decode_batch(
        model, [prompt], drafter, heads=heads, max_new_tokens=max_new_tokens,
        stop_token_ids=stop_token_ids, form=form, streamer=streamer, static_cache=static_cache,
        acceptance=acceptance, certificate=certificate, constraint=constraint,
    )[0]  # fmt: skip
