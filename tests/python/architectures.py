"""Every language-model architecture of the installed `transformers`, tiny and checked."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import transformers
from transformers import CONFIG_MAPPING

from lattice_bpd_conformance.cases import KINDS, list_quick_cases, random_prompts
from lattice_bpd_conformance.check import Checker, Verdict
from tiny_models import VOCAB, make_tiny_model


class Architecture(NamedTuple):
    """A model class that `transformers` maps a model type to.

    Attributes:
        name: the model type, with the kind of model where that is not a causal LM.
        model_type: of the config, such as "llama".
        class_name: of the model.
    """

    name: str
    model_type: str
    class_name: str


def list_architectures() -> list[Architecture]:
    """All that the installed `transformers` maps; a class of a model type once."""
    architectures: dict[tuple[str, str], Architecture] = {}
    for kind, mapping in KINDS.items():
        for model_type, class_name in mapping.items():
            if isinstance(class_name, str):
                name = model_type if kind == "causal" else f"{model_type} ({kind})"
                architecture = Architecture(name, model_type, class_name)
                architectures.setdefault((model_type, class_name), architecture)
    return list(architectures.values())


def check_architecture(architecture: Architecture) -> list[Verdict]:
    """Build a tiny random model and check it; image-text models read text only.

    Raises:
        Exception: whatever `transformers` raises while it builds the model.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice of transformers on settings of its defaults
        config = CONFIG_MAPPING[architecture.model_type]()
        model = make_tiny_model(getattr(transformers, architecture.class_name), config)
        return Checker(model, random_prompts(VOCAB)).run(list_quick_cases())
