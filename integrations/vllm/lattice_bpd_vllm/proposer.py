"""`LatticeProposer`: a proposer class for vLLM's drafting method `custom_class`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from lattice_bpd_vllm.batch import EngineStep
from lattice_bpd_vllm.counters import DraftCounters
from lattice_bpd_vllm.cpu_layers import use_core_layers
from lattice_bpd_vllm.files import load_parts, reads_layers
from lattice_bpd_vllm.options import CONFIG_KEY, DrafterOptions
from lattice_bpd_vllm.predictions import StepPredictions
from lattice_bpd_vllm.runner_v1 import (
    LOGGER,
    RunnerStep,
    aux_layers_of,
    observe_logits,
    observe_steps,
    read_step,
    request_aux_states,
)
from lattice_bpd_vllm.sampling import expansion_state, repair_expansion
from lattice_bpd_vllm.step_drafter import StepDrafter, UnsupportedError
from lattice_bpd_vllm.support import check_adapters, check_block_drafter, read_target

_SKIPPED = {
    "incorrect": (
        "lattice-bpd: this CPU build of vLLM %s verifies drafts of sampled requests incorrectly "
        "(expand_batch_to_tokens), so batches that sample are not drafted. The function is "
        "replaced in this process, for drafts that are verified when a sampled request joins"
    ),
    "absent": (
        "lattice-bpd: whether this CPU build of vLLM %s verifies drafts of sampled requests "
        "correctly is unknown, since it has no expand_batch_to_tokens as in the tested releases; "
        "batches that sample are not drafted"
    ),
}


class LatticeProposer:
    """Drafts for vLLM from the text so far, n-gram LMs, and draft heads or a block drafter.

    speculative_config={"method": "custom_class", "model": "lattice_bpd_vllm.LatticeProposer",
    "num_speculative_tokens": H}, and the options of `DrafterOptions` in
    additional_config={"lattice_bpd": {..}}. vLLM makes it in each worker.

    Args:
        vllm_config: vLLM's configuration.

    Raises:
        ImportError: a release of vLLM that this version cannot work with.
        TypeError: options of wrong types.
        ValueError: options out of range, or a configuration of vLLM that is not supported.
    """

    def __init__(self, vllm_config: Any) -> None:
        additional = vllm_config.additional_config
        given = additional.get(CONFIG_KEY) if isinstance(additional, dict) else None
        self.options = DrafterOptions.from_mapping(given)
        self._config = vllm_config
        self._version: str = importlib.import_module("vllm").__version__
        self._runner_class = importlib.import_module(
            "vllm.v1.worker.gpu_model_runner"
        ).GPUModelRunner
        observe_steps(self._runner_class, self._version)
        self._step: RunnerStep | None = None
        self._predictions: StepPredictions | None = None
        self._sampling, self._said_skipped = "correct", False

    def load_model(self, target: Any) -> None:
        """Reads heads and LMs; called after the weights of the target are loaded.

        Raises:
            OSError: a file cannot be read.
            FormatError: a file is missing or damaged.
            ValueError: heads or LM of another target, or a target that is not supported.
            ImportError: a block drafter, and a release of vLLM that cannot serve it.
        """
        config, parts = self._config, load_parts(self.options)
        if parts.heads is not None:
            check_adapters(config)
        if reads_layers(parts.heads):
            check_block_drafter(config, target)
            request_aux_states(self._runner_class, self._version)
        # Where the target's logits are collected from several processes, one that gave up would
        # leave the others waiting for it.
        self._drafter = StepDrafter(
            parts,
            read_target(target, config.model_config),
            self.options,
            int(config.speculative_config.num_speculative_tokens),
            LOGGER,
            is_sharded=config.parallel_config.tensor_parallel_size > 1,
            has_logits=observe_logits(self._runner_class),
        )
        self._layers = self._drafter.source.layers
        if self._layers:
            self._note("compiled_target_layers", list(self._layers))
        if next(target.parameters()).device.type == "cpu":
            self._check_sampling()
            if count := use_core_layers(target):
                self._note("linear_layers_by_core", count)
                if self.options.log_seconds:
                    LOGGER.info("lattice-bpd: %d linear layers by the core", count)

    def _note(self, key: str, value: Any) -> None:
        """Puts what differs in a compiled target where vLLM's cache of these reads it."""
        if isinstance(self._config.additional_config, dict):
            self._config.additional_config[key] = value

    @property
    def counters(self) -> DraftCounters:
        """What was drafted so far."""
        return self._drafter.counters

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Layers of the target that a block drafter reads, in vLLM's numbers."""
        num_layers = self._config.model_config.get_total_num_hidden_layers()
        return aux_layers_of(self._layers, num_layers)

    def observe_step(self, step: RunnerStep) -> None:
        """Called by the wrapped runner before each `propose`."""
        self._step = step

    def observe_logits(self, logits: Any, draft_token_ids: Any) -> None:
        """Called by the wrapped runner before it takes tokens, which may change the logits."""
        self._predictions = self._drafter.predict(logits, draft_token_ids)

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
            once; it is raised with the option `check`, and where tensor_parallel_size is above 1.
        """
        return self._drafter.propose(
            sampled_token_ids,
            lambda: self._read(sampled_token_ids, num_tokens_no_spec, token_ids_cpu),
        )

    def _read(
        self,
        kept: Sequence[Sequence[int]],
        num_tokens: npt.NDArray[Any],
        token_ids: npt.NDArray[Any],
    ) -> EngineStep:
        """The step of which `observe_step` was told."""
        step, self._step = self._step, None
        if step is None:
            raise UnsupportedError(
                "propose was called without hidden states; expected a call by the wrapped model "
                "runner V1; its subclass overrides propose_draft_token_ids"
            )
        try:
            read = read_step(
                step, kept, num_tokens, token_ids, self._layers,
                with_tenants=self.options.store is not None,
            )  # fmt: skip
        except AttributeError as error:
            raise UnsupportedError(
                f"the model runner of vLLM {self._version} differs from that of tested releases: "
                f"{error}"
            ) from error
        read = read._replace(predictions=self._predictions)
        if self._sampling == "correct" or step.sampling_metadata.all_greedy:
            return read
        if not self._said_skipped:
            LOGGER.warning(_SKIPPED[self._sampling], self._version)
            self._said_skipped = True
        return read._replace(max_draft_tokens=0)

    def _check_sampling(self) -> None:
        sampler = importlib.import_module("vllm.v1.sample.rejection_sampler")
        if self._sampling == "correct":  # not repaired by an earlier call
            self._sampling = expansion_state(sampler)
        if self._sampling == "incorrect":
            repair_expansion(sampler)
