"""A sample of a target's weights, by which heads recognize the target they were trained on."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lattice_bpd._core import FormatError

_NUM_MATRICES, _NUM_VALUES = 32, 4
_HALF_UNIT, _TINY = 2.0**-11, 2.0**-25  # what a cast to float16 changes, of small numbers too
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
        return cls(_name_of(target), values) if values else None

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
        expected = torch.tensor([self.values[name] for name in names])
        found = torch.tensor([_sample(matrices[name]) for name in names])
        differs = _differ(expected, found).any(dim=1).tolist()
        return [name for name, is_other in zip(names, differs, strict=True) if is_other]


def sample_entry(heads: Any, target: nn.Module | None) -> dict[str, Any]:
    """What to add to the JSON file of heads: `trained_on`, or nothing if their target is unknown.

    Args:
        heads: BlockwiseHeads or MedusaHeads.
        target: that they were trained on; None: the one whose sample they have.
    """
    sample = heads.trained_on if target is None else TargetSample.of(target)
    return {} if sample is None else {"trained_on": sample.to_json()}


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
            f"{_name_of(target) or 'this model'!r} differ from it: in {len(differing)} of "
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
    positions = torch.arange(1, _NUM_VALUES + 1) * weight.numel() // (_NUM_VALUES + 1)
    return tuple(weight[torch.unravel_index(positions, weight.shape)].float().tolist())


def _differ(values: Tensor, others: Tensor) -> Tensor:
    """Whether numbers differ after a cast to bfloat16, and after one to float16 before it."""
    low, high = _after_casts(values)
    other_low, other_high = _after_casts(others)
    return (low > other_high) | (other_low > high)


def _after_casts(values: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest bfloat16 that casts make of float32 numbers."""
    change = values.abs() * _HALF_UNIT + _TINY
    return (values - change).bfloat16(), (values + change).bfloat16()


def _name_of(target: nn.Module) -> str:
    """The name of a hub model; of a local folder the last part only, since the path is private."""
    name = str(getattr(target, "name_or_path", "") or "")
    return Path(name).resolve().name if name and Path(name).exists() else name
