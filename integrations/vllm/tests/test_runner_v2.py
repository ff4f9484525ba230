"""Model runner V2, whose Triton kernels run in the interpreter: outputs are those of plain vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import FOLDER


def run(way: str) -> dict[str, Any]:
    script = Path(__file__).with_name("run_runner_v2.py")
    command = [sys.executable, str(script), way]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return run("plain")


@pytest.mark.parametrize("options", [{}, {"lm": str(FOLDER / "drafter" / "stories.lm")}])
def test_outputs_are_those_of_plain_vllm(options: dict[str, Any], plain: dict[str, Any]) -> None:
    drafted = run(json.dumps({**options, "log_seconds": 0, "check": True}))
    assert drafted["speculator"] == "LatticeSpeculator"
    assert drafted["runner"] == "vllm.v1.worker.gpu.model_runner"
    for name in ("plain", "mixed", "long"):
        assert drafted[name] == plain[name]
    assert drafted["preemptions"] > 0
    counters = drafted["counters"]
    assert counters["failures"] == 0
    # what vLLM verified is what was drafted, or the last token again, which is rejected
    assert 0 < drafted["accepted"] <= counters["accepted_tokens"]
    least = 1.5 if options else 1.05
    assert counters["tokens"] > least * counters["target_calls"]


def test_without_options_of_ours_vllm_drafts_itself() -> None:
    assert run("ngram")["speculator"] == "NgramGPUSpeculator"
