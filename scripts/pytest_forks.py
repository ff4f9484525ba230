"""Runs pytest in forks of one process that has already imported the slow dependencies.

Reads a JSON object per line on stdin: `arguments` of pytest, `cpu_limit` and `clock_limit` in
seconds, 0 for none. Answers with one on stdout: `status` (pytest's exit status, or the negative
number of the signal that ended it: SIGXCPU or SIGKILL at a limit) and `output`.
The package under test is imported in the forks only, so it may change between two lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

SLOW = ("torch", "safetensors.torch", "tokenizers", "numpy", "pytest")
MODELS = ("GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Gemma2ForCausalLM",
          "T5ForConditionalGeneration", "GenerationConfig", "LogitsProcessorList")  # fmt: skip


# pytest warns of plugins that it can no longer instrument; the project makes errors of warnings.
ALREADY_IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


def import_slow_modules() -> None:
    """Import what tests use, as far as it is installed."""
    import importlib

    for name in SLOW:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    with contextlib.suppress(ImportError):
        transformers: Any = importlib.import_module("transformers")
        for name in MODELS:
            getattr(transformers, name)


def run_fork(arguments: list[str], cpu_limit: int, clock_limit: int) -> dict[str, Any]:
    """One pytest run in a process group of its own."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            if cpu_limit:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, cpu_limit + 5))
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            import pytest

            status = 3
            try:
                status = int(pytest.main([*ALREADY_IMPORTED, *arguments]))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        deadline, done = time.monotonic() + clock_limit, 0
        while not done:
            time.sleep(0.05)
            if clock_limit and time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a test left running
        output.seek(0)
        return {"status": status, "output": output.read().decode(errors="replace")}


def main() -> None:
    """Answer lines until stdin ends."""
    del sys.path[0]  # the folder of this script
    answers = os.fdopen(os.dup(1), "w")
    import_slow_modules()
    for line in sys.stdin:
        request = json.loads(line)
        json.dump(run_fork(**request), answers)
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
