"""Lossless certificates: could floating point have decided otherwise, and did it?

Calls of different shapes add up in different orders, so the logits of a verifying call and those of
plain greedy decoding differ by rounding. Where the target's two best logits differ by more than a
bound, rounding cannot decide; the few other tokens are decided again by plain calls: the prompt in
one call, then one token at a time, through the model's own `forward` (`plain_calls`).

    bound      4 sqrt(2 layers + 1) (eps + sqrt(terms) eps32) scale     see `verify.rounding`
    scale      largest |logit| of the position
    measured   largest difference of logits / scale between verifying and plain calls, on 16 tokens
               of this very text that calls with drafts gave, and on its first 16

The bound follows from the dtype and the size of the model. A measured difference of more than half
of it (two logits share the bound) is more than rounding explains: then the verdict is "different".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.decode.certificate.plain_calls import PlainCalls, margin_of, scale_of
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify.greedy import FloatRow, greedy_token, logits_row
from lattice_bpd.verify.rounding import FORMULA, rounding_bound
from lattice_bpd.verify.source_cache import Source
from lattice_bpd.verify.verification import Offer

FORMAT, VERSION = "lattice-bpd certificate", 2
MEASURED = 16  # tokens on which rounding is measured, of either kind

CallShape = tuple[str, int, int]


@dataclass(frozen=True)
class CheckedPlace:
    """A token whose margin is below the bound, decided once more by a plain call.

    Attributes:
        place: its number among the decoded tokens, from 0.
        token_id: what was written.
        margin: the best logit minus the second in the verifying call.
        bound: below which rounding could decide.
        plain_token_id: what the plain call writes there.
        plain_margin: the logit of token_id minus the best other one in the plain call; below 0
            where it writes another token.
    """

    place: int
    token_id: int
    margin: float
    bound: float
    plain_token_id: int
    plain_margin: float

    @property
    def agrees(self) -> bool:
        """Whether the plain call writes the same token."""
        return self.plain_token_id == self.token_id


@dataclass
class Certificate:
    """What stands behind the claim that a text is greedy's.

    Attributes:
        prompt_token_ids: (T,) ints.
        token_ids: (m,) ints, the decoded text.
        margins: (m,) the target's best logit minus its second, in the call that verified.
        bounds: (m,) below which rounding could have decided otherwise.
        rounding: the measured difference of logits, relative to the largest |logit|; more than
            half of `tolerance` is no rounding.
        tolerance: what the bounds are, relative to the largest |logit| of their position.
        eps: of the dtype.
        dtype: the target's.
        device: where it ran.
        batch_size: texts that were decoded together.
        shapes: form ("prompt", "tree" or "rows"), rows and tokens of the calls that verified.
        checked: the places below their bounds, each decided again.
        plain_calls: calls that measuring and checking took.
        verdict: "lossless": every place below its bound came out the same again. "tie": at one at
            least the plain call prefers another token, and the bound holds for that too: rounding
            decides there, and plain decoding may go on differently. "different": a plain call
            disagrees by more than the bound.
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
    checked: list[CheckedPlace] = field(default_factory=list)
    plain_calls: int = 0
    verdict: str = "lossless"

    def to_json(self) -> dict[str, Any]:
        """The fields by name, with format, formula and the count of places below their bounds."""
        found = {"format": FORMAT, "version": VERSION, "formula": FORMULA, **asdict(self)}
        found["checked"] = [
            {**asdict(place), "agrees": place.agrees} for place in self.checked
        ]  # fmt: skip
        return {**found, "below_bound": len(self.checked)}

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read what `save` wrote.

        Raises:
            FormatError: no certificate, or one of another version.
            OSError: the file cannot be read.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            if (found.pop("format"), found.pop("version")) != (FORMAT, VERSION):
                raise ValueError("another format or version")
            checked = [
                CheckedPlace(**{name: value for name, value in place.items() if name != "agrees"})
                for place in found.pop("checked")
            ]
            shapes = [(form, rows, tokens) for form, rows, tokens in found.pop("shapes")]
            del found["formula"], found["below_bound"]
            loaded = cls(**found, shapes=shapes, checked=checked)
            if not len(loaded.token_ids) == len(loaded.margins) == len(loaded.bounds):
                raise ValueError("tokens, margins and bounds are not as many")
            return loaded
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(
                f"{path}: not a certificate ({error!r}); expected a file that "
                "lattice-bpd generate --certificate or Certificate.save wrote"
            ) from error

    def save(self, path: str | Path) -> None:
        """Write a JSON file; whoever reads meanwhile sees the old one or the new one.

        Raises:
            OSError: the file cannot be written.
        """
        path = Path(path)
        temporary = path.with_name(f".{path.name}")
        try:
            temporary.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


class CertificateError(ValueError):
    """The text, or the logits it was chosen by, are not those of plain greedy decoding.

    Attributes:
        certificate: what was measured, with the verdict "different".
    """

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate
        apart = [checked.place for checked in certificate.checked if not checked.agrees]
        super().__init__(
            f"certificate: the output differs from plain greedy decoding by more than rounding: "
            f"the logits differ by {certificate.rounding:.2g} of the largest, rounding in "
            f"{certificate.dtype} explains {certificate.tolerance / 2:.2g}"
            + (f"; other tokens at {apart[:5]}" if apart else "")
            + "; decode with strategy 'greedy' and report the model's class, or ask for "
            "certificate='report' to get the result anyway"
        )


class MarginChooser:
    """Argmax that remembers by how much it led; a Chooser for one text.

    Attributes:
        ended: False.
        margins: of each chosen token.
        scales: largest |logit| of each place.
        rows: (V,) float32 logits by place, of those that rounding is measured on.
    """

    ended = False

    def __init__(self) -> None:
        self.margins: list[float] = []
        self.scales: list[float] = []
        self.rows: dict[int, FloatRow] = {}
        self._drafted = 0

    def choose(self, logits: torch.Tensor, offer: Offer) -> int:
        """See `lattice_bpd.verify.Chooser`."""
        row, place = logits_row(logits), len(self.margins)
        best = greedy_token(row)
        self.margins.append(margin_of(row, best))
        self.scales.append(scale_of(row))
        drafted = offer.depth > 0 or len(offer.token_ids) > 0
        if place < MEASURED or (drafted and self._drafted < MEASURED):
            self.rows[place] = row.copy()
        self._drafted += drafted
        return best


@torch.inference_mode()
def certify(
    model: DraftingModel,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    chooser: MarginChooser,
    shapes: Iterable[CallShape],
    batch_size: int,
    source: Source | None = None,
) -> Certificate:
    """Measure rounding, decide the places below the bound again, and say what was found.

    Args:
        model: the target.
        prompt: (T,) ints.
        token_ids: (m,) ints, what was decoded.
        chooser: which has seen all m places.
        shapes: of the verifying calls.
        batch_size: texts decoded together.
        source: of an encoder-decoder the encoded source, one row.

    Returns:
        Certificate.
    """
    count, base = len(token_ids), model.target.base
    rows = {place: row for place, row in chooser.rows.items() if place < count}
    source_ids = None if source is None else source.token_ids[0]
    plain = PlainCalls(base, prompt, token_ids, rows, source_ids)
    plain.go_to(max(rows))
    tolerance, eps = rounding_bound(base), float(torch.finfo(base.dtype).eps)
    bounds = [tolerance * scale for scale in chooser.scales[:count]]
    found = Certificate(
        list(prompt), list(token_ids), chooser.margins[:count], bounds, plain.rounding, tolerance,
        eps, str(base.dtype).removeprefix("torch."), str(model.device), batch_size, sorted(shapes),
    )  # fmt: skip
    places = [place for place in range(count) if found.margins[place] < bounds[place]]
    if places:
        plain.go_to(places[-1])
    found.checked = [
        CheckedPlace(place, token_ids[place], found.margins[place], bounds[place],
                     plain.choices[place], plain.margins[place])
        for place in places
    ]  # fmt: skip
    found.plain_calls = plain.calls
    found.rounding = plain.rounding
    found.verdict = _verdict(found, set(plain.disagreeing()) - set(places))
    return found


def _verdict(found: Certificate, others: set[int]) -> str:
    """See Certificate; others are places above the bound where a plain call disagrees."""
    apart = [place for place in found.checked if not place.agrees]
    if found.rounding > found.tolerance / 2 or others:
        return "different"
    if any(place.plain_margin < -place.bound for place in apart):
        return "different"
    return "tie" if apart else "lossless"
