"""Plain greedy calls along a given text: the prompt in one call, then one token at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lattice_bpd.decode.model import DraftingModel
from lattice_bpd.verify import CausalLMTarget, Seq2SeqTarget, Source
from lattice_bpd.verify.greedy import FloatRow, greedy_token, logits_row


class PlainCalls:
    """Plain greedy calls along a given text, as far as they are asked for.

    Args:
        target: the target.
        prompt: (T,) ints.
        token_ids: (m,) ints, the text behind it.
        compared: (V,) logits of other calls by place, to measure how far these differ.
        source: of an encoder-decoder the encoded source, one row.

    Attributes:
        calls: of the target so far.
        choices: of each place passed so far the target's token.
        margins: and the logit of the text's token minus the best other one.
        rounding: the largest difference from the compared logits so far, over their scale.
    """

    def __init__(
        self,
        target: CausalLMTarget | Seq2SeqTarget,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        compared: Mapping[int, FloatRow] | None = None,
        source: Source | None = None,
    ) -> None:
        self._target, self._token_ids, self._compared = target, token_ids, compared or {}
        self.calls, self.rounding = 1, 0.0
        self.choices: list[int] = []
        self.margins: list[float] = []
        ids = self._ids(prompt)
        self._cache: Any
        if isinstance(target, Seq2SeqTarget):
            output, self._cache = target.read_prompts(ids, source=source)
        else:
            output, self._cache = target.read_prompts(ids)
        self._row = self._take(output.logits[0, -1])

    def go_to(self, place: int) -> FloatRow:
        """(V,) logits at a place that is the last one passed, or behind it."""
        while len(self.choices) <= place:
            ids = self._ids([self._token_ids[len(self.choices) - 1]])
            self.calls += 1
            self._row = self._take(self._target(ids, self._cache).logits[0, -1])
        return self._row

    def disagreeing(self) -> list[int]:
        """The places passed so far where the target's token is another."""
        pairs = zip(self.choices, self._token_ids, strict=False)
        return [place for place, (plain, token) in enumerate(pairs) if plain != token]

    def _ids(self, token_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(token_ids)], device=self._target.device)

    def _take(self, logits: torch.Tensor) -> FloatRow:
        row, place = logits_row(logits), len(self.choices)
        self.choices.append(greedy_token(row))
        self.margins.append(margin_of(row, self._token_ids[place]))
        if place in self._compared:
            self.rounding = max(self.rounding, difference_of(self._compared[place], row))
        return row


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
    plain.go_to(len(token_ids) - 1)
    return plain.disagreeing()


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
