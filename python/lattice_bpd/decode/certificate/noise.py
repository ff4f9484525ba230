"""How far the logits of a model differ between its own forwards of one text.

Calls of different shapes sum in different orders, so they round differently. The noise is measured
on the text at hand: the logits of the model's own `forward` in several shapes are compared with
those of its own `generate`, which reads the prompt in one call and then one token at a time.

    one call        prompt and text in one call without a cache
    copies          the same, several times in one batch
    padded          the same, after padding, beside another text (targets that decode batches)
    chunks          prompt, then the text in chunks of the lengths that verifying calls have
    static          the same in a cache of fixed size, as replayed calls have (on a GPU)

None of these calls goes through `lattice_bpd.verify`, so the noise cannot grow with a fault there.
Where the text was decoded with the core's kernels, `forward` is called with them too; what they add
counts up to a limit, so that a fault of theirs is not taken for noise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache

from lattice_bpd.decode.certificate.own_generate import Choices, Take, write_plainly
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.lm_call import cache_argument
from lattice_bpd.verify.cpu_kernels import kernels_in_call
from lattice_bpd.verify.graphs import CAPACITIES, is_recordable
from lattice_bpd.verify.probes import find_batch_refusal
from lattice_bpd.verify.rounding import rounding_bound

QUANTILE, MULTIPLE = 0.99, 2.5
MEAN_MULTIPLE, LEAST_FOR_MEAN = 1.3, 16
LEAST_LOCAL, LEAST_SHAPES = 0.6, 3
MOST_OF_KERNELS = 2.0
POSITIONS = 64  # of a text, at most, at which the noise is measured
FORMULA = (
    "bounds: 2.5 max(99 % quantile of the differences, eps max |logit|); of a logit where 3 shapes "
    "or more were measured: instead of the quantile the largest difference there, at least 0.6 of "
    "the quantile and at most the quantile; of the mean difference, from 16 positions on: "
    "1.3 max(largest mean of a shape, eps max |logit|); differences of shapes with the core's "
    "kernels count up to 2 max(the same without them, eps max |logit|)"
)
_COPIES, _PADDING = 3, 3
_FEW = 8  # positions before a boundary that are too few to measure noise at


@dataclass(frozen=True)
class Noise:
    """Differences between a model's own `generate` and its own `forward` in other shapes.

    Attributes:
        logits: 99 % quantile, over positions and shapes, of the largest difference of a logit.
        mean: mean over positions of the largest difference of a logit, of the shape where it is
            largest.
        margins: 99 % quantile of the differences of the margin, the best logit minus the second.
        unit: machine epsilon of the dtype times the largest |logit|; the least noise assumed.
        positions: indices in the text at which it was measured.
        local: largest difference of a logit at each of them.
        shapes: of the forwards.
    """

    logits: float
    mean: float
    margins: float
    unit: float
    positions: list[int]
    local: list[float]
    shapes: list[str]

    def with_kernels(self, other: Noise) -> Noise:
        """Also that of the same shapes with the core's kernels."""

        def larger(own: float, theirs: float) -> float:
            return max(own, min(theirs, MOST_OF_KERNELS * max(own, self.unit)))

        return replace(
            self,
            logits=larger(self.logits, other.logits),
            mean=larger(self.mean, other.mean),
            margins=larger(self.margins, other.margins),
            local=list(map(larger, self.local, other.local)),
            shapes=[*self.shapes, *(f"{name}, kernels of the core" for name in other.shapes)],
        )

    @property
    def samples(self) -> int:
        """Number of differences measured."""
        return len(self.positions) * len(self.shapes)

    @property
    def logit_bound(self) -> float:
        """Larger differences of a logit are not noise, at any position."""
        return MULTIPLE * max(self.logits, self.unit)

    def logit_bounds(self) -> dict[int, float]:
        """The bound at each measured position, no larger than `logit_bound`."""
        if len(self.shapes) < LEAST_SHAPES:
            return {}
        least, most = LEAST_LOCAL * self.logits, self.logits
        pairs = zip(self.positions, self.local, strict=True)
        return {
            position: MULTIPLE * max(min(max(noise, least), most), self.unit)
            for position, noise in pairs
        }

    @property
    def mean_bound(self) -> float:
        """Larger mean differences are not noise, from LEAST_FOR_MEAN positions on."""
        return MEAN_MULTIPLE * max(self.mean, self.unit)

    @property
    def margin_bound(self) -> float:
        """Larger differences of two logits are not noise."""
        return MULTIPLE * max(self.margins, self.unit)


@torch.inference_mode()
def follow_text(
    target: Any,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    lengths: Iterable[int] = (),
    source: Sequence[int] | None = None,
    take: Take | None = None,
    *,
    cpu_kernels: bool = False,
) -> tuple[Choices, Noise]:
    """What the model's own `generate` selects along a text, and the noise of its logits there.

    Args:
        target: see `build_target`; which shapes the model can read is taken from
            its probes.
        prompt: (T,) ints; for an encoder-decoder the decoder prompt.
        token_ids: (m,) ints, one or more, the text after it.
        lengths: tokens of verifying calls.
        source: (S,) ints, the source of an encoder-decoder.
        take: called with each index in token_ids and the (V,) float32 logits of `generate` there.
        cpu_kernels: whether the text was decoded with them, see `lattice_bpd.decode.generate`.
    """
    choices, rows = Choices(token_ids), []
    spaced = np.linspace(0, len(token_ids) - 1, min(len(token_ids), POSITIONS))
    positions = sorted({round(position) for position in spaced.tolist()})
    chosen = frozenset(positions)

    def take_all(index: int, logits: Tensor) -> None:
        choices(index, logits)
        if index in chosen:
            rows.append(logits.float().cpu())
        if take is not None:
            take(index, logits)

    lengths = list(lengths)
    with kernels_in_call(target.base, wanted=False):
        write_plainly(target.base, prompt, token_ids, take_all, source)
        readings = _Readings(target, list(prompt), list(token_ids), positions, source)
        noise = _noise_of(readings, torch.stack(rows), lengths)
    with kernels_in_call(target.base, wanted=cpu_kernels) as is_lent:
        if is_lent:
            noise = noise.with_kernels(_noise_of(readings, torch.stack(rows), lengths))
    return choices, noise


def _noise_of(readings: _Readings, expected: Tensor, lengths: Iterable[int]) -> Noise:
    """The differences between all shapes and the (n, V) logits of `generate`."""
    scale = float(expected[expected.isfinite()].abs().max())
    unit = float(torch.finfo(readings.base.dtype).eps) * scale
    expected = expected[: len(readings.rows)]
    if readings.is_cut and len(expected) < _FEW:  # an estimate from dtype and depth instead
        unit = max(unit, rounding_bound(readings.base) * scale / 4)
    best = expected.topk(min(2, expected.shape[1]), dim=1).indices
    shapes, logits, margins = [], [], []
    for name, rows in readings.read(lengths) if len(expected) else ():
        shapes.append(name)
        logits.append(largest_differences(rows, expected))
        moved = (rows - expected).gather(1, best)
        margins.append((moved[:, 0] - moved[:, -1]).abs())
    positions = readings.positions[: len(expected)]
    if not shapes:
        return Noise(0.0, 0.0, 0.0, unit, positions, [0.0] * len(positions), [])
    return Noise(
        float(torch.cat(logits).quantile(QUANTILE)),
        max(float(differences.mean()) for differences in logits),
        float(torch.cat(margins).quantile(QUANTILE)),
        unit,
        positions,
        torch.stack(logits).amax(dim=0).tolist(),
        shapes,
    )


def largest_differences(rows: Tensor, others: Tensor) -> Tensor:
    """(n,) the largest difference of a logit, of (n, V) float32 each; masked ones are left out."""
    finite = rows.isfinite() & others.isfinite()
    return torch.where(finite, rows - others, 0.0).abs().amax(dim=1)


@dataclass
class _Readings:
    """Forwards of one text in several shapes, each by the model's own `forward` alone."""

    target: Any
    prompt: list[int]
    token_ids: list[int]
    positions: list[int]
    source: Sequence[int] | None

    def __post_init__(self) -> None:
        """The ids to read, and the index in them that predicts each position."""
        self.base: Any = self.target.base
        self.device = device_of(self.base)
        boundaries = self.target.limits.boundaries
        # Rotary frequencies of a call across a boundary are not those of `generate` before it.
        end = next((boundary for boundary in boundaries if boundary >= len(self.prompt)), None)
        ids = [*self.prompt, *self.token_ids[:-1]]
        self.ids, self.is_cut = ids[:end], len(ids) > len(ids[:end])
        rows = torch.tensor(self.positions, device="cpu") + len(self.prompt) - 1
        self.rows = rows[rows < len(self.ids)]
        parameters = inspect.signature(self.base.forward).parameters
        self.takes_positions = "position_ids" in parameters  # as `generate` decides it

    def read(self, lengths: Iterable[int]) -> Iterator[tuple[str, Tensor]]:
        """The name of each shape, and (n, V) float32 logits at the positions.

        A shape that the model cannot read is left out.
        """
        shapes: list[tuple[str, Callable[[], Tensor]]] = [
            ("one call", lambda: self._whole([self.ids])),
            (f"{_COPIES} copies", lambda: self._whole([self.ids] * _COPIES)),
        ]
        if self.source is None and not self.target.is_recurrent:
            length = _PADDING + len(self.ids)
            if not self.is_cut and find_batch_refusal(self.target, length) is None:
                shapes.append(("padded", self._padded))
            for length in _choose_lengths(lengths):
                shapes.append((f"chunks of {length}", partial(self._chunks, length)))
                if is_recordable(self.device):
                    static = partial(self._chunks, length, is_static=True)
                    shapes.append((f"chunks of {length}, static cache", static))
        for name, read in shapes:
            try:
                rows = read()
            except (RuntimeError, ValueError, IndexError, NotImplementedError):
                continue
            yield name, rows.float().cpu()

    def _call(self, rows: list[list[int]], wanted: Tensor, start: int = 0, **inputs: Any) -> Tensor:
        """(n, V) logits of the first row at the wanted indices."""
        ids = torch.tensor(rows, device=self.device)
        supports = getattr(self.base, "_supports_logits_to_keep", None)
        if supports is not None and supports():  # long prompts have large logits
            inputs["logits_to_keep"] = wanted.to(self.device)
            wanted = torch.arange(len(wanted), device="cpu")
        if self.source is not None:
            sources = torch.tensor([list(self.source)] * len(rows), device=self.device)
            inputs |= {"input_ids": sources, "decoder_input_ids": ids}
            return self.base(**inputs).logits[0, wanted]  # type: ignore[no-any-return]
        end = start + ids.shape[1]
        inputs.setdefault("attention_mask", ids.new_ones((len(rows), end)))
        if self.takes_positions and "position_ids" not in inputs:
            steps = torch.arange(start, end, device=self.device)
            inputs["position_ids"] = steps.expand(len(rows), -1)
        return self.base(input_ids=ids, **inputs).logits[0, wanted]  # type: ignore[no-any-return]

    def _whole(self, rows: list[list[int]]) -> Tensor:
        return self._call(rows, self.rows, use_cache=False)

    def _padded(self) -> Tensor:
        """After padding, beside a longer text."""
        size = _PADDING + len(self.ids)
        longer = (self.ids * size)[:size]
        steps = torch.arange(size, device=self.device) - _PADDING
        mask = torch.stack([(steps >= 0).long(), torch.ones_like(steps)])
        inputs: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
        if self.takes_positions:
            inputs["position_ids"] = torch.stack([steps.clamp(min=0), steps + _PADDING])
        return self._call([[0] * _PADDING + self.ids, longer], self.rows + _PADDING, **inputs)

    def _chunks(self, length: int, *, is_static: bool = False) -> Tensor:
        """The prompt in one call, then chunks after a cache of `transformers`."""
        config = self.base.config
        own: Cache = DynamicCache(config=config)
        if is_static:
            size = next((size for size in CAPACITIES if size > len(self.ids)), len(self.ids))
            own = StaticCache(config=config, max_cache_len=size)
        cache = {str(cache_argument(self.base)): own}
        first, kept = len(self.prompt), []
        spans = [(0, first), *((n, n + length) for n in range(first, len(self.ids), length))]
        for start, end in spans:
            inside = self.rows[(self.rows >= start) & (self.rows < end)] - start
            wanted = inside if len(inside) else torch.tensor([0], device="cpu")
            logits = self._call([self.ids[start:end]], wanted, start, use_cache=True, **cache)
            kept.append(logits[: len(inside)])
        return torch.cat(kept)


def _choose_lengths(lengths: Iterable[int]) -> list[int]:
    """The median and the largest length above 1; 5 if there is none."""
    ordered = sorted(length for length in lengths if length > 1)
    return sorted({ordered[len(ordered) // 2], ordered[-1]}) if ordered else [5]
