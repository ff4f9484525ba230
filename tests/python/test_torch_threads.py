"""Where torch computed the logits on the CPU, the core works on torch's threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

# Logits of many rows, so that the core finds work for two threads.
CODE = """
import os
import numpy as np
import torch
from lattice_bpd.lattice.logits import select_top_k

def select(logits, threads=2):
    return select_top_k(logits, 4, log_softmax=False, where="test", threads=threads)

logits = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 8, 500)).astype(np.float32))
wanted = select(logits.numpy(), 1)
torch.set_num_threads(2)
torch.randn(600, 600) @ torch.randn(600, 600)
before = os.listdir("/proc/self/task")
found = select(logits)
assert len(os.listdir("/proc/self/task")) == len(before)
assert (found.token_ids == wanted.token_ids).all()
assert (found.scores == wanted.scores).all()
child = os.fork()  # does not wait for threads that it lacks
if child == 0:
    import signal
    signal.alarm(60)
    os._exit(0 if (select(logits).token_ids == wanted.token_ids).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_torch_logits_start_no_further_thread():
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
