"""Greedy outputs of vLLM's model runner V2 on the CPU, as JSON, for test_runner_v2.py.

    python run_runner_v2.py ngram | plain | OPTIONS

OPTIONS: those of our drafter, as JSON. Without a GPU the kernels of this runner run in Triton's
interpreter, which lacks that of grammars: the CPU build has no Triton for CPUs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
os.environ.pop("VLLM_PLUGINS", None)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from triton.backends import Backend, backends


class _Driver:
    """What vLLM reads of a backend's driver."""

    @staticmethod
    def is_active() -> bool:
        return True


if not torch.cuda.is_available():
    backends["cpu"] = Backend(None, _Driver)

from scenes import SHORT, greedy, long_prompts, read_prompts  # noqa: E402

from conftest import Engine  # noqa: E402

DRAFTS = {"method": "ngram_gpu", "num_speculative_tokens": 4}


def decode(engine: Engine) -> dict[str, Any]:
    prompts = read_prompts()
    answer = {
        "plain": engine.tokens(prompts[:4], max_tokens=24),
        "mixed": engine.tokens(
            [prompt[: 2 + 7 * i] for i, prompt in enumerate(prompts[:6])],
            sampling=[greedy(max_tokens=1 + 7 * i) for i in range(6)],
        ),
        "long": engine.tokens(long_prompts(prompts)[:5], max_tokens=100),
        "preemptions": engine.metric("vllm:num_preemptions"),
        "accepted": engine.metric("vllm:spec_decode_num_accepted_tokens"),
    }
    counters = getattr(engine.runner.speculator, "counters", None)
    return {**answer, "counters": None if counters is None else vars(counters)}


def main() -> None:
    way, settings = sys.argv[1], {}
    if way != "plain":
        settings["speculative_config"] = {**DRAFTS, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    if way not in ("plain", "ngram"):
        settings["additional_config"] = {"lattice_bpd": json.loads(way)}
    # chunks of prompts, few blocks (preemption), texts up to the last position
    engine = Engine(
        None, max_model_len=SHORT, max_num_seqs=4, max_num_batched_tokens=40,
        num_gpu_blocks_override=7, enable_prefix_caching=True, block_size=32, **settings,
    )  # fmt: skip
    answer = {
        "runner": type(engine.runner).__mro__[1].__module__,
        "speculator": type(engine.runner.speculator).__name__,
    }
    if way != "ngram":  # vLLM's own kernel does not run in the interpreter
        answer |= decode(engine)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
