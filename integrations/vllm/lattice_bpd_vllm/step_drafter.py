"""Drafts for each step of an engine, where an error costs drafts only; for any engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.lm.context import ContextNGram
from lattice_bpd_vllm.batch import DraftBatch, EngineStep, select_requests
from lattice_bpd_vllm.counters import DraftCounters
from lattice_bpd_vllm.drafting import Chains, LatticeDrafter
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.options import DrafterOptions
from lattice_bpd_vllm.request_caches import RequestCaches
from lattice_bpd_vllm.rows import rows_of_last_tokens, take_rows
from lattice_bpd_vllm.slot_sources import make_source
from lattice_bpd_vllm.targets import TargetInfo


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
        raises_errors: errors are raised, as with the option `check`.

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
        raises_errors: bool = False,
    ) -> None:
        self.counters = DraftCounters()
        self.source = make_source(parts, target, num_tokens)
        self._target, self._options, self._logger = target, options, logger
        self._drafter = LatticeDrafter(
            parts.lm, parts.config, parts.draft, options.min_prob, options.threads
        )
        order = parts.config.ngram_cache
        self._caches = RequestCaches(self.source.vocab_size, order, parts.lm) if order else None
        self._raises_errors = raises_errors or options.check
        self._is_stopped = False
        self._logged_steps, self._logged_at = 0, time.monotonic()

    def propose(self, count: int, read_step: Callable[[], EngineStep]) -> Chains:
        """A draft for each request of the batch.

        Args:
            count: requests of the batch.
            read_step: gives what the engine knows; may raise.

        Returns:
            `count` lists of 0 to num_tokens ids. All are empty after an error, which is logged
            once; after an UnsupportedError in all later steps too.
        """
        start = time.perf_counter()
        drafts: Chains = [[] for _ in range(count)]
        counters = self.counters
        counters.steps += 1
        if not self._is_stopped:
            try:
                self._draft(drafts, read_step())
            except Exception as error:
                self._fail(error)
                drafts = [[] for _ in range(count)]
        lengths = [len(draft) for draft in drafts if draft]
        counters.drafts += len(lengths)
        counters.draft_tokens += sum(lengths)
        counters.seconds += time.perf_counter() - start
        self._log()
        return drafts

    def _draft(self, drafts: Chains, step: EngineStep) -> None:
        """Fills `drafts`."""
        num_kept = [len(tokens) for tokens in step.kept]
        self._count(num_kept, step.verified)
        if step.features is not None and step.layout is not None:
            self.source.store(step.features, step.layout)
        batch = select_requests(step, self.source.num_slots, self._drafter.context_length)
        if not batch.requests:
            return
        rows = rows_of_last_tokens(batch.requests, num_kept, step.verified)
        hidden = take_rows(step.hidden, rows)
        if self._options.check:
            self._check_rows(hidden, batch)
        slots = self.source.read(batch, hidden)
        if slots is None:
            return
        if isinstance(slots, Tensor) and slots.shape[-1] > self.source.vocab_size:
            raise ValueError(
                f"logits have {slots.shape[-1]} columns, the target's {self.source.vocab_size}"
            )
        chains = self._search(slots, batch, self._update_caches(step, batch))
        for request, chain in zip(batch.requests, chains, strict=True):
            drafts[request] = chain

    def _search(self, slots: Any, batch: DraftBatch, caches: list[ContextNGram] | None) -> Chains:
        """The drafts; invalid logits cost those of their request only."""
        try:
            return self._drafter.propose(slots, batch.contexts, batch.max_lengths, caches)
        except ValueError as error:
            masked = mask_invalid(slots)
            if masked is None:
                raise
            self._fail(error)
            return self._drafter.propose(masked, batch.contexts, batch.max_lengths, caches)

    def _update_caches(self, step: EngineStep, batch: DraftBatch) -> list[ContextNGram] | None:
        """The n-gram cache of each request to draft for."""
        if self._caches is None:
            return None
        if len(self._caches) > len(step.active):
            self._caches.forget(step.active)
        texts = zip(batch.requests, batch.lengths, strict=True)
        return self._caches.update(
            [step.names[request] for request in batch.requests],
            [step.token_ids[request, :length] for request, length in texts],
        )

    def _count(self, num_kept: list[int], verified: Sequence[int] | None) -> None:
        counters = self.counters
        tokens, calls = sum(num_kept), len(num_kept) - num_kept.count(0)
        counters.target_calls += calls
        counters.tokens += tokens
        if verified is not None:
            counters.verified_tokens += sum(verified)
            counters.accepted_tokens += tokens - calls  # one token of each request was no draft

    def _check_rows(self, hidden: Tensor, batch: DraftBatch) -> None:
        """Compares the target's argmax of each row with the last kept token."""
        logits = self._target.compute_logits(hidden)
        best = None if logits is None else logits.argmax(dim=-1).tolist()
        if best not in (None, batch.exact_tokens):
            raise AssertionError(
                f"rows of hidden states predict {best}; the requests kept {batch.exact_tokens}"
            )

    def _fail(self, error: Exception) -> None:
        """Logs the first error; called while it is handled."""
        if self._raises_errors:
            raise error
        if isinstance(error, UnsupportedError):
            self._is_stopped = True
            self._logger.error("lattice-bpd: %s; nothing is drafted from now on", error)
        elif self.counters.failures == 0:
            self._logger.exception(
                "lattice-bpd: drafting failed, which costs drafts of this step; later errors are "
                "counted, not logged"
            )
        self.counters.failures += 1

    def _log(self) -> None:
        """A line with the counts, if the last one is old enough and something happened since."""
        if not self._options.log_seconds or self.counters.steps == self._logged_steps:
            return
        now = time.monotonic()
        if now - self._logged_at >= self._options.log_seconds:
            self._logger.info(self.counters.describe())
            self._logged_steps, self._logged_at = self.counters.steps, now


def mask_invalid(slots: Any) -> Tensor | None:
    """Logits (B, H, V) with all tokens of requests masked that have NaN or +inf; None: no such."""
    if not isinstance(slots, Tensor):
        return None
    invalid = (slots.isnan() | slots.isposinf()).flatten(1).any(dim=1)
    if not bool(invalid.any()):
        return None
    return slots.masked_fill(invalid[:, None, None], -torch.inf)
