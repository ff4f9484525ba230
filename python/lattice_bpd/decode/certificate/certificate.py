"""Certificates that a decoded text is the target's greedy output, up to rounding.

Calls of different shapes sum in different orders, so the logits of a verifying call differ from
those of plain greedy decoding by rounding. A certificate makes the target's own `generate` write
the text, compares its choices and its logits with those of the verifying calls at every position,
and measures what rounding explains: the differences between `generate` and the target's own
`forward` in other shapes (`noise`). Bounds are multiples of that noise; nothing that this library
computes enters them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import torch

from lattice_bpd._core import FormatError
from lattice_bpd.atomic_files import check_header, write_json
from lattice_bpd.decode.certificate.noise import (
    FORMULA,
    LEAST_FOR_MEAN,
    Noise,
    follow_text,
    largest_differences,
)
from lattice_bpd.decode.certificate.own_generate import margin_of
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify.greedy import DraftCandidates, greedy_tokens, logits_row

FORMAT, VERSION = "lattice-bpd certificate", 4
_ROW_BYTES = 1 << 28  # of logits that are kept for the comparison

CallShape = tuple[str, int, int]


@dataclass(frozen=True)
class CheckedPosition:
    """A token that rounding could have changed: its margin is below the bound.

    Attributes:
        position: index of the token in the decoded text, from 0.
        token_id: the decoded token.
        margin: the best logit minus the second in the verifying call.
        plain_token_id: the choice of the target's own `generate`.
        plain_margin: there, the logit of token_id minus the best other logit; below 0 if another
            token is selected.
    """

    position: int
    token_id: int
    margin: float
    plain_token_id: int
    plain_margin: float

    @property
    def agrees(self) -> bool:
        """Whether the target's own `generate` selects the same token."""
        return self.plain_token_id == self.token_id


@dataclass
class Certificate:
    """Evidence that a text is the target's greedy output.

    Attributes:
        prompt_token_ids: (T,) ints.
        token_ids: (m,) ints, the decoded text.
        margins: (m,) the target's best logit minus its second, in the verifying call.
        noise: what rounding explains, measured without this library's calls, with its sample size.
        difference: largest difference of a logit between verifying calls and `generate`.
        mean_difference: mean over positions of the largest difference of a logit.
        compared: number of positions at which logits were compared; all, unless the text is long.
        beyond: those of them at which a logit differs by more than noise explains.
        dtype: the target's.
        device: the target's.
        batch_size: texts that were decoded together.
        shapes: layout ("prompt", "tree" or "rows"), rows and tokens of the verifying calls.
        checked: the positions with margins below `noise.margin_bound`, and any others at which
            `generate` selects another token.
        verdict: "lossless": the target's own `generate` selects every token of the text. "tie": at
            one or more positions it prefers another token by less than the bound, so that rounding
            decides there. "different": it prefers another token by more, or logits differ by more
            than rounding explains.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    margins: list[float]
    noise: Noise
    difference: float
    mean_difference: float
    compared: int
    beyond: list[int]
    dtype: str
    device: str
    batch_size: int
    shapes: list[CallShape]
    checked: list[CheckedPosition] = field(default_factory=list)
    verdict: str = "lossless"

    @property
    def differing(self) -> list[CheckedPosition]:
        """The positions at which the target's own `generate` selects another token."""
        return [checked for checked in self.checked if not checked.agrees]

    def to_json(self) -> dict[str, Any]:
        """The fields by name, with format, formula and the bounds."""
        fields = {"format": FORMAT, "version": VERSION, "formula": FORMULA, **asdict(self)}
        noise = self.noise
        fields["noise"] |= {
            "samples": noise.samples,
            "logit_bound": noise.logit_bound,
            "mean_bound": noise.mean_bound,
            "margin_bound": noise.margin_bound,
        }
        for item, checked in zip(fields["checked"], self.checked, strict=True):
            item["agrees"] = checked.agrees
        return fields

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
            listed = fields.pop("checked")
            names = [one.name for one in dataclass_fields(CheckedPosition)]
            checked = [CheckedPosition(*(item[name] for name in names)) for item in listed]
            shapes = [(layout, rows, tokens) for layout, rows, tokens in fields.pop("shapes")]
            names = [one.name for one in dataclass_fields(Noise)]
            measured = fields.pop("noise")
            noise = Noise(**{name: measured[name] for name in names})
            del fields["formula"]
            loaded = cls(**fields, noise=noise, shapes=shapes, checked=checked)
            if len(loaded.token_ids) != len(loaded.margins):
                raise ValueError("tokens and margins have different lengths")
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
        self.certificate, noise = certificate, certificate.noise
        apart = [checked.position for checked in certificate.differing]
        super().__init__(
            f"certificate: the output differs from the model's own generate by more than rounding: "
            f"logits differ by up to {certificate.difference:.2g}, by "
            f"{certificate.mean_difference:.2g} on average; calls of the model itself in "
            f"{certificate.dtype} explain {noise.logit_bound:.2g} and {noise.mean_bound:.2g}"
            + (f"; generate selects other tokens at positions {apart[:5]}" if apart else "")
            + "; decode with strategy 'greedy' and report the model's class, or set "
            "certificate='report' to get the result anyway"
        )


class MarginSelector:
    """Argmax that records margins and logits; a TokenSelector for one text.

    Attributes:
        ended: False.
        margins: of each selected token.
        rows: (V,) logits by position, on the CPU: of every position while they fit in 256 MiB,
            then of every second, and so on.
    """

    ended = False

    def __init__(self) -> None:
        self.margins: list[float] = []
        self.rows: dict[int, torch.Tensor] = {}
        self._stride = 1

    def choose(self, logits: torch.Tensor, candidates: DraftCandidates) -> int:  # noqa: ARG002
        """See `lattice_bpd.verify.greedy.TokenSelector`."""
        row, position = logits_row(logits), len(self.margins)
        best = int(greedy_tokens(torch.from_numpy(row)))
        self.margins.append(margin_of(row, best))
        if position % self._stride == 0:
            self.rows[position] = logits.detach().to("cpu", copy=True)
            if len(self.rows) * logits.numel() * logits.element_size() > _ROW_BYTES:
                self._stride *= 2
                self.rows = {n: kept for n, kept in self.rows.items() if n % self._stride == 0}
        return best


def certify(
    model: DraftingModel,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    selector: MarginSelector,
    shapes: Iterable[CallShape],
    batch_size: int,
    source: Any = None,
    *,
    cpu_kernels: bool = False,
) -> Certificate:
    """Compare a text with the target's own `generate`, and measure the noise of its logits.

    Args:
        model: the target.
        prompt: (T,) ints.
        token_ids: (m,) ints, the decoded text.
        selector: has recorded all m positions.
        shapes: of the verifying calls.
        batch_size: texts decoded together.
        source: the encoded source of an encoder-decoder, one row.
        cpu_kernels: see `follow_text`.

    Returns:
        Certificate.
    """
    base, shapes = model.target.base, sorted(shapes)
    differences: dict[int, float] = {}

    def compare(index: int, logits: torch.Tensor) -> None:
        if index in selector.rows:
            pair = selector.rows[index].float()[None], logits.float().cpu()[None]
            differences[index] = float(largest_differences(*pair))

    lengths = [tokens for layout, _, tokens in shapes if layout != "prompt"]
    source_ids = None if source is None else source.token_ids[0]
    choices, noise = follow_text(
        model.target, prompt, token_ids, lengths, source_ids, compare, cpu_kernels=cpu_kernels
    )
    margins, bounds = selector.margins[: len(token_ids)], noise.logit_bounds()
    listed = {n for n, margin in enumerate(margins) if margin < noise.margin_bound}
    certificate = Certificate(
        list(prompt), list(token_ids), margins, noise,
        max(differences.values()), sum(differences.values()) / len(differences), len(differences),
        [n for n, size in differences.items() if size > bounds.get(n, noise.logit_bound)],
        str(base.dtype).removeprefix("torch."), str(model.device), batch_size, shapes,
    )  # fmt: skip
    certificate.checked = [
        CheckedPosition(position, token_ids[position], margins[position],
                        choices.token_ids[position], choices.margins[position])
        for position in sorted(listed.union(choices.differing))
    ]  # fmt: skip
    certificate.verdict = _verdict(certificate)
    return certificate


def _verdict(certificate: Certificate) -> str:
    """See Certificate."""
    noise, differing = certificate.noise, certificate.differing
    has_mean = certificate.compared >= LEAST_FOR_MEAN
    is_far = certificate.beyond or (has_mean and certificate.mean_difference > noise.mean_bound)
    if is_far or any(-checked.plain_margin > noise.margin_bound for checked in differing):
        return "different"
    return "tie" if differing else "lossless"
