"""Checks of tiny models of all architectures of `transformers`."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from lattice_bpd.conformance.architectures import Architecture
from lattice_bpd.conformance.cases import Case, list_quick_cases
from lattice_bpd.conformance.check import Checker, Verdict
from lattice_bpd.conformance.overrides import NOT_BUILT
from lattice_bpd.conformance.prompts import random_prompts
from lattice_bpd.conformance.shrink import VOCAB
from lattice_bpd.conformance.tiny_model import make_tiny_model

THIRDS = 3


@dataclass(frozen=True)
class ArchitectureResult:
    """The verdicts of an architecture.

    Attributes:
        architecture: the architecture.
        verdicts: one per case.
        not_built: why it was not checked, if it is known not to work even without this library.
        seconds: duration of the check.
    """

    architecture: Architecture
    verdicts: list[Verdict] = field(default_factory=list)
    not_built: str | None = None
    seconds: float = 0.0


def check_architecture(
    architecture: Architecture, cases: Sequence[Case] | None = None
) -> ArchitectureResult:
    """Build a tiny random model and check it.

    Args:
        architecture: of `list_architectures`.
        cases: None: those of `list_quick_cases`.

    Raises:
        Exception: whatever `transformers` raises for an architecture that is not known to fail.
    """
    reason = NOT_BUILT.get(architecture.name)
    if reason is not None:
        return ArchitectureResult(architecture, not_built=reason)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of transformers on settings of its defaults
        model = make_tiny_model(architecture.model_class, architecture.default_config())
        checker = Checker(model, random_prompts(VOCAB))
        verdicts = checker.run(list_quick_cases() if cases is None else cases)
    return ArchitectureResult(architecture, verdicts, seconds=time.perf_counter() - start)


def is_in_third(architecture: Architecture) -> bool:
    """Whether an architecture is in the third that is always tested, by a hash of its name."""
    return zlib.crc32(architecture.name.encode()) % THIRDS == 0
