"""The weights of a mixture's sources: their bins, defaults and fit."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core

_STEPS, _RATE, _L2 = 250, 0.1, 1e-4
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # of Adam

_ALL = ("heads", "lm", "text", "store", "target")
_NONE = "none"
_LOGGER = logging.getLogger("lattice_bpd")
_DEFAULTS = "default_gates.json"  # written by benchmarks/fit_default_gates.py
Examples = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Of one text for `fit_gates`: bins, active sources, probabilities by source."""


@dataclass(frozen=True)
class Gates:
    """The weights of a mixture's sources, by what the sources know of a history.

    Linear interpolation with bucketed weights (Jelinek and Mercer 1980): the weight of a source is
    the softmax, over the sources that know the history and "none", of the sum of its weights of the
    history's bins (cpp/lattice_bpd/mixture/gates.h). "none" is the tokens that no source proposes.

    Attributes:
        sources: S names, of "heads", "lm", "text", "store", "target", in this order; "lm" once
            for each LM.
        weights: (S + 1, num_bins) float64, the last row of "none".
    """

    sources: tuple[str, ...]
    weights: npt.NDArray[np.float64]

    @classmethod
    def default(cls, sources: Sequence[str]) -> Gates:
        """Weights fitted on SmolLM2-135M-Instruct, for any list of sources.

        They are kept for one LM at most; each LM has the same.
        """
        groups = _groups(tuple(sources))
        known = _default_tables().values()
        table = min((one for one in known if set(sources) <= set(one)), key=len)
        rows = []
        for number, name in enumerate([*sources, _NONE]):
            row: list[float] = []
            for other, kind, size in groups:
                is_other_lm = kind == "lm" == name and other != number
                row += [0.0] * size if is_other_lm else table[name][kind]
            rows.append(row)
        return cls(tuple(sources), np.array(rows))

    @classmethod
    def fitting(
        cls, stored: Sequence[Gates], sources: Sequence[str], logger: logging.Logger = _LOGGER
    ) -> Gates:
        """Of several weights those that have most of some sources, adapted to them.

        `logger` says at level INFO which these are, unless they have exactly these sources.
        """
        wanted = Counter(sources)

        def fit(gates: Gates) -> tuple[int, int]:
            has = Counter(gates.sources)
            return (wanted & has).total(), -has.total()

        if not stored:
            return cls.default(sources)
        chosen = max(stored, key=fit)
        if chosen.sources != tuple(sources):
            logger.info(
                "lattice-bpd: the mixture has the sources %s; its weights are those of %s, and "
                "defaults for the rest", ", ".join(sources), ", ".join(chosen.sources),
            )  # fmt: skip
        return chosen.adapt(sources)

    def adapt(self, sources: Sequence[str]) -> Gates:
        """Weights of other sources: of those that both have these, else the defaults."""
        if tuple(sources) == self.sources:
            return self
        gates = Gates.default(sources)
        rows, columns = self._blocks()
        new_rows, new_columns = gates._blocks()
        for name in rows.keys() & new_rows.keys():
            for other in columns.keys() & new_columns.keys():
                new_block = new_rows[name], new_columns[other]
                gates.weights[new_block] = self.weights[rows[name], columns[other]]
        return gates

    def fit(
        self, examples: Sequence[Examples | None], start: npt.NDArray[np.float64] | None
    ) -> Gates:
        """Weights fitted to the examples of texts; see `fit_gates`."""
        known = [one for one in examples if one is not None]
        if not known:
            return self
        bins, active, probs = (np.concatenate(parts) for parts in zip(*known, strict=True))
        num_bins = self.weights.shape[1]
        return Gates(self.sources, fit_gates(bins, active, probs, num_bins, start))

    def _blocks(self) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], slice]]:
        """The row of each source and the columns of its bins, by name and number of that name."""
        keys = [(name, self.sources[:n].count(name)) for n, name in enumerate(self.sources)]
        columns, first = {}, 0
        for number, kind, size in _groups(self.sources):
            columns[(kind, 0) if number < 0 else keys[number]] = slice(first, first + size)
            first += size
        return {key: row for row, key in enumerate([*keys, (_NONE, 0)])}, columns

    def check(self, sources: Sequence[str]) -> None:
        """Raise ValueError unless these are the weights of these sources."""
        expected = (len(sources) + 1, sum(size for _, _, size in _groups(tuple(sources))))
        if tuple(sources) != self.sources or self.weights.shape != expected:
            raise ValueError(
                f"gates are of {', '.join(self.sources)} with weights {self.weights.shape}; "
                f"expected {', '.join(sources)} with {expected}; fit them for these sources"
            )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"sources": list(self.sources), "weights": np.round(self.weights, 3).tolist()}

    @classmethod
    def read(cls, values: Any) -> tuple[Gates, ...]:
        """Of a drafter.json: a list of `to_dict`; None: none.

        Raises:
            ValueError: not that.
        """
        try:
            gates = tuple(
                cls(tuple(value["sources"]), np.array(value["weights"], np.float64))
                for value in values or ()
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"gates: expected a list of sources and weights ({error}); a folder of version "
                "0.2.0 must be built again"
            ) from None
        for one in gates:
            one.check(one.sources)
        return gates


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
        bins: (n, b) int, the bins of each example, -1 after the last.
        active: (n, R) bool, the sources that know each history, and "none".
        probs: (n, R) float, the probability of the true token by source.
        num_bins: number of bins.
        start: (R, num_bins) float, weights to begin with, and to which the penalty pulls; None: 0.

    Returns:
        (R, num_bins) float64.
    """
    known = active.any(axis=1)
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
