"""Engines of vLLM, each in a process of its own; run by scripts/test_vllm.sh."""

from __future__ import annotations

import json
import os
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine lives in the test's process
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"),
    OMP_NUM_THREADS="1",
)

import pytest
import vllm

FOLDER = Path(os.environ["LATTICE_BPD_VLLM_FOLDER"])
SPECULATIVE = {"method": "custom_class", "model": "lattice_bpd_vllm.LatticeProposer"}


class Engine:
    """vLLM's `LLM` on the stories model, with our proposer or without."""

    def __init__(self, options: dict[str, Any] | None, **settings: Any) -> None:
        speculative = settings.pop("speculative", {})
        if options is not None:
            chosen = {"directory": str(FOLDER / "drafter"), "check": True, "log_seconds": 0}
            settings["additional_config"] = {"lattice_bpd": {**chosen, **options}}
            settings["speculative_config"] = {
                **SPECULATIVE, "num_speculative_tokens": 8, **speculative,
            }  # fmt: skip
        defaults = {"max_model_len": 256, "max_num_seqs": 16, "enforce_eager": True}
        settings = {**defaults, "dtype": "float32", **settings}
        self.llm = vllm.LLM(str(FOLDER / "target"), seed=0, disable_log_stats=False, **settings)

    @property
    def runner(self) -> Any:
        return self.llm.llm_engine.model_executor.driver_worker.worker.model_runner

    @property
    def counters(self) -> dict[str, Any]:
        return dict(vars(self.runner.drafter.counters))

    def metric(self, name: str) -> float:
        """One of vLLM's own counters."""
        return sum(one.value for one in self.llm.get_metrics() if one.name == name)

    def generate(self, prompts: list[list[int]], load: int = 16, **params: Any) -> list[Any]:
        """`RequestOutput`s, `load` requests at a time; `params` may be a list for each prompt."""
        sampling = params.pop("sampling", None)
        params = {"temperature": 0.0, "max_tokens": 64, "ignore_eos": True, **params}
        each = sampling or [vllm.SamplingParams(**params)] * len(prompts)
        results = []
        for start in range(0, len(prompts), load):
            stop = start + load
            batch = [{"prompt_token_ids": prompt} for prompt in prompts[start:stop]]
            results += self.llm.generate(batch, each[start:stop], use_tqdm=False)
        return results

    def tokens(self, *args: Any, **params: Any) -> list[list[int]]:
        return ids(self.generate(*args, **params))


def ids(results: list[Any]) -> list[list[int]]:
    """The token ids of each request."""
    return [list(result.outputs[0].token_ids) for result in results]


def in_child(function: Callable[..., Any], *args: Any) -> Any:
    """What a function returns in a forked process: vLLM allows one engine in each."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer = (True, function(*args))
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        pytest.fail(f"the engine's process ended with status {status}")
    succeeded, value = pickle.loads(data)  # noqa: S301
    if not succeeded:
        pytest.fail(f"in the engine's process:\n{value}", pytrace=False)
    return value


@pytest.fixture(scope="session")
def expected() -> dict[str, Any]:
    """Prompts, greedy outputs and calls of this library's own loop."""
    return json.loads((FOLDER / "expected.json").read_text())
