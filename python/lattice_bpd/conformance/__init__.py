"""Comparison of decoded outputs with a model's own `generate`, for any architecture.

    from lattice_bpd.conformance import Checker, list_cases, random_prompts
    verdicts = Checker(model, random_prompts(model.config.vocab_size)).run(list_cases())

`lattice-bpd check MODEL` is the same on the command line. Needs the extra `torch`.
"""

from lattice_bpd.conformance.cases import (
    Case,
    Reference,
    ReferenceText,
    find_class,
    list_cases,
    list_quick_cases,
    random_prompts,
    text_prompts,
)
from lattice_bpd.conformance.check import FAILURES, OUTCOMES, Checker, Verdict

__all__ = [
    "FAILURES",
    "OUTCOMES",
    "Case",
    "Checker",
    "Reference",
    "ReferenceText",
    "Verdict",
    "find_class",
    "list_cases",
    "list_quick_cases",
    "random_prompts",
    "text_prompts",
]
