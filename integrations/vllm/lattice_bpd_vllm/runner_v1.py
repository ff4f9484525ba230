"""Hands the hidden states of each step to the proposer: vLLM's model runner V1.

`custom_class` proposers get token ids only. One method of the runner has everything else, so it is
wrapped, in the worker's process and only after a `LatticeProposer` was made.
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any, NamedTuple

TESTED_VERSIONS = ("0.32.0",)
"""Releases of vLLM that the engine tests passed with."""

LOGGER = logging.getLogger("vllm.lattice_bpd")  # vLLM shows the loggers below "vllm"

_METHOD = "propose_draft_token_ids"
_PARAMETERS = (
    "self", "scheduler_output", "sampled_token_ids", "sampling_metadata", "hidden_states",
    "sample_hidden_states", "aux_hidden_states", "spec_decode_metadata",
)  # fmt: skip


class Step(NamedTuple):
    """What the runner knows after a step.

    Attributes:
        runner: vLLM's `GPUModelRunner` or a subclass.
        scheduler_output: its `num_spec_tokens_to_schedule` limits drafts.
        sampling_metadata: `all_greedy`.
        hidden: (rows, D) the hidden states that tokens were taken from.
        spec_decode_metadata: `num_draft_tokens` of each request; None: nothing was verified.
    """

    runner: Any
    scheduler_output: Any
    sampling_metadata: Any
    hidden: Any
    spec_decode_metadata: Any


def observe_steps(runner_class: type, version: str) -> None:
    """Wraps the runner's method; a second call changes nothing.

    Args:
        runner_class: `vllm.v1.worker.gpu_model_runner.GPUModelRunner`. The method looks up
            `drafter.observe_step(Step)` of its runner, and calls it before the original.
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
        spec_decode_metadata: Any, *args: Any, **kwargs: Any,
    ) -> Any:  # fmt: skip
        observe = getattr(self.drafter, "observe_step", None)
        if observe is not None:
            observe(
                Step(
                    self, scheduler_output, sampling_metadata, sample_hidden_states,
                    spec_decode_metadata,
                )
            )  # fmt: skip
        return method(
            self, scheduler_output, sampled_token_ids, sampling_metadata, hidden_states,
            sample_hidden_states, aux_hidden_states, spec_decode_metadata, *args, **kwargs,
        )  # fmt: skip

    observed._observed_by_lattice_bpd = True  # type: ignore[attr-defined]
    setattr(runner_class, _METHOD, observed)


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
