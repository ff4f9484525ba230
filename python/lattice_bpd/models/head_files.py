"""Files of trained heads: tensors in STEM.safetensors, sizes in STEM.json.

The JSON has "format" (`lattice_bpd.STEM`), "version" and the sizes from which the module is built.
Both are written to a temporary folder and renamed, the JSON last, so a directory with STEM.json is
complete.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lattice_bpd._core import FormatError
from lattice_bpd.models.target_sample import TargetSample, sample_entry

if TYPE_CHECKING:
    from typing_extensions import Self

Heads = TypeVar("Heads", bound=nn.Module)


@contextmanager
def staged_folder(directory: Path, last: str = "") -> Iterator[Path]:
    """A temporary folder whose files are renamed into `directory` on success.

    Args:
        directory: created if missing.
        last: name of the file that is renamed last, so that it marks a complete directory.

    Raises:
        OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".saving-") as name:
        yield Path(name)
        for path in sorted(Path(name).iterdir(), key=lambda path: (path.name == last, path.name)):
            path.replace(directory / path.name)


def read_json(path: Path, advice: str) -> Any:
    """The content of a JSON file.

    Raises:
        FormatError: missing or damaged; ends with `advice`.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: cannot be read ({error}); {advice}") from error


def check_sizes(path: Path, config: Any, minima: Mapping[str, int], advice: str) -> None:
    """Raise FormatError unless a JSON file's values are integers of at least these minima."""
    for key, minimum in minima.items():
        value = config.get(key) if isinstance(config, dict) else None
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise FormatError(
                f"{path}: {key} is {value!r}, expected an integer of {minimum} or more; {advice}"
            )


@dataclass(frozen=True)
class HeadFiles:
    """The files of one kind of heads.

    Attributes:
        stem: of the file names.
        minima: the smallest value of each size in the JSON, all integers.
        defaults: of entries that files of earlier versions lack; None: an optional size, 1 or more.
        version: of the format.
    """

    stem: str
    minima: Mapping[str, int]
    defaults: Mapping[str, Any] = field(default_factory=dict)
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
        """Write both files into `directory`, which is created if missing.

        Raises:
            OSError: the directory cannot be written.
        """
        config = {"format": f"lattice_bpd.{self.stem}", "version": self.version, **sizes}
        with staged_folder(directory, last=self.config_name) as folder:
            save_file(
                {key: part.detach().cpu().contiguous() for key, part in heads.state_dict().items()},
                folder / self.weights_name,
            )
            (folder / self.config_name).write_text(json.dumps(config, indent=2) + "\n")

    def read_config(self, directory: Path) -> dict[str, Any]:
        """The JSON's content.

        Raises:
            FormatError: missing, cut, altered, of another version, or a size out of range.
        """
        path = directory / self.config_name
        advice = "give a directory that save_pretrained wrote"
        config = read_json(path, advice)
        expected = f"lattice_bpd.{self.stem}"
        if not isinstance(config, dict) or config.get("format") != expected:
            raise FormatError(f"{path}: is not a {expected!r} file; {advice}")
        if config.get("version") != self.version:
            raise FormatError(
                f"{path}: format version {config.get('version')!r}, expected {self.version}; "
                "install the version of lattice-bpd that wrote it"
            )
        config = {**self.defaults, **config}
        optional = [name for name, value in self.defaults.items() if value is None]
        present = {name: 1 for name in optional if config[name] is not None}
        check_sizes(path, config, {**self.minima, **present}, advice)
        return config

    def read_heads(self, directory: Path, build: Callable[[], Heads]) -> Heads:
        """The module that `build` returns for the JSON's sizes, with the file's tensors.

        It is built on the meta device, so that corrupt sizes allocate nothing before the check.

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


class SavedHeads(nn.Module):
    """Heads with files of their own.

    Attributes:
        files: which; the sizes in the JSON are attributes of the heads.
        trained_on: a sample of the weights of the target that they were trained on, if known.
    """

    files: ClassVar[HeadFiles]
    trained_on: TargetSample | None = None

    def save_pretrained(self, directory: str | Path, target: nn.Module | None = None) -> None:
        """Write STEM.safetensors and STEM.json; see `head_files`.

        Args:
            directory: created if missing.
            target: the model that the heads were trained on; a sample of its weights is written,
                so that another model's are noticed. None: `trained_on`.

        Raises:
            OSError: the directory cannot be written.
        """
        sizes = {name: getattr(self, name) for name in (*self.files.minima, *self.files.defaults)}
        self.files.write(Path(directory), sizes | sample_entry(self, target), self)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> Self:
        """Read what `save_pretrained` wrote, on the CPU.

        Raises:
            FormatError: a file is missing, cut, altered or of another format version.
        """
        directory = Path(directory)
        config, path = cls.files.read_config(directory), directory / cls.files.config_name
        names = (*cls.files.minima, *cls.files.defaults)
        heads = cls.files.read_heads(
            directory, lambda: cls._from_sizes({name: config[name] for name in names})
        )
        try:
            heads._check_tensors()
        except ValueError as error:
            raise FormatError(f"{path}: {error}; save or train the heads again") from error
        heads.trained_on = TargetSample.from_json(config.get("trained_on"), path)
        return heads

    @classmethod
    def _from_sizes(cls, sizes: dict[str, Any]) -> Self:
        """Heads of these sizes, without values."""
        return cls(**sizes)

    def _check_tensors(self) -> None:
        """Raise ValueError for values that a file may not have."""
