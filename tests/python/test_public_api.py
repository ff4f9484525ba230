"""What importing the package does not import, and what names a missing extra."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "pywrapfst", "pynini", "transformers", "kenlm", "tokenizers", "safetensors"]


def test_working_with_numpy_imports_nothing_heavy() -> None:
    code = f"""
import sys, numpy as np, lattice_bpd as lb
lm = lb.NGramLM.train([[0, 1, 2]] * 9, 2, vocab_size=3)
lb.rescore_lattice(np.zeros((2, 3), np.float32), [0], lm, top_k=2)
repr(lb.SausageLattice.from_logits(np.zeros((2, 3), np.float32), top_k=2)); lm.score([0, 1])
print([m for m in {HEAVY} if m in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", ["torch", "transformers"])
@pytest.mark.parametrize("module", ["lattice_bpd.models", "lattice_bpd.decode"])
def test_what_needs_torch_names_the_extra(module: str, package: str) -> None:
    pytest.importorskip("torch")
    code = f"import sys; sys.modules[{package!r}] = None; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith(f"ImportError: lattice_bpd: the package {package!r} is not installed; ")
    assert line.endswith("pip install 'lattice-bpd[torch]'")
