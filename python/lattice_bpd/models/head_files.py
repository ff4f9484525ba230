"""Files of trained heads: STEM.safetensors with the tensors and STEM.json that describes them.

The JSON has "format" (`lattice_bpd.STEM`), "version" and the sizes from which the module is built.
Both are written to a temporary folder beside them and renamed, the JSON last, so that a directory
with STEM.json is whole.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lattice_bpd._core import FormatError

Heads = TypeVar("Heads", bound=nn.Module)


@dataclass(frozen=True)
class HeadFiles:
    """The files of one kind of heads.

    Attributes:
        stem: of the file names.
        least: smallest value of each size in the JSON, all integers.
        version: of the format.
    """

    stem: str
    least: Mapping[str, int]
    version: int = 1

    @property
    def config_name(self) -> str:
        """Name of the JSON file."""
        return f"{self.stem}.json"

    @property
    def weights_name(self) -> str:
        """Name of the file with the tensors."""
        return f"{self.stem}.safetensors"

    def write(self, directory: Path, sizes: Mapping[str, Any], heads: nn.Module) -> None:
        """Write both files into `directory`, which is made where it is missing.

        Raises:
            OSError: the directory cannot be written.
        """
        directory.mkdir(parents=True, exist_ok=True)
        config = {"format": f"lattice_bpd.{self.stem}", "version": self.version, **sizes}
        with tempfile.TemporaryDirectory(dir=directory, prefix=".saving-") as name:
            temporary = Path(name)
            save_file(
                {key: value.detach().cpu().contiguous() for key, value in _tensors(heads)},
                temporary / self.weights_name,
            )
            (temporary / self.config_name).write_text(json.dumps(config, indent=2) + "\n")
            for name in (self.weights_name, self.config_name):
                (temporary / name).replace(directory / name)

    def read_config(self, directory: Path) -> dict[str, Any]:
        """The JSON's content.

        Raises:
            FormatError: missing, cut, altered, of another version, or a size out of range.
        """
        path = directory / self.config_name
        cure = "give a directory that save_pretrained wrote"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise FormatError(f"{path}: cannot be read ({error}); {cure}") from error
        wanted = f"lattice_bpd.{self.stem}"
        if not isinstance(config, dict) or config.get("format") != wanted:
            raise FormatError(f"{path}: is not a {wanted!r} file; {cure}")
        if config.get("version") != self.version:
            raise FormatError(
                f"{path}: format version {config.get('version')!r}, expected {self.version}; "
                "install the version of lattice-bpd that wrote it"
            )
        for key, least in self.least.items():
            value = config.get(key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise FormatError(
                    f"{path}: {key} is {value!r}, expected an integer of {least} or more"
                )
        return config

    def read_heads(self, directory: Path, build: Callable[[], Heads]) -> Heads:
        """The module that `build` makes by the JSON's sizes, with the file's tensors, on the CPU.

        It is built without memory, so that sizes out of all reason meet the file's own first.

        Raises:
            FormatError: missing, cut, or tensors other than the module's.
        """
        path = directory / self.weights_name
        try:
            tensors = load_file(path)
            with torch.device("meta"):
                heads = build()
            heads.load_state_dict(tensors, assign=True)
            return heads.to(torch.get_default_dtype())
        except (OSError, SafetensorError, RuntimeError, TypeError, OverflowError) as error:
            raise FormatError(
                f"{path}: the heads' weights cannot be read ({error}); expected the tensors that "
                f"{self.config_name} beside it describes; save or train the model again"
            ) from error


def _tensors(heads: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return heads.state_dict().items()
