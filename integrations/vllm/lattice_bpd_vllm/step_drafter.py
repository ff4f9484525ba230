"""Drafts for each step of an engine, where an error costs drafts only; for any engine."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.verify.memory import is_lack_of_memory
from lattice_bpd_vllm.batch import DraftBatch, EngineStep, select_requests
from lattice_bpd_vllm.counters import Advice, DraftCounters, describe_costs
from lattice_bpd_vllm.drafting import Chains, LatticeDrafter
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.mixture_chains import MixtureChains
from lattice_bpd_vllm.options import DrafterOptions
from lattice_bpd_vllm.predictions import StepPredictions, select_predictions
from lattice_bpd_vllm.rows import rows_of_last_tokens, take_rows
from lattice_bpd_vllm.served_texts import ServedTexts
from lattice_bpd_vllm.slot_sources import make_source
from lattice_bpd_vllm.targets import TargetInfo

_ADVICE_STEPS = 64  # steps between two checks of the counts
_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds without drafts after a lack of memory


class UnsupportedError(RuntimeError):
    """An engine or model that can never be drafted for."""


class StepDrafter:
    """A drafter in an engine.

    Args:
        parts: of the drafter.
        target: the engine's model.
        options: of the drafter.
        num_tokens: draft tokens that the engine verifies at most.
        logger: for errors and counts.
        is_sharded: whether other processes compute logits together with this one and would wait
            for it: errors are raised, as with the option `check`, and every step reads the heads.
        has_equal_lengths: whether the engine verifies as many tokens for each request anyhow, and
            gives no hidden states.
        has_logits: whether it may give `EngineStep.predictions`.

    Attributes:
        counters: what was drafted so far.
        source: gives the slots; `source.layers` are those that the engine must return.

    Raises:
        ValueError: heads or LM of another target.
    """

    def __init__(
        self,
        parts: DrafterParts,
        target: TargetInfo,
        options: DrafterOptions,
        num_tokens: int,
        logger: logging.Logger,
        *,
        is_sharded: bool = False,
        has_equal_lengths: bool = False,
        has_logits: bool = False,
    ) -> None:
        self.counters = DraftCounters()
        self.source = make_source(parts, target, num_tokens)
        self._target, self._options, self._logger = target, options, logger
        self._lattices = self._mixture = None
        self._has_heads = parts.heads is not None
        if parts.draft == "mixture":
            vocab_size, served = self.source.vocab_size, None
            if options.store is not None:
                file = Path(options.store) if options.store else None
                served = ServedTexts(options.store_tokens, vocab_size, file)
            lengths = None
            if not has_equal_lengths:
                lengths = _core.DraftLengths(num_tokens, self._has_heads, not is_sharded)
            self._mixture = MixtureChains(
                parts, vocab_size, options.threads, lengths, served,
                has_logits=has_logits, logger=logger,
            )  # fmt: skip
            self._max_tokens = num_tokens
        else:
            lm = parts.lms[0] if parts.lms else None
            self._lattices = LatticeDrafter(lm, parts.config, parts.draft, options.threads)
            self._max_tokens = self.source.num_slots
            if num_tokens > self._max_tokens:
                logger.warning(
                    "lattice-bpd: num_speculative_tokens is %d, the heads have %d slots, where "
                    "drafts of %r end; expected %d, or draft 'mixture', which continues",
                    num_tokens, self._max_tokens, parts.draft, self._max_tokens,
                )  # fmt: skip
        self._advice = Advice(num_tokens, parts.draft)
        self._raises_errors = is_sharded or options.check
        self._checks_rows = options.check and not has_equal_lengths
        self._is_stopped = self._can_store = self._was_paused = False
        self._said: set[str] = set()  # kinds of errors that were logged
        self._pause, self._resume_at = 0.0, -math.inf  # seconds, of the last lack of memory
        self._log_seconds = options.log_seconds or math.inf
        self._log_at = math.inf
        if options.log_seconds:
            logger.info(
                "lattice-bpd: draft %r, %d slots of heads, n-gram LMs: %d",
                parts.draft, self.source.num_slots, len(parts.lms),
            )  # fmt: skip

    def predict(self, logits: Any, draft_token_ids: Any) -> StepPredictions | None:
        """`EngineStep.predictions` of the next step; None where they are no source, or in a pause.

        Args:
            logits: (rows, V) float, as the model computed them.
            draft_token_ids: (n,) the draft tokens that are verified, a tensor; None: none.
        """
        is_source = self._mixture is not None and self._mixture.reads_predictions
        if not is_source or self._is_stopped or self._was_paused:
            return None
        start, found = time.perf_counter(), None
        try:
            found = select_predictions(logits, draft_token_ids, self._options.threads)
        except Exception as error:
            self._fail(error)
        self.counters.predictions += 0 if found is None else len(found.token_ids)
        self.counters.seconds += time.perf_counter() - start
        return found

    def propose(self, kept: Sequence[Sequence[int]], read_step: Callable[[], EngineStep]) -> Chains:
        """A draft for each request of the batch.

        Args:
            kept: tokens that each request of the batch kept in this step.
            read_step: gives what the engine knows; may raise. Not called where nothing is drafted.

        Returns:
            A list for each request, of 0 to num_tokens ids. All are empty after an error, which is
            logged once: in the steps of a pause too if memory was short, which grows with each
            repetition, and in all later steps after an UnsupportedError.
        """
        start = time.perf_counter()
        drafts: Chains = [[] for _ in kept]
        counters = self.counters
        counters.steps += 1
        if not self._is_stopped:
            try:
                self._draft(drafts, kept, read_step, start)
            except Exception as error:
                self._fail(error)
                drafts = [[] for _ in kept]
        drafted = [len(draft) for draft in drafts if draft]
        counters.drafts += len(drafted)
        counters.draft_tokens += sum(drafted)
        end = time.perf_counter()
        counters.seconds += end - start
        self._advice.add_step(start, end, max(drafted, default=0))
        if counters.steps == 1:  # the server waited for its first request
            self._log_at = end + self._log_seconds
        if counters.steps % _ADVICE_STEPS == 0 or end >= self._log_at:
            self._log(end)
        return drafts

    def _draft(
        self,
        drafts: Chains,
        kept: Sequence[Sequence[int]],
        read_step: Callable[[], EngineStep],
        start: float,
    ) -> None:
        """Fills `drafts`."""
        num_kept = [len(tokens) for tokens in kept]
        lengths = None if self._mixture is None else self._mixture.lengths
        is_short = start < self._resume_at
        is_paused = is_short or (lengths is not None and lengths.is_paused(len(kept)))
        self._was_paused = is_paused
        counters, tokens, calls = self.counters, sum(num_kept), len(kept) - num_kept.count(0)
        counters.tokens += tokens
        counters.target_calls += calls
        is_timing = lengths is not None and lengths.is_timing
        if is_paused and not is_timing and not self.source.layers:
            return
        step = read_step()
        if step.verified is not None:
            counters.verified_tokens += sum(step.verified)
            counters.accepted_tokens += tokens - calls  # one token of each request was no draft
        if (
            step.features is not None
            and step.layout is not None
            and (self._can_store or not is_short)
        ):
            self._can_store = False  # in the pause that a lack of memory for it begins
            self.source.store(step.features, step.layout)
            self._can_store = True
        if lengths is not None:
            lengths.observe(step.names, num_kept, step.verified, start)
        if not is_paused:
            self._fill(drafts, step, num_kept, start)
            if lengths is not None:
                lengths.finish(time.perf_counter())

    def _fill(self, drafts: Chains, step: EngineStep, num_kept: list[int], start: float) -> None:
        batch = select_requests(step, self._max_tokens)
        if not batch.requests:
            return
        slots = None
        lengths = None if self._mixture is None else self._mixture.lengths
        reads_slots = self._has_heads if lengths is None else lengths.reads_slots()
        if reads_slots or self._checks_rows:
            rows = rows_of_last_tokens(batch.requests, num_kept, step.verified)
            hidden = take_rows(step.hidden, rows)
            if self._checks_rows:
                self._check_rows(hidden, batch)
            if reads_slots:
                slots = self.source.read(batch, hidden)
                if slots is None:
                    return
        if isinstance(slots, Tensor) and slots.shape[-1] > self.source.vocab_size:
            raise ValueError(
                f"logits have {slots.shape[-1]} columns, the target's {self.source.vocab_size}"
            )
        search = self._search_lattices if self._mixture is None else self._mixture.propose
        try:
            chains = search(slots, step, batch, start)
        except ValueError as error:  # invalid logits cost the drafts of their request only
            masked = mask_invalid(slots)
            if masked is None:
                raise
            self._fail(error)
            chains = search(masked, step, batch, start)
        for request, chain in zip(batch.requests, chains, strict=True):
            drafts[request] = chain

    def _search_lattices(self, slots: Any, step: EngineStep, batch: DraftBatch, _: float) -> Chains:
        assert self._lattices is not None
        most = self._lattices.context_length
        contexts = [
            step.token_ids[request, max(length - most, 0) : length].tolist()
            for request, length in zip(batch.requests, batch.lengths, strict=True)
        ]
        return self._lattices.propose(slots, contexts, batch.max_lengths)

    def _check_rows(self, hidden: Tensor, batch: DraftBatch) -> None:
        """Compares the target's argmax of each row with the last kept token."""
        logits = self._target.compute_logits(hidden)
        best = None if logits is None else logits.argmax(dim=-1).tolist()
        if best not in (None, batch.exact_tokens):
            raise AssertionError(
                f"rows of hidden states predict {best}; the requests kept {batch.exact_tokens}"
            )

    def _fail(self, error: Exception) -> None:
        """Logs the first error of a kind; called while it is handled."""
        if self._raises_errors:
            raise error
        self.counters.failures += 1
        if isinstance(error, UnsupportedError):
            self._is_stopped = True
            self._logger.error("lattice-bpd: %s; nothing is drafted from now on", error)
            return
        kind = "memory" if is_lack_of_memory(error) else "other"
        if kind == "memory":
            self._pause_drafting(time.perf_counter())
        if kind in self._said:
            return
        self._said.add(kind)
        if kind == "memory":
            self._logger.error(
                "lattice-bpd: no memory to draft (%s: %s); drafting pauses for %g s and is tried "
                "again, after pauses of up to %g s if it lasts; later ones are counted, not logged",
                type(error).__name__, error, _SHORTEST_PAUSE, _LONGEST_PAUSE,
            )  # fmt: skip
        else:
            self._logger.exception(
                "lattice-bpd: drafting failed, which costs drafts of this step; later errors are "
                "counted, not logged"
            )

    def _pause_drafting(self, now: float) -> None:
        """Drafts nothing for twice the last pause, or anew after drafting worked for as long."""
        is_repeated = now - self._resume_at <= self._pause
        grown = 2 * self._pause if is_repeated else _SHORTEST_PAUSE
        self._pause = min(max(grown, _SHORTEST_PAUSE), _LONGEST_PAUSE)
        self._resume_at = now + self._pause
        if self._mixture is not None:
            self._mixture.texts.clear()  # a part of a step's tokens may have been added to them

    def _log(self, now: float) -> None:
        """A line with the counts if the last one is old enough, and advice."""
        if self._options.log_seconds and self.counters.steps % _ADVICE_STEPS == 0:
            for line in self._advice.lines(self.counters):
                self._logger.warning(line)
        if now < self._log_at:
            return
        self._log_at = now + self._log_seconds
        self._logger.info(self.counters.describe())
        lengths = None if self._mixture is None else self._mixture.lengths
        times = {} if lengths is None else lengths.step_seconds(1)
        if len(times) > 1:
            self._logger.info(
                "lattice-bpd: milliseconds of a step of one request by draft tokens, for "
                "`lattice-bpd build --costs FILE`: %s", describe_costs(times),
            )  # fmt: skip


def mask_invalid(slots: Any) -> Tensor | None:
    """Logits (B, H, V) with all tokens of requests masked that have NaN or +inf; None: no such."""
    if not isinstance(slots, Tensor):
        return None
    invalid = (slots.isnan() | slots.isposinf()).flatten(1).any(dim=1)
    if not bool(invalid.any()):
        return None
    return slots.masked_fill(invalid[:, None, None], -torch.inf)
