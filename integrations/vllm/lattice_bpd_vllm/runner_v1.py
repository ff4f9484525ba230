"""Hands the hidden states of each step to the proposer: vLLM's model runner V1.

`custom_class` proposers get token ids only. One method of the runner has everything else, so it is
wrapped, in the worker's process and only after a `LatticeProposer` was made.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd_vllm.batch import EngineStep
from lattice_bpd_vllm.block_lattices import CacheLayout
from lattice_bpd_vllm.served_texts import tenant_of
from lattice_bpd_vllm.step_drafter import UnsupportedError

TESTED_VERSIONS = ("0.32.0", "0.33.0")
"""Releases of vLLM that the engine tests passed with; see Versions in docs/serve.md."""

LOGGER = logging.getLogger("vllm.lattice_bpd")  # vLLM shows the loggers below "vllm"

_METHOD, _SETUP = "propose_draft_token_ids", "_setup_eagle3_aux_hidden_state_outputs"
_SAMPLE, _SAMPLE_PARAMETERS = "_sample", ("self", "logits", "spec_decode_metadata")
_PARAMETERS = (
    "self", "scheduler_output", "sampled_token_ids", "sampling_metadata", "hidden_states",
    "sample_hidden_states", "aux_hidden_states", "spec_decode_metadata", "common_attn_metadata",
)  # fmt: skip


class RunnerStep(NamedTuple):
    """What the runner knows after a step.

    Attributes:
        runner: vLLM's `GPUModelRunner` or a subclass.
        scheduler_output: its `num_spec_tokens_to_schedule` limits drafts.
        sampling_metadata: `all_greedy`.
        hidden: (rows, D) the hidden states that tokens were taken from.
        spec_decode_metadata: `num_draft_tokens` of each request; None: nothing was verified.
        last_hidden: (N or more, D) the last hidden states of all N tokens of the step.
        aux_hidden: those of the layers that `request_aux_states` set, ascending; None: no layers.
        attention: vLLM's `CommonAttentionMetadata` of the first group of its KV cache.
    """

    runner: Any
    scheduler_output: Any
    sampling_metadata: Any
    hidden: Any
    spec_decode_metadata: Any
    last_hidden: Any = None
    aux_hidden: Any = None
    attention: Any = None


def observe_steps(runner_class: type, version: str) -> None:
    """Wraps the runner's method; a second call changes nothing.

    Args:
        runner_class: `vllm.v1.worker.gpu_model_runner.GPUModelRunner`. The method looks up
            `drafter.observe_step(RunnerStep)` of its runner, and calls it before the original.
        version: of vLLM.

    Raises:
        ImportError: a release whose method has other parameters.
    """
    method: Any = getattr(runner_class, _METHOD, None)
    if getattr(method, "_observed_by_lattice_bpd", False):
        return
    check_version(method, version)

    @functools.wraps(method)
    def observed(
        self: Any, scheduler_output: Any, sampled_token_ids: Any, sampling_metadata: Any,
        hidden_states: Any, sample_hidden_states: Any, aux_hidden_states: Any,
        spec_decode_metadata: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        observe = getattr(self.drafter, "observe_step", None)
        if observe is not None:
            observe(
                RunnerStep(
                    self, scheduler_output, sampling_metadata, sample_hidden_states,
                    spec_decode_metadata, hidden_states, aux_hidden_states, common_attn_metadata,
                )
            )  # fmt: skip
        return method(
            self, scheduler_output, sampled_token_ids, sampling_metadata, hidden_states,
            sample_hidden_states, aux_hidden_states, spec_decode_metadata, common_attn_metadata,
            *args, **kwargs,
        )  # fmt: skip

    observed._observed_by_lattice_bpd = True  # type: ignore[attr-defined]
    setattr(runner_class, _METHOD, observed)


def observe_logits(runner_class: type) -> bool:
    """Wraps the method that takes tokens from a step's logits; a second call changes nothing.

    Args:
        runner_class: see `observe_steps`. The method calls `drafter.observe_logits(logits,
            draft_token_ids)` of its runner before the original: (rows, V) as the model computed
            them, masked where a grammar masks them, and a tensor (n,), or None without drafts.

    Returns:
        Whether this release of vLLM has such a method.
    """
    method: Any = getattr(runner_class, _SAMPLE, None)
    if getattr(method, "_observed_by_lattice_bpd", False):
        return True
    if method is None or tuple(inspect.signature(method).parameters) != _SAMPLE_PARAMETERS:
        return False

    @functools.wraps(method)
    def observed(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
        observe = getattr(self.drafter, "observe_logits", None)
        if observe is not None and logits is not None:
            observe(logits, getattr(spec_decode_metadata, "draft_token_ids", None))
        return method(self, logits, spec_decode_metadata)

    observed._observed_by_lattice_bpd = True  # type: ignore[attr-defined]
    setattr(runner_class, _SAMPLE, observed)
    return True


def request_aux_states(runner_class: type, version: str) -> None:
    """Makes runners return the hidden states of the layers `drafter.aux_layers`.

    Called while the drafter is loaded: the runner sets its layers up afterwards. A second call
    changes nothing.

    Args:
        runner_class: see `observe_steps`.
        version: of vLLM.

    Raises:
        ImportError: a release whose runner has no such method.
    """
    method: Any = getattr(runner_class, _SETUP, None)
    if getattr(method, "_wrapped_by_lattice_bpd", False):
        return
    if method is None or tuple(inspect.signature(method).parameters) != ("self",):
        raise ImportError(
            f"lattice-bpd-vllm: block drafters are not supported with vLLM {version}, whose model "
            f"runner has no method {_SETUP}(self); tested: {', '.join(TESTED_VERSIONS)}"
        )

    @functools.wraps(method)
    def with_layers(self: Any) -> Any:
        layers = getattr(self.drafter, "aux_layers", ())
        if not layers:
            return method(self)
        self.use_aux_hidden_state_outputs = True
        method(self)  # checks that the model can, and sets layers of its own
        return self.model.set_aux_hidden_state_layers(layers)

    with_layers._wrapped_by_lattice_bpd = True  # type: ignore[attr-defined]
    setattr(runner_class, _SETUP, with_layers)


def read_step(
    step: RunnerStep,
    kept: Sequence[Sequence[int]],
    num_tokens: npt.NDArray[Any],
    token_ids: npt.NDArray[Any],
    layers: tuple[int, ...],
    *,
    with_tenants: bool = False,
) -> EngineStep:
    """The step in the form that drafters of any engine read.

    Args:
        step: of the runner.
        kept: see `EngineStep`, as for the next two.
        num_tokens: see there.
        token_ids: see there.
        layers: of the target whose hidden states are read; may be empty.
        with_tenants: whether to read whom requests are of.

    Raises:
        UnsupportedError: a KV cache that does not keep all tokens of a text.
        AttributeError: a runner of another release.
    """
    runner, scheduled = step.runner, step.scheduler_output
    requests, batch = runner.requests, runner.input_batch
    # vLLM calls no proposer if one text is within num_speculative_tokens of this length. Drafts
    # are cut to each request's own limit here, so there is no need for that.
    runner.effective_drafter_max_model_len = runner.max_model_len + runner.num_spec_tokens + 1
    max_tokens = [requests[name].sampling_params.max_tokens for name in batch.req_ids]
    if runner.enable_prompt_embeds:  # a prompt of embeddings has no ids
        for request, end in enumerate(num_tokens[: len(max_tokens)].tolist()):
            if not batch.is_token_ids[request, :end].all():
                max_tokens[request] = 0
    metadata = step.spec_decode_metadata
    return EngineStep(
        kept,
        token_ids,
        num_tokens,
        batch.num_prompt_tokens,
        max_tokens,
        runner.max_model_len,
        scheduled.num_spec_tokens_to_schedule,
        step.hidden,
        None if metadata is None else metadata.num_draft_tokens,
        batch.req_ids,
        requests,
        read_features(step, layers) if layers else None,
        read_layout(step) if layers else None,
        [tenant_of(requests[name]) for name in batch.req_ids] if with_tenants else None,
    )


def read_layout(step: RunnerStep) -> CacheLayout:
    """Where the tokens of a step are in the KV cache.

    Raises:
        UnsupportedError: a cache that does not keep all tokens of a text.
    """
    runner, attention = step.runner, step.attention
    spec = runner.kv_cache_config.kv_cache_groups[0].kv_cache_spec
    if "FullAttentionSpec" not in (kind.__name__ for kind in type(spec).__mro__):
        raise UnsupportedError(
            f"the first group of vLLM's KV cache is a {type(spec).__name__}; expected "
            "FullAttentionSpec, since a block drafter reads all tokens of a text; use draft heads"
        )
    requests = len(runner.input_batch.req_ids)
    return CacheLayout(
        attention.slot_mapping[: step.scheduler_output.total_num_scheduled_tokens].long(),
        attention.query_start_loc[: requests + 1].long(),
        attention.seq_lens[:requests].long(),
        attention.block_table_tensor,
        runner.input_batch.block_table[0].block_size,
        runner.kv_cache_config.num_blocks * spec.block_size,
    )


def read_features(step: RunnerStep, layers: tuple[int, ...]) -> Tensor:
    """The outputs of the target's layers as one tensor.

    The output of the last layer is that after the final norm, as transformers counts it.

    Args:
        step: with `aux_hidden` of `aux_layers_of(layers, num_layers)`.
        layers: from 0; -1 is the embedding.

    Returns:
        (N, n*D) float.
    """
    count = step.scheduler_output.total_num_scheduled_tokens
    num_layers = step.runner.model_config.get_total_num_hidden_layers()
    aux = dict(zip(aux_layers_of(layers, num_layers), step.aux_hidden or (), strict=True))
    aux[num_layers] = step.last_hidden
    return torch.cat([aux[layer + 1][:count] for layer in layers], dim=-1)


def aux_layers_of(layers: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    """vLLM's numbers of layers whose outputs it must return, ascending: 0 is the embedding."""
    return tuple(sorted({layer + 1 for layer in layers} - {num_layers}))


def check_version(method: Any, version: str) -> None:
    """Warns of an untested release of vLLM, and refuses one that cannot work.

    Raises:
        ImportError: the runner has no such method, or one with other parameters.
    """
    tested = ", ".join(TESTED_VERSIONS)
    if method is None:
        parameters: tuple[str, ...] = ()
    else:
        parameters = tuple(inspect.signature(method).parameters)
    if parameters[: len(_PARAMETERS)] != _PARAMETERS:
        raise ImportError(
            f"lattice-bpd-vllm: vLLM {version} is not supported, since {_METHOD} of its model "
            f"runner has the parameters ({', '.join(parameters)}); expected "
            f"({', '.join(_PARAMETERS)}, ..). Tested: {tested}. Install one of these, or a "
            "lattice-bpd-vllm for your release"
        )
    if version.split("+")[0] not in TESTED_VERSIONS:
        LOGGER.warning(
            "lattice-bpd-vllm: vLLM %s was not tested; tested: %s. The interface fits, so drafting "
            "is tried",
            version,
            tested,
        )
