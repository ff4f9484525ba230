"""Where torch computed the logits on the CPU, the core works on torch's threads."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")

# Logits of many rows, so that the core finds work for two threads, and the threads of the process.
PRELUDE = """
import os
import numpy as np
import torch
from lattice_bpd.lattice.logits import select_top_k

def count():
    return len(os.listdir("/proc/self/task"))

def select(logits, threads=2):
    return select_top_k(logits, 4, log_softmax=False, where="test", threads=threads)

logits = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 8, 500)).astype(np.float32))
wanted = select(logits.numpy(), 1)
torch.set_num_threads(2)
torch.randn(600, 600) @ torch.randn(600, 600)
"""


def run(code: str) -> str:
    """What code prints in a process of its own that may use two threads."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@LINUX
def test_torch_logits_start_no_further_thread():
    printed = run("""
        before = count()
        found = select(logits)
        print(count() - before)
        assert (found.token_ids == wanted.token_ids).all()
        assert (found.scores == wanted.scores).all()
    """)
    assert printed == "0"


def test_a_forked_child_does_not_wait_for_threads_that_it_lacks():
    printed = run("""
        select(logits)
        child = os.fork()
        if child == 0:
            import signal
            signal.alarm(60)  # a hang is a failure
            os._exit(0 if (select(logits).token_ids == wanted.token_ids).all() else 1)
        print(os.waitpid(child, 0)[1])
    """)
    assert printed == "0"


def test_the_first_bad_row_is_named():
    printed = run("""
        logits[3, 5, 7] = logits[40, 0, 0] = float("nan")
        try:
            select(logits)
        except ValueError as error:
            print(error)
    """)
    assert "NaN at row 29, token 7" in printed
