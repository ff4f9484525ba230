"""`LatticeProposer`: a proposer class for vLLM's drafting method `custom_class`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch

from lattice_bpd.lm.context import ContextNGram
from lattice_bpd_vllm.batch import DraftBatch, Texts, select_requests
from lattice_bpd_vllm.counters import DraftCounters
from lattice_bpd_vllm.drafting import LatticeDrafter
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.options import CONFIG_KEY, DrafterOptions
from lattice_bpd_vllm.request_caches import RequestCaches
from lattice_bpd_vllm.rows import rows_of_last_tokens, take_rows
from lattice_bpd_vllm.runner_v1 import LOGGER, Step, observe_steps, request_aux_states
from lattice_bpd_vllm.sampling import expansion_is_correct, repair_expansion
from lattice_bpd_vllm.slot_sources import make_source

_SKIPPED = (
    "lattice-bpd: this CPU build of vLLM %s verifies drafts of sampled requests incorrectly "
    "(expand_batch_to_tokens), so batches that sample are not drafted. The function is replaced in "
    "this process, for drafts that are verified when a sampled request joins"
)


class LatticeProposer:
    """Drafts for vLLM with draft heads or a block drafter, lattice and n-gram LM.

    speculative_config={"method": "custom_class", "model": "lattice_bpd_vllm.LatticeProposer",
    "num_speculative_tokens": H}, and the options of `DrafterOptions` in
    additional_config={"lattice_bpd": {..}}. vLLM makes it in each worker.

    Args:
        vllm_config: vLLM's configuration.

    Attributes:
        counters: what was drafted so far.

    Raises:
        ImportError: a release of vLLM that this version cannot work with.
        TypeError: options of wrong types.
        ValueError: options out of range.
    """

    def __init__(self, vllm_config: Any) -> None:
        additional = vllm_config.additional_config
        given = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
        self.options = DrafterOptions.from_mapping(given)
        self.counters = DraftCounters()
        self._caches: RequestCaches | None = None
        self._model_config = vllm_config.model_config
        self._num_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self._version: str = importlib.import_module("vllm").__version__
        self._runner_class = importlib.import_module(
            "vllm.v1.worker.gpu_model_runner"
        ).GPUModelRunner
        observe_steps(self._runner_class, self._version)
        self._step: Step | None = None
        self._skips_sampling = self._said_skipped = False
        self._logged_steps, self._logged_at = 0, time.monotonic()

    def load_model(self, target: Any) -> None:
        """Reads heads and LM; called after the weights of the target are loaded.

        Raises:
            OSError: a file cannot be read.
            FormatError: a file is missing or damaged.
            ValueError: heads or LM of another target.
            ImportError: a block drafter, and a release of vLLM that cannot serve it.
        """
        parts = load_parts(self.options)
        self._compute_logits = target.compute_logits
        self._source = make_source(parts, target, self._model_config, self._num_tokens)
        self._drafter = LatticeDrafter(
            parts.lm, parts.config, parts.draft, self.options.min_prob, self.options.threads
        )
        columns, order = self._model_config.get_vocab_size(), parts.config.ngram_cache
        self._caches = RequestCaches(columns, order, parts.lm) if order else None
        if self.aux_layers:
            request_aux_states(self._runner_class, self._version)
        if next(target.parameters()).device.type == "cpu":
            self._check_sampling()

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Layers of the target that a block drafter reads, in vLLM's numbers."""
        return self._source.aux_layers

    def observe_step(self, step: Step) -> None:
        """Called by the wrapped runner before each `propose`."""
        self._step = step
        # vLLM calls no proposer if one text is within num_speculative_tokens of this length. Drafts
        # are cut to each request's own limit here, so there is no need for that.
        runner = step.runner
        runner.effective_drafter_max_model_len = runner.max_model_len + self._num_tokens + 1

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: npt.NDArray[Any],
        token_ids_cpu: npt.NDArray[Any],
        slot_mappings: Any = None,  # noqa: ARG002
    ) -> list[list[int]]:
        """A draft for each request of the batch.

        Args:
            sampled_token_ids: tokens that each request kept in this step.
            num_tokens_no_spec: (requests,) lengths of the texts, those tokens included.
            token_ids_cpu: (requests, max_model_len) texts.
            slot_mappings: not used.

        Returns:
            Lists of 0 to num_speculative_tokens ids. All are empty after an error, which is logged
            once; with the option `check` it is raised.
        """
        start = time.perf_counter()
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        counters = self.counters
        counters.steps += 1
        try:
            self._draft(drafts, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            if self.options.check:
                raise
            if counters.failures == 0:
                LOGGER.exception(
                    "lattice-bpd: drafting failed; this step and others like it verify no drafts"
                )
            counters.failures += 1
            drafts = [[] for _ in sampled_token_ids]
        lengths = [len(draft) for draft in drafts if draft]
        counters.drafts += len(lengths)
        counters.draft_tokens += sum(lengths)
        counters.seconds += time.perf_counter() - start
        self._log()
        return drafts

    def _draft(
        self,
        drafts: list[list[int]],
        kept: Sequence[Sequence[int]],
        num_tokens: npt.NDArray[Any],
        token_ids: npt.NDArray[Any],
    ) -> None:
        """Fills `drafts`."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError(
                "lattice-bpd: propose was called without hidden states; expected a call by the "
                "wrapped model runner V1; its subclass overrides propose_draft_token_ids"
            )
        metadata = step.spec_decode_metadata
        verified = None if metadata is None else metadata.num_draft_tokens
        self._count(kept, verified)
        self._source.store(step)
        if self._skips_sampling and not step.sampling_metadata.all_greedy:
            self._say_skipped()
            return
        batch = self._select(step, kept, num_tokens, token_ids)
        if not batch.requests:
            return
        rows = rows_of_last_tokens(batch.requests, [len(tokens) for tokens in kept], verified)
        hidden = take_rows(step.hidden, rows)
        if self.options.check:
            self._check_rows(hidden, batch)
        slots = self._source.read(batch, hidden)
        if slots is None:
            return
        caches = self._update_caches(step, batch, token_ids)
        chains = self._drafter.propose(slots, batch.contexts, batch.max_lengths, caches)
        for request, chain in zip(batch.requests, chains, strict=True):
            drafts[request] = chain

    def _select(
        self,
        step: Step,
        kept: Sequence[Sequence[int]],
        num_tokens: npt.NDArray[Any],
        token_ids: npt.NDArray[Any],
    ) -> DraftBatch:
        """The requests to draft for."""
        runner = step.runner
        requests, input_batch = runner.requests, runner.input_batch
        if runner.enable_prompt_embeds:  # a prompt of embeddings has no ids
            has_ids = input_batch.is_token_ids
            kept = [
                tokens if has_ids[request, : num_tokens[request]].all() else ()
                for request, tokens in enumerate(kept)
            ]
        texts = Texts(
            token_ids,
            num_tokens,
            input_batch.num_prompt_tokens,
            [requests[name].sampling_params.max_tokens for name in input_batch.req_ids],
            runner.max_model_len,
        )
        most = min(self._source.num_slots, step.scheduler_output.num_spec_tokens_to_schedule)
        return select_requests(kept, texts, most, self._drafter.context_length)

    def _update_caches(
        self, step: Step, batch: DraftBatch, token_ids: npt.NDArray[Any]
    ) -> list[ContextNGram] | None:
        """The n-gram cache of each request to draft for."""
        if self._caches is None:
            return None
        if len(self._caches) > len(step.runner.requests):
            self._caches.forget(step.runner.requests)
        names = step.runner.input_batch.req_ids
        texts = zip(batch.requests, batch.lengths, strict=True)
        return self._caches.update(
            [names[request] for request in batch.requests],
            [token_ids[request, :length] for request, length in texts],
        )

    def _count(self, kept: Sequence[Sequence[int]], verified: Sequence[int] | None) -> None:
        counters = self.counters
        counters.target_calls += sum(1 for tokens in kept if len(tokens))
        counters.tokens += sum(map(len, kept))
        if verified is None:
            return
        counters.verified_tokens += sum(verified)
        counters.accepted_tokens += sum(
            len(tokens) - 1 for tokens, count in zip(kept, verified, strict=True)
            if count and len(tokens)
        )  # fmt: skip

    def _check_sampling(self) -> None:
        sampler = importlib.import_module("vllm.v1.sample.rejection_sampler")
        if not expansion_is_correct(sampler):
            self._skips_sampling = True
            repair_expansion(sampler)

    def _say_skipped(self) -> None:
        if not self._said_skipped:
            LOGGER.warning(_SKIPPED, self._version)
            self._said_skipped = True

    def _check_rows(self, hidden: torch.Tensor, batch: DraftBatch) -> None:
        """Compares the target's argmax of each row with the last kept token."""
        best = self._compute_logits(hidden).argmax(dim=-1).tolist()
        if best != batch.exact_tokens:
            raise AssertionError(
                f"lattice-bpd: rows of hidden states predict {best}; the requests kept "
                f"{batch.exact_tokens}"
            )

    def _log(self) -> None:
        """A line with the counts, if the last one is old enough and something happened since."""
        if not self.options.log_seconds or self.counters.steps == self._logged_steps:
            return
        now = time.monotonic()
        if now - self._logged_at >= self.options.log_seconds:
            LOGGER.info(self.counters.describe())
            self._logged_steps, self._logged_at = self.counters.steps, now
