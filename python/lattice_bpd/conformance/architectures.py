"""The language-model architectures of the installed `transformers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto

KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "encoder-decoder": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "image-text": modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
}


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


def find_class(config: PreTrainedConfig) -> Any:
    """The language model class of a config.

    Raises:
        ValueError: `transformers` maps the config to no language model.
    """
    named = config.architectures or []
    for name in named:
        if any(name in mapping.values() for mapping in KINDS.values()):
            return getattr(transformers, name)
    for mapping in KINDS.values():
        if config.model_type in mapping:
            return getattr(transformers, mapping[config.model_type])
    raise ValueError(
        f"check: transformers {transformers.__version__} maps model type {config.model_type!r} to "
        "no language model; expected a causal LM or an encoder-decoder"
    )
