"""Comparison of decoded outputs with a model's own `generate`, for any architecture.

    from lattice_bpd.conformance import Checker, list_cases, random_prompts
    verdicts = Checker(model, random_prompts(model.config.vocab_size)).run(list_cases())

`lattice-bpd check MODEL` is the same on the command line. Needs the extra `torch`.
"""

from lattice_bpd.conformance.architectures import Architecture, find_class, list_architectures
from lattice_bpd.conformance.cases import Case, list_cases, list_quick_cases
from lattice_bpd.conformance.check import FAILURES, OUTCOMES, Checker, Verdict
from lattice_bpd.conformance.page import write_page
from lattice_bpd.conformance.prompts import random_prompts, text_prompts
from lattice_bpd.conformance.reference import Reference, ReferenceText
from lattice_bpd.conformance.shrink import shrink_config
from lattice_bpd.conformance.tiny_model import make_tiny_model
from lattice_bpd.conformance.zoo import ArchitectureResult, check_architecture, is_in_third

__all__ = [
    "FAILURES",
    "OUTCOMES",
    "Architecture",
    "ArchitectureResult",
    "Case",
    "Checker",
    "Reference",
    "ReferenceText",
    "Verdict",
    "check_architecture",
    "find_class",
    "is_in_third",
    "list_architectures",
    "list_cases",
    "list_quick_cases",
    "make_tiny_model",
    "random_prompts",
    "shrink_config",
    "text_prompts",
    "write_page",
]
