"""Gates of a mixture of sources: their weights, fitted to texts by maximum likelihood."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core

_STEPS, _RATE, _L2 = 250, 0.1, 1e-4
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of Adam

_DEFAULTS = "default_gates.json"  # written by benchmarks/fit_default_gates.py


@dataclass(frozen=True)
class Gates:
    """The weights of a mixture's sources, by what the sources know of a history.

    Linear interpolation with bucketed weights (Jelinek and Mercer 1980): the weight of a source is
    the softmax, over the sources that know the history, of the sum of its weights of the history's
    bins (cpp/lattice_bpd/mixture/gates.h).

    Attributes:
        sources: S names, of "heads", "lm", "text", "store", in this order; "lm" once for
            each LM.
        weights: (S, num_bins) float64.
    """

    sources: tuple[str, ...]
    weights: npt.NDArray[np.float64]

    @classmethod
    def default(cls, sources: Sequence[str]) -> Gates:
        """Weights fitted on SmolLM2-135M-Instruct, for any list of sources.

        They are kept for one LM at most; each LM has the same.
        """
        groups = _groups(tuple(sources))
        kinds = list(dict.fromkeys(sources))
        fitting = [table for name, table in _default_tables().items() if set(kinds) <= set(table)]
        table = min(fitting, key=len)
        rows = []
        for number, name in enumerate(sources):
            row: list[float] = []
            for other, kind, size in groups:
                is_other_lm = kind == "lm" == name and other != number
                row += [0.0] * size if is_other_lm else table[name][kind]
            rows.append(row)
        return cls(tuple(sources), np.array(rows))

    def check(self, sources: Sequence[str]) -> None:
        """Raise ValueError unless these are the weights of these sources."""
        expected = (len(sources), sum(size for _, _, size in _groups(tuple(sources))))
        if tuple(sources) != self.sources or self.weights.shape != expected:
            raise ValueError(
                f"gates are of {', '.join(self.sources)} with weights {self.weights.shape}; "
                f"expected {', '.join(sources)} with {expected}; fit them for these sources"
            )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"sources": list(self.sources), "weights": np.round(self.weights, 3).tolist()}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Gates:
        """Of `to_dict`.

        Raises:
            ValueError: not that.
        """
        try:
            gates = cls(tuple(value["sources"]), np.array(value["weights"], np.float64))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"gates: expected sources and weights ({error})") from None
        gates.check(gates.sources)
        return gates


_ALL = ("heads", "lm", "text", "store")


@cache
def _groups(sources: tuple[str, ...]) -> list[tuple[int, str, int]]:
    """The bins in order: the number of the source (-1: the depth), its name, how many."""
    if list(sources) != sorted(sources, key=_ALL.index) or len(sources) == 0:
        raise ValueError(f"gates of {', '.join(sources)}; expected some of {', '.join(_ALL)}")
    first, num_bins = _core.gate_bins(list(sources))
    ends = [*first, num_bins]
    groups = [(-1, "depth", first[0])]
    return groups + [
        (number, name, ends[number + 1] - ends[number]) for number, name in enumerate(sources)
    ]


@cache
def _default_tables() -> dict[str, Any]:
    text = files("lattice_bpd.draft").joinpath(_DEFAULTS).read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)["gates"]
    return tables


def fit_gates(
    bins: npt.NDArray[np.int32],
    active: npt.NDArray[np.bool_],
    probs: npt.NDArray[np.float64],
    num_bins: int,
    start: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.float64]:
    """Gate weights of greatest likelihood, with a small L2 penalty (Adam).

    Args:
        bins: (n, b) int, the bins of each example, -1 for none.
        active: (n, S) bool, the sources that know each history.
        probs: (n, S) float, the probability of the true token by source.
        num_bins: number of bins.
        start: (S, num_bins) float, weights to begin with, and to which the penalty pulls; None: 0.

    Returns:
        (S, num_bins) float64.
    """
    known = (probs * active).sum(axis=1) > 0.0  # the others do not depend on the gates
    bins, active, probs = bins[known], active[known], probs[known]
    count, sources = probs.shape
    anchor = np.zeros((sources, num_bins)) if start is None else np.array(start, np.float64)
    if count == 0:
        return anchor
    padded = np.zeros((count, num_bins + 1), np.float32)
    np.put_along_axis(padded, np.where(bins < 0, num_bins, bins), 1.0, axis=1)
    one_hot = padded[:, :num_bins]
    theta, mean, square = anchor.copy(), np.zeros_like(anchor), np.zeros_like(anchor)
    for step in range(1, _STEPS + 1):
        scores = np.where(active, one_hot @ theta.T.astype(np.float32), -np.inf)
        gates = np.exp(scores - scores.max(axis=1, keepdims=True))
        gates /= gates.sum(axis=1, keepdims=True)
        joint = gates * probs
        shares = joint / np.maximum(joint.sum(axis=1, keepdims=True), 1e-30)
        gradient = (shares - gates).T.astype(np.float32) @ one_hot / count - _L2 * (theta - anchor)
        mean = _BETA1 * mean + (1.0 - _BETA1) * gradient
        square = _BETA2 * square + (1.0 - _BETA2) * gradient**2
        unbiased = mean / (1.0 - _BETA1**step), square / (1.0 - _BETA2**step)
        theta += _RATE * unbiased[0] / (np.sqrt(unbiased[1]) + _EPSILON)
    return theta
