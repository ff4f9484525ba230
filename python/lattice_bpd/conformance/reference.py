"""Reference outputs of `model.generate(do_sample=False)`, and margins of its choices.

Nothing here uses this library: the model's own method continues each prompt alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

_ROUNDINGS_IN_A_LAYER = 16


@dataclass
class ReferenceText:
    """The output for one prompt.

    Attributes:
        prompt: (T,) ints; of an encoder-decoder the source.
        output: the ids that `generate` returned after the prompt; of an encoder-decoder all ids.
        logits: (m, V) float32 of each generated token, before any processor.
    """

    prompt: list[int]
    output: list[int]
    logits: Tensor


@dataclass
class Reference:
    """The outputs of a model under its own `generate`.

    Attributes:
        model: of `transformers`.
        prompts: token ids.
        max_new_tokens: of each text.
    """

    model: Any
    prompts: list[list[int]]
    max_new_tokens: int
    _texts: dict[str, list[ReferenceText]] = field(default_factory=dict)

    def texts(self, settings: dict[str, Any] | None = None) -> list[ReferenceText]:
        """The output of each prompt.

        Args:
            settings: attributes of a GenerationConfig that replace the model's.
        """
        settings = settings or {}
        key = repr(sorted(settings.items()))
        if key not in self._texts:
            with generation_settings(self.model, settings):
                self._texts[key] = [self._generate(prompt) for prompt in self.prompts]
        return self._texts[key]

    @torch.inference_mode()
    def _generate(self, prompt: Sequence[int]) -> ReferenceText:
        ids = torch.tensor([list(prompt)], device=self.model.device)
        generated = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=self.max_new_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        output = generated.sequences[0].tolist()
        if not self.model.config.is_encoder_decoder:
            output = output[len(prompt) :]
        logits = torch.stack([step[0].float().cpu() for step in generated.logits])
        return ReferenceText(list(prompt), output, logits)

    @torch.inference_mode()
    def margins(
        self, text: ReferenceText, index: int, other: int, penalty: float = 1.0
    ) -> tuple[float, float, float]:
        """The logit margin of the model's own token over another, by two plain calls.

        Args:
            text: of `texts()`.
            index: into `text.output`.
            other: the other token.
            penalty: repetition penalty of the text's settings, which the logits then include.

        Returns:
            Logit of the model's token minus that of the other in its own `generate`, the same by
            one call without a cache, and the largest |logit| there.
        """
        step = index - (len(text.output) - len(text.logits))
        before = text.output[:index]
        if not self.model.config.is_encoder_decoder:
            before = text.prompt + before
        penalize = RepetitionPenaltyLogitsProcessor(penalty)
        rows = torch.stack([text.logits[step], self._read(text, index)])
        row, whole = penalize(torch.tensor([before, before]), rows)
        token = text.output[index]
        scale = penalty * float(row[row.isfinite()].abs().max())
        return float(row[token] - row[other]), float(whole[token] - whole[other]), scale

    def _read(self, text: ReferenceText, index: int) -> Tensor:
        """(V,) logits of a token by one call over all tokens before it."""
        source = torch.tensor([text.prompt], device=self.model.device)
        before = torch.tensor([text.output[:index]], dtype=torch.long, device=self.model.device)
        if self.model.config.is_encoder_decoder:
            inputs = {"input_ids": source, "decoder_input_ids": before}
        else:
            inputs = {"input_ids": torch.cat([source, before], dim=1)}
        logits: Tensor = self.model(**inputs, use_cache=False).logits[0, -1]
        return logits.float().cpu()


def rounding_bound(model: Any, scale: float) -> float:
    """The largest difference of two logits that rounding explains, from dtype and layers alone.

    Each layer rounds about 16 times in sequence, and errors of L layers add up like a random walk,
    so the error of a logit is eps * sqrt(16 L) * scale. Two logits may err in opposite directions,
    in both calls that are compared: a factor of 2, twice.
    """
    config = model.config.get_text_config()
    layers = int(getattr(config, "num_hidden_layers", 1) or 1)
    eps = torch.finfo(model.dtype).eps
    return 4 * eps * math.sqrt(_ROUNDINGS_IN_A_LAYER * layers) * scale


def cut_at_end(token_ids: list[int], end_token_ids: Sequence[int]) -> list[int]:
    """The tokens up to the first that ends a text, itself included; what follows is padding."""
    ends = (index for index, token in enumerate(token_ids, 1) if token in end_token_ids)
    return token_ids[: next(ends, None)]


@contextmanager
def generation_settings(model: Any, settings: dict[str, Any]) -> Iterator[None]:
    """Give the model a greedy generation config with some changes, and restore it afterwards."""
    before = model.generation_config
    changed = copy.deepcopy(before)
    for name, value in {"do_sample": False, **settings}.items():
        setattr(changed, name, value)
    model.generation_config = changed
    try:
        yield
    finally:
        model.generation_config = before
