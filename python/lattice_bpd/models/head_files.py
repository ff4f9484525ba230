"""Files of trained heads: tensors in STEM.safetensors, sizes in STEM.json.

The JSON has "format" (`lattice_bpd.STEM`), "version" and the sizes from which the module is built.
Both are written to a temporary folder and renamed, the JSON last, so a directory with STEM.json is
complete. A sample of the target's weights tells whether it is the one that heads were trained on.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import temporary_folder

if TYPE_CHECKING:
    from typing_extensions import Self


_NUM_MATRICES, _NUM_VALUES = 32, 4
# What casts to bfloat16 and float16, one after the other, and six decimal digits change at most.
_RTOL, _ATOL = 0.008, 2.0**-24
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class OtherTargetWarning(UserWarning):
    """Heads draft for a model with other weights than the one that they were trained on."""


class TargetSample:
    """Four values of each of 32 weight matrices of a target.

    Args:
        name: of the target; "" if it has none.
        values: of each matrix, by the name of the parameter.
    """

    def __init__(self, name: str, values: Mapping[str, tuple[float, ...]]) -> None:
        self.name, self.values = name, dict(values)
        self._compared = 0  # id of the last target

    @classmethod
    def of(cls, target: nn.Module) -> TargetSample | None:
        """The sample of a target; None if its weights cannot be read, such as quantized ones.

        Matrices are chosen by a hash of their names: no kind of layer is left out systematically.
        """
        matrices = _matrices_of(target)
        names = sorted(matrices, key=lambda name: zlib.crc32(name.encode()))[:_NUM_MATRICES]
        values = {name: _sample(matrices[name]) for name in names}
        return cls(name_of(target), values) if values else None

    @classmethod
    def from_json(cls, content: Any, path: Path) -> TargetSample | None:
        """What `to_json` returned; None for None.

        Args:
            content: parsed JSON.
            path: of the file, for the message.

        Raises:
            FormatError: something else.
        """
        if content is None:
            return None
        try:
            values = {
                str(name): tuple(float(value) for value in line.split())
                for name, line in content["weights"].items()
            }
            if any(len(line) != _NUM_VALUES for line in values.values()):
                raise ValueError(f"expected {_NUM_VALUES} values of each matrix")
            return cls(str(content["name"]), values)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise FormatError(
                f"{path}: trained_on is {str(content)[:60]!r}, expected a name and weights as "
                "save_pretrained writes them; remove the entry, or save the heads again"
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Name and values, for a JSON file."""
        lines = {
            name: " ".join(f"{value:.6g}" for value in values)
            for name, values in self.values.items()
        }
        return {"name": self.name, "weights": lines}

    def find_differences(self, target: nn.Module) -> list[str]:
        """Names of the sampled matrices whose values are others in a target, whatever its dtype.

        Matrices that it lacks, or whose values cannot be read, are left out.
        """
        matrices = _matrices_of(target)
        names = [name for name in self.values if name in matrices]
        if not names:
            return []
        expected = torch.tensor([self.values[name] for name in names], device="cpu")
        found = torch.tensor([_sample(matrices[name]) for name in names], device="cpu")
        same = torch.isclose(expected, found, rtol=_RTOL, atol=_ATOL).all(dim=1).tolist()
        return [name for name, is_same in zip(names, same, strict=True) if not is_same]


def warn_of_other_target(heads: Any, target: nn.Module, where: str) -> None:
    """Warn once if heads have the sample of a target (`trained_on`) with other weights than this.

    Args:
        heads: of any kind; without a sample nothing is compared.
        target: that they draft for. Comparing takes a millisecond, and none again for the same one.
        where: name of the caller, for the message.
    """
    sample = getattr(heads, "trained_on", None)
    if not isinstance(sample, TargetSample) or sample._compared == id(target):
        return
    sample._compared = id(target)
    if differing := sample.find_differences(target):
        warnings.warn(
            f"{where}: the heads were trained on {sample.name or 'a model'!r}, and the weights of "
            f"{name_of(target) or 'this model'!r} differ from it: in {len(differing)} of "
            f"{len(sample.values)} sampled matrices, such as {differing[0]}. The output stays the "
            "model's own, but fewer draft tokens are accepted; decode with the model that the "
            "heads were trained on, or train heads on this one (lattice-bpd heads train --base)",
            OtherTargetWarning,
            stacklevel=3,
        )


def _matrices_of(target: nn.Module) -> dict[str, Tensor]:
    """Weights whose values can be read: not quantized, sharded or on the meta device."""
    if getattr(getattr(target, "config", None), "quantization_config", None) is not None:
        return {}
    return {
        name: weight.data
        for name, weight in target.named_parameters()
        if weight.ndim > 1 and weight.numel() > 0 and weight.dtype in _DTYPES
        and type(weight.data) is Tensor and not weight.is_meta
    }  # fmt: skip


def _sample(weight: Tensor) -> tuple[float, ...]:
    """Values at equal distances."""
    positions = torch.arange(1, _NUM_VALUES + 1, device="cpu") * weight.numel() // (_NUM_VALUES + 1)
    return tuple(weight[torch.unravel_index(positions, weight.shape)].float().tolist())


def name_of(target: nn.Module) -> str:
    """The name of a hub model; of a local folder the last part only, since the path is private."""
    name = str(getattr(target, "name_or_path", "") or "")
    cached = re.search(r"models--([\w.-]+?)--([\w.-]+)/snapshots/\w+/?$", name)
    if cached:
        return f"{cached[1]}/{cached[2]}"
    is_path = len(Path(name).parts) > 2 or Path(name).is_absolute() or Path(name).exists()
    return Path(name).resolve().name if name and is_path else name


def identify(target: nn.Module) -> str:
    """A hash of some of a target's weights; "unknown" where they cannot be read."""
    sample = TargetSample.of(target)
    if sample is None:
        return "unknown"
    weights = json.dumps(sample.to_json()["weights"], sort_keys=True)
    return hashlib.sha256(weights.encode()).hexdigest()[:16]


Heads = TypeVar("Heads", bound=nn.Module)


@contextmanager
def staged_folder(directory: Path, last: str = "") -> Iterator[Path]:
    """A temporary folder whose files become new files of `directory` on success.

    Args:
        directory: created if missing.
        last: name of the file that is renamed last, so that it marks a complete directory.

    Raises:
        OSError: the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with temporary_folder(directory / f".saving-{secrets.token_hex(8)}") as folder:
        yield folder
        paths = sorted(folder.iterdir(), key=lambda path: (path.name == last, path.name))
        (new := folder / ".new").touch()
        for path in paths:
            if path.is_file():  # safetensors writes files for their owner alone
                path.chmod(new.stat().st_mode)
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
        advice = "give a directory that save_pretrained or lattice-bpd build --heads wrote"
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
        sample = self.trained_on if target is None else TargetSample.of(target)
        trained_on = {} if sample is None else {"trained_on": sample.to_json()}
        self.files.write(Path(directory), sizes | trained_on, self)

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
