"""The public names, their signatures, and what importing the package does not import."""

import inspect
import subprocess
import sys
from typing import Any

import pytest

import lattice_bpd
from lattice_bpd import Drafts, NGramLM, SausageLattice, rescore_lattice

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
    assert line.startswith(f"ImportError: {module}: the package {package!r} is not installed; ")
    assert line.endswith("pip install 'lattice-bpd[torch]'")


def test_all_names_exist() -> None:
    expected = {"Drafts", "FormatError", "NGramLM", "SausageLattice", "rescore_lattice"}
    assert expected <= set(lattice_bpd.__all__)
    assert list(lattice_bpd.__all__) == sorted(set(lattice_bpd.__all__))
    for name in lattice_bpd.__all__:
        assert getattr(lattice_bpd, name) is not None


def parameters(function: Any) -> tuple[list[str], dict[str, Any]]:
    """(positional names, keyword-only names with their defaults)."""
    positional, keywords = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[name] = parameter.default
        else:
            positional.append(name)
    return positional, keywords


def test_signature_of_rescore_lattice() -> None:
    positional, keywords = parameters(rescore_lattice)
    assert positional == ["head_logits", "context", "lm"]
    documented = {"top_k": 16, "num_drafts": 16, "alpha": 0.5, "engine": "auto", "bos": True}
    assert documented.items() <= keywords.items()


@pytest.mark.parametrize(
    ("function", "positional", "keywords"),
    [
        (NGramLM.train, ["sequences", "order"],
         {"vocab_size", "min_counts", "katz_k", "bos_id", "eos_id", "unk_id"}),
        (NGramLM.load, ["path"], {"verify"}),
        (NGramLM.save, ["self", "path"], set()),
        (NGramLM.from_arpa, ["path", "vocab_size"], {"vocab", "bos_id", "eos_id", "unk_id"}),
        (NGramLM.to_arpa, ["self", "path"], {"vocab"}),
        (NGramLM.log_prob, ["self", "token_id", "context"], {"bos"}),
        (NGramLM.score, ["self", "token_ids"], {"bos", "eos"}),
        (SausageLattice.from_logits, ["head_logits", "top_k"], {"log_softmax"}),
    ],
)  # fmt: skip
def test_signatures(function: Any, positional: list[str], keywords: set[str]) -> None:
    found_positional, found_keywords = parameters(function)
    assert found_positional == positional
    assert keywords <= set(found_keywords)


def test_everything_public_is_documented() -> None:
    for owner in (NGramLM, SausageLattice, Drafts, rescore_lattice):
        assert inspect.getdoc(owner)
        for name, member in vars(owner).items() if inspect.isclass(owner) else ():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(getattr(owner, name)), f"{owner.__name__}.{name}"
