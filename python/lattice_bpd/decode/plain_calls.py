"""Plain greedy calls along a given text: the prompt in one call, then one token at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from lattice_bpd.decode.model import DraftingModel
from lattice_bpd.verify import CausalLMTarget
from lattice_bpd.verify.greedy import FloatRow, greedy_token, logits_row

MEASURED = 16  # tokens whose logits are kept, to measure rounding on


class PlainCalls:
    """Plain greedy calls along a given text, as far as they are asked for.

    Attributes:
        calls: of the target so far.
        disagreeing: places passed so far where another token is the target's choice.
    """

    def __init__(
        self, target: CausalLMTarget, prompt: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        self._target, self._token_ids, self._place = target, token_ids, 0
        self._kept: dict[int, FloatRow] = {}
        self.calls, self.disagreeing = 1, set[int]()
        output, self._cache = self._target.read_prompts(self._ids(prompt))
        self._take(logits_row(output.logits[0, -1]))

    def row(self, place: int) -> FloatRow:
        """(V,) logits at a place that is one of the first MEASURED, or not yet passed."""
        while self._place < place:
            ids = self._ids(self._token_ids[self._place : self._place + 1])
            self._place += 1
            self.calls += 1
            self._take(logits_row(self._target(ids, self._cache).logits[0, -1]))
        return self._kept.get(place, self._last)

    def _ids(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(token_ids)], device=self._target.device)

    def _take(self, row: FloatRow) -> None:
        self._last = row
        if self._place < MEASURED:
            self._kept[self._place] = row.copy()
        if greedy_token(row) != self._token_ids[self._place]:
            self.disagreeing.add(self._place)


@torch.inference_mode()
def disagreeing_places(
    model: DraftingModel, prompt: Sequence[int], token_ids: Sequence[int]
) -> list[int]:
    """The places of a text where plain greedy calls write another token, all of them read again.

    Args:
        model: the target.
        prompt: (T,) ints.
        token_ids: (m,) ints, the text behind it.

    Raises:
        ValueError: no token, or ids outside the target's vocabulary.
    """
    for name, ids in (("prompt_token_ids", prompt), ("token_ids", token_ids)):
        if not ids:
            raise ValueError(f"certificate: {name} is empty; expected one token or more")
        model.check_token_ids(torch.tensor(ids), f"certificate: {name}")
    plain = PlainCalls(model.target, prompt, token_ids)
    plain.row(len(token_ids) - 1)
    return sorted(plain.disagreeing)


def margin_of(row: FloatRow, token: int) -> float:
    """The logit of a token minus the best other one; infinite where there is no other."""
    others = (row[:token].max(initial=-np.inf), row[token + 1 :].max(initial=-np.inf))
    return float(row[token]) - float(max(others))


def scale_of(row: FloatRow) -> float:
    """The largest |logit|, masked tokens left out."""
    return float(np.abs(row[np.isfinite(row)]).max(initial=0.0))


def difference_of(row: FloatRow, other: FloatRow) -> float:
    """The largest difference of two rows of logits over the scale of the first."""
    known = np.isfinite(row) & np.isfinite(other)
    return float(np.abs(row[known] - other[known]).max(initial=0.0)) / (scale_of(row) or 1.0)
