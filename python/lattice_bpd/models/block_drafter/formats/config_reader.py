"""Strict reading of a checkpoint's config.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from lattice_bpd._core import FormatError
from lattice_bpd.models.head_files import read_json

CONFIG_NAME = "config.json"
REQUIRED: Any = object()
"""The default of an option without default."""

# Options of transformers that change nothing here.
_UNUSED = frozenset({
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
    "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range",
    "is_encoder_decoder", "label2id", "max_position_embeddings", "max_window_layers",
    "model_type", "output_attentions", "output_hidden_states", "pad_token_id", "problem_type",
    "return_dict", "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip


def read_config_json(directory: Path) -> dict[str, Any]:
    """The object in a checkpoint's config.json.

    Raises:
        FormatError: the file is missing, damaged, or holds no object.
    """
    path = directory / CONFIG_NAME
    content = read_json(path, "give the directory of a drafter's checkpoint")
    if not isinstance(content, dict):
        raise FormatError(
            f"{path}: holds a {type(content).__name__}; expected an object; copy the file again"
        )
    return content


class ConfigReader:
    """Typed access to the options of a JSON object; options that were not read are errors.

    Args:
        path: of the file, for messages.
        content: the object.
        prefix: of the names in messages, such as "dflash_config.".
    """

    def __init__(self, path: Path, content: Any, prefix: str = "") -> None:
        self.path, self.prefix = path, prefix
        if not isinstance(content, Mapping):
            self.fail(prefix.rstrip("."), content, "an object")
        self.content: Mapping[str, Any] = content
        self._known: set[str] = set(_UNUSED)

    def fail(self, key: str, value: Any, expected: str) -> NoReturn:
        """Raise FormatError for one option."""
        raise FormatError(
            f"{self.path}: {self.prefix if key else ''}{key or self.prefix} is {value!r}; expected "
            f"{expected}; this checkpoint cannot be loaded"
        )

    def has(self, key: str) -> bool:
        """Whether an option is set, to anything but null."""
        return self.content.get(key) is not None

    def get(self, key: str, default: Any = REQUIRED) -> Any:
        """The value of an option; null is the same as a missing one.

        Raises:
            FormatError: it is missing and has no default.
        """
        self._known.add(key)
        value = self.content.get(key)
        if value is not None:
            return value
        if default is REQUIRED:
            self.fail(key, None, "a value")
        return default

    def integer(self, key: str, default: Any = REQUIRED, minimum: int = 1) -> Any:
        """An integer of `minimum` or more, or the default."""
        value = self.get(key, default)
        if value is default:
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.fail(key, value, f"an integer of {minimum} or more")
        return value

    def positive(self, key: str, default: Any = REQUIRED) -> Any:
        """A positive finite number, or the default."""
        value = self.get(key, default)
        if value is default:
            return value
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            self.fail(key, value, "a positive number")
        return float(value)

    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false, or the default."""
        value = self.get(key, default)
        if value is not default and not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value

    def integers(self, key: str, default: Any = REQUIRED, minimum: int = 0) -> Any:
        """A tuple of integers of `minimum` or more without repetitions, or the default."""
        value = self.get(key, default)
        if value is default:
            return value
        if not isinstance(value, list) or not value or len(set(map(repr, value))) < len(value):
            self.fail(key, value, "a list of different integers")
        for one in value:
            if not isinstance(one, int) or isinstance(one, bool) or one < minimum:
                self.fail(key, value, f"a list of integers of {minimum} or more")
        return tuple(value)

    def nested(self, key: str) -> ConfigReader:
        """The options of an object within this one; an empty one where it is missing."""
        return ConfigReader(self.path, self.get(key, {}), f"{self.prefix}{key}.")

    def require(self, key: str, allowed: Iterable[Any]) -> None:
        """Raise FormatError unless an option is missing or has one of the values."""
        value, allowed = self.get(key, None), tuple(allowed)
        if value is not None and value not in allowed:
            self.fail(key, value, " or ".join(map(repr, allowed)))

    def ignore(self, *keys: str) -> None:
        """Options that do not change what a drafter computes."""
        self._known.update(keys)

    def finish(self) -> None:
        """Raise FormatError for options that nothing has read.

        Unset ones (null, false) are accepted, because they change no computation.
        """
        unknown = sorted(
            key
            for key, value in self.content.items()
            if key not in self._known and value is not None and value is not False
        )
        if unknown:
            raise FormatError(
                f"{self.path}: unknown options {', '.join(self.prefix + key for key in unknown)}, "
                "which may change what the drafter computes; expected known ones; "
                "remove them if they do not concern the computation"
            )
