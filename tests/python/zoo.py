"""The language-model architectures of the installed `transformers`, and checks of tiny ones."""

from __future__ import annotations

import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

from config_overrides import NOT_BUILT
from lattice_bpd_conformance.cases import KINDS, Case, list_quick_cases, random_prompts
from lattice_bpd_conformance.check import Checker, Verdict
from tiny_models import VOCAB, make_tiny_model

THIRDS = 3


@dataclass(frozen=True)
class Architecture:
    """A model class that `transformers` maps a model type to.

    Attributes:
        model_type: of the config, such as "llama".
        kind: "causal", "encoder-decoder" or "image-text" (checked with text only).
        class_name: of the model.
    """

    model_type: str
    kind: str
    class_name: str

    @property
    def name(self) -> str:
        """A unique name: a model type may have a decoder and an encoder-decoder."""
        return self.model_type if self.kind == "causal" else f"{self.model_type} ({self.kind})"

    @property
    def model_class(self) -> Any:
        """The class, imported at first use."""
        return getattr(transformers, self.class_name)

    def default_config(self) -> PreTrainedConfig:
        """The architecture's own default config."""
        return CONFIG_MAPPING[self.model_type]()


def list_architectures() -> list[Architecture]:
    """All architectures that the installed `transformers` maps; a class of a model type once."""
    architectures: dict[tuple[str, str], Architecture] = {}
    for kind, mapping in KINDS.items():
        for model_type, class_name in mapping.items():
            if isinstance(class_name, str):
                architecture = Architecture(model_type, kind, class_name)
                architectures.setdefault((model_type, class_name), architecture)
    return list(architectures.values())


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
