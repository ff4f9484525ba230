"""Comparison of decoded outputs with a model's own `generate`, for any architecture.

    from lattice_bpd.conformance import Checker, list_cases
    from lattice_bpd.conformance.cases import random_prompts
    verdicts = Checker(model, random_prompts(model.config.vocab_size)).run(list_cases())

`lattice-bpd check MODEL` is the same on the command line. Needs the extra `torch`.
"""

from lattice_bpd.conformance.cases import list_cases, list_quick_cases
from lattice_bpd.conformance.check import Checker

__all__ = ["Checker", "list_cases", "list_quick_cases"]
