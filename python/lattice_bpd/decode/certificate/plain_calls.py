"""Plain greedy calls along a given text, to check verifying calls.

The prompt is read in one call, then one token at a time. The calls use the model's own `forward`
with a cache that transformers builds from the model's config, as `generate` does. They share no
code with the calls that they check: neither target nor cache of `lattice_bpd.verify`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.verify.greedy import FloatRow, greedy_token, logits_row


class PlainCalls:
    """Plain greedy calls along a given text, made on demand.

    Args:
        base: a causal LM or an encoder-decoder of `transformers`.
        prompt: (T,) ints; for an encoder-decoder the decoder prompt.
        token_ids: (m,) ints, the text that follows.
        compared: (V,) logits of other calls by index in token_ids, to measure their difference.
        source: (S,) ints, the source of an encoder-decoder.

    Attributes:
        calls: number of calls so far.
        choices: argmax at each index read so far.
        margins: logit of the text's token minus the best other logit, at each of them.
        rounding: largest difference from the compared logits so far, over their scale.
    """

    def __init__(
        self,
        base: PreTrainedModel,
        prompt: Sequence[int],
        token_ids: Sequence[int],
        compared: Mapping[int, FloatRow] | None = None,
        source: Sequence[int] | None = None,
    ) -> None:
        self._base: Any = base
        self._token_ids, self._compared = token_ids, compared or {}
        self.calls, self.rounding = 0, 0.0
        self.choices: list[int] = []
        self.margins: list[float] = []
        embedding: Any = base.get_input_embeddings()
        self._device: torch.device = embedding.weight.device
        self._read = 0
        self._parameters = inspect.signature(base.forward).parameters
        # transformers 5.24 and later; before, recurrent models had the last name
        names = ("cache", "past_key_values", "cache_params")
        self._cache_name = next(name for name in names if name in self._parameters)
        self._fixed = self._inputs_of(source)
        self._row = self._take(self._call(prompt))

    def _inputs_of(self, source: Sequence[int] | None) -> dict[str, Any]:
        """The inputs of all calls: the cache, and the encoded source of an encoder-decoder."""
        base, config = self._base, self._base.config
        if source is None:
            return {self._cache_name: DynamicCache(config=config), "use_cache": True}
        states = base.get_encoder()(input_ids=torch.tensor([list(source)], device=self._device))
        text = config.get_text_config(decoder=True)
        cache = EncoderDecoderCache(DynamicCache(config=text), DynamicCache(config=text))
        return {"encoder_outputs": states, self._cache_name: cache, "use_cache": True}

    def _call(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Read the next tokens of the text; (V,) logits of the token after them."""
        ids = torch.tensor([list(token_ids)], device=self._device)
        start, self._read = self._read, self._read + len(token_ids)
        self.calls += 1
        if "encoder_outputs" in self._fixed:
            return self._base(decoder_input_ids=ids, **self._fixed).logits[0, -1]  # type: ignore[no-any-return]
        inputs = {"input_ids": ids, **self._fixed}
        inputs["attention_mask"] = ids.new_ones((1, self._read))
        if "position_ids" in self._parameters:
            inputs["position_ids"] = torch.arange(start, self._read, device=self._device)[None]
        return self._base(**inputs).logits[0, -1]  # type: ignore[no-any-return]

    def advance_to(self, index: int) -> FloatRow:
        """(V,) logits at an index, which is not before the last one read."""
        while len(self.choices) <= index:
            self._row = self._take(self._call([self._token_ids[len(self.choices) - 1]]))
        return self._row

    def disagreeing(self) -> list[int]:
        """The indices read so far at which the target prefers another token."""
        pairs = zip(self.choices, self._token_ids, strict=False)
        return [index for index, (plain, token) in enumerate(pairs) if plain != token]

    def _take(self, logits: torch.Tensor) -> FloatRow:
        row, index = logits_row(logits), len(self.choices)
        self.choices.append(greedy_token(row))
        self.margins.append(margin_of(row, self._token_ids[index]))
        if index in self._compared:
            self.rounding = max(self.rounding, difference_of(self._compared[index], row))
        return row


@torch.inference_mode()
def disagreeing_positions(
    model: DraftingModel, prompt: Sequence[int], token_ids: Sequence[int]
) -> list[int]:
    """The positions of a text at which plain greedy calls select another token.

    Args:
        model: the target.
        prompt: (T,) ints.
        token_ids: (m,) ints, the text after it.

    Raises:
        ValueError: no token, or ids outside the target's vocabulary.
    """
    for name, ids in (("prompt_token_ids", prompt), ("token_ids", token_ids)):
        if not ids:
            raise ValueError(f"certificate: {name} is empty; expected one token or more")
        model.check_token_ids(torch.tensor(ids), f"certificate: {name}")
    plain = PlainCalls(model.target.base, prompt, token_ids)
    plain.advance_to(len(token_ids) - 1)
    return plain.disagreeing()


def margin_of(row: FloatRow, token: int) -> float:
    """The logit of a token minus the best other logit; infinite if there is no other."""
    others = (row[:token].max(initial=-np.inf), row[token + 1 :].max(initial=-np.inf))
    return float(row[token]) - float(max(others))


def scale_of(row: FloatRow) -> float:
    """The largest |logit| of the tokens that are not masked."""
    return float(np.abs(row[np.isfinite(row)]).max(initial=0.0))


def difference_of(row: FloatRow, other: FloatRow) -> float:
    """The largest difference of two rows of logits over the scale of the first."""
    finite = np.isfinite(row) & np.isfinite(other)
    return float(np.abs(row[finite] - other[finite]).max(initial=0.0)) / (scale_of(row) or 1.0)
