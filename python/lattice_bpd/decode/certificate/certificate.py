"""Certificates that a decoded text equals plain greedy decoding despite rounding.

Calls of different shapes sum in different orders, so the logits of a verifying call differ from
those of plain greedy decoding by rounding. If the target's two best logits differ by more than a
bound, rounding cannot change the argmax. The few other tokens are checked by plain calls: the
prompt in one call, then one token at a time, through the model's own `forward` (`plain_calls`).

    bound      4 sqrt(2 layers + 1) (eps + sqrt(terms) eps32) scale     see `verify.rounding`
    scale      largest |logit| of the position
    measured   largest difference of logits / scale between verifying and plain calls, on the first
               16 tokens of the text and the first 16 that calls with drafts returned

The bound follows from the dtype and the size of the model. Rounding explains a measured
difference of up to half the bound, since it applies to the difference of two logits. A larger one
gives the verdict "different".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_json
from lattice_bpd.decode.certificate.plain_calls import PlainCalls, margin_of, scale_of
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify.greedy import FloatRow, greedy_token, logits_row
from lattice_bpd.verify.rounding import FORMULA, rounding_bound
from lattice_bpd.verify.source_cache import Source
from lattice_bpd.verify.verification import DraftCandidates

FORMAT, VERSION = "lattice-bpd certificate", 2
MEASURED = 16  # measured tokens of each kind: first tokens, and tokens of calls with drafts

CallShape = tuple[str, int, int]


@dataclass(frozen=True)
class CheckedPosition:
    """A token with a margin below the bound, checked by a plain call.

    Attributes:
        position: index of the token in the decoded text, from 0.
        token_id: the decoded token.
        margin: the best logit minus the second in the verifying call.
        bound: smaller margins can be due to rounding.
        plain_token_id: argmax of the plain call.
        plain_margin: the logit of token_id minus the best other logit in the plain call; below 0
            if the plain call prefers another token.
    """

    position: int
    token_id: int
    margin: float
    bound: float
    plain_token_id: int
    plain_margin: float

    @property
    def agrees(self) -> bool:
        """Whether the plain call selects the same token."""
        return self.plain_token_id == self.token_id


@dataclass
class Certificate:
    """Evidence that a text equals the target's greedy output.

    Attributes:
        prompt_token_ids: (T,) ints.
        token_ids: (m,) ints, the decoded text.
        margins: (m,) the target's best logit minus its second, in the verifying call.
        bounds: (m,) margins below these can be due to rounding.
        rounding: the measured difference of logits, relative to the largest |logit|; rounding
            explains up to half of `tolerance`.
        tolerance: the bounds relative to the largest |logit| of their position.
        eps: machine epsilon of the dtype.
        dtype: the target's.
        device: the target's.
        batch_size: texts that were decoded together.
        shapes: layout ("prompt", "tree" or "rows"), rows and tokens of the verifying calls.
        checked: the positions with margins below their bounds.
        plain_calls: number of plain calls for measuring and checking.
        verdict: "lossless": plain calls agree at all checked positions. "tie": at one or more of
            them the plain call prefers another token by less than the bound, so that rounding
            decides and plain decoding may continue differently. "different": the logits differ by
            more than rounding explains, or a plain call disagrees by more than the bound.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    margins: list[float]
    bounds: list[float]
    rounding: float
    tolerance: float
    eps: float
    dtype: str
    device: str
    batch_size: int
    shapes: list[CallShape]
    checked: list[CheckedPosition] = field(default_factory=list)
    plain_calls: int = 0
    verdict: str = "lossless"

    def to_json(self) -> dict[str, Any]:
        """The fields by name, with format, formula and the number of checked positions."""
        fields = {"format": FORMAT, "version": VERSION, "formula": FORMULA, **asdict(self)}
        fields["checked"] = [_checked_to_json(checked) for checked in self.checked]
        return {**fields, "below_bound": len(self.checked)}

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a file of `save`.

        Raises:
            FormatError: not a certificate, or one of another version.
            OSError: the file cannot be read.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            fields = check_header(content, FORMAT, VERSION)
            checked = [_checked_from_json(item) for item in fields.pop("checked")]
            shapes = [(layout, rows, tokens) for layout, rows, tokens in fields.pop("shapes")]
            del fields["formula"], fields["below_bound"]
            loaded = cls(**fields, shapes=shapes, checked=checked)
            if not len(loaded.token_ids) == len(loaded.margins) == len(loaded.bounds):
                raise ValueError("tokens, margins and bounds have different lengths")
            return loaded
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(
                f"{path}: not a certificate ({error!r}); expected a file that "
                "lattice-bpd generate --certificate or Certificate.save wrote"
            ) from error

    def save(self, path: str | Path) -> None:
        """Writes a JSON file atomically.

        Raises:
            OSError: the file cannot be written.
        """
        write_json(Path(path), self.to_json(), indent=1)


class CertificateError(ValueError):
    """The text or its logits differ from plain greedy decoding by more than rounding.

    Attributes:
        certificate: the measurements, with the verdict "different".
    """

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate
        differing = [checked.position for checked in certificate.checked if not checked.agrees]
        super().__init__(
            f"certificate: the output differs from plain greedy decoding by more than rounding: "
            f"the logits differ by {certificate.rounding:.2g} of the largest, rounding in "
            f"{certificate.dtype} explains {certificate.tolerance / 2:.2g}"
            + (f"; other tokens at positions {differing[:5]}" if differing else "")
            + "; decode with strategy 'greedy' and report the model's class, or set "
            "certificate='report' to get the result anyway"
        )


class MarginSelector:
    """Argmax that records margins; a TokenSelector for one text.

    Attributes:
        ended: False.
        margins: of each selected token.
        scales: largest |logit| of each position.
        rows: (V,) float32 logits by position, for those on which rounding is measured.
    """

    ended = False

    def __init__(self) -> None:
        self.margins: list[float] = []
        self.scales: list[float] = []
        self.rows: dict[int, FloatRow] = {}
        self._drafted = 0

    def choose(self, logits: torch.Tensor, candidates: DraftCandidates) -> int:
        """See `lattice_bpd.verify.verification.TokenSelector`."""
        row, position = logits_row(logits), len(self.margins)
        best = greedy_token(row)
        self.margins.append(margin_of(row, best))
        self.scales.append(scale_of(row))
        drafted = candidates.depth > 0 or len(candidates.token_ids) > 0
        if position < MEASURED or (drafted and self._drafted < MEASURED):
            self.rows[position] = row.copy()
        self._drafted += drafted
        return best


@torch.inference_mode()
def certify(
    model: DraftingModel,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    selector: MarginSelector,
    shapes: Iterable[CallShape],
    batch_size: int,
    source: Source | None = None,
) -> Certificate:
    """Measure rounding, and check the positions with margins below their bounds.

    Args:
        model: the target.
        prompt: (T,) ints.
        token_ids: (m,) ints, the decoded text.
        selector: has recorded all m positions.
        shapes: of the verifying calls.
        batch_size: texts decoded together.
        source: the encoded source of an encoder-decoder, one row.

    Returns:
        Certificate.
    """
    count, base = len(token_ids), model.target.base
    rows = {position: row for position, row in selector.rows.items() if position < count}
    source_ids = None if source is None else source.token_ids[0]
    plain = PlainCalls(base, prompt, token_ids, rows, source_ids)
    plain.advance_to(max(rows))
    tolerance, eps = rounding_bound(base), float(torch.finfo(base.dtype).eps)
    bounds = [tolerance * scale for scale in selector.scales[:count]]
    certificate = Certificate(
        list(prompt), list(token_ids), selector.margins[:count], bounds, plain.rounding, tolerance,
        eps, str(base.dtype).removeprefix("torch."), str(model.device), batch_size, sorted(shapes),
    )  # fmt: skip
    margins = certificate.margins
    below = [position for position in range(count) if margins[position] < bounds[position]]
    if below:
        plain.advance_to(below[-1])
    certificate.checked = [
        CheckedPosition(position, token_ids[position], margins[position], bounds[position],
                        plain.choices[position], plain.margins[position])
        for position in below
    ]  # fmt: skip
    certificate.plain_calls = plain.calls
    certificate.rounding = plain.rounding
    certificate.verdict = _verdict(certificate, set(plain.disagreeing()) - set(below))
    return certificate


def _verdict(certificate: Certificate, others: set[int]) -> str:
    """See Certificate; others are positions above the bound at which a plain call disagrees."""
    differing = [checked for checked in certificate.checked if not checked.agrees]
    if certificate.rounding > certificate.tolerance / 2 or others:
        return "different"
    if any(checked.plain_margin < -checked.bound for checked in differing):
        return "different"
    return "tie" if differing else "lossless"


def _checked_to_json(checked: CheckedPosition) -> dict[str, Any]:
    """The fields as in files, whose key for the position is "place"."""
    fields = asdict(checked)
    return {"place": fields.pop("position"), **fields, "agrees": checked.agrees}


def _checked_from_json(item: dict[str, Any]) -> CheckedPosition:
    fields = {name: value for name, value in item.items() if name not in ("place", "agrees")}
    return CheckedPosition(item["place"], **fields)
