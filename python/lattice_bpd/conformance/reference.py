"""Reference outputs of `model.generate(do_sample=False)`, and its choices along other texts.

No text here is decoded by this library: the model's own method continues each prompt alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lattice_bpd.decode.certificate.noise import follow_text
from lattice_bpd.decode.certificate.own_generate import Choices, write_text
from lattice_bpd.decode.state.model import DraftingModel


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
    _followed: dict[Any, Choices] = field(default_factory=dict)

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

    def follow(
        self, text: ReferenceText, token_ids: Sequence[int], settings: dict[str, Any] | None = None
    ) -> Choices:
        """What `generate` selects along another text after the same prompt.

        Args:
            text: of `texts(settings)`.
            token_ids: (m,) ints, generated tokens.
            settings: see `texts`.

        Returns:
            The choices, fewer than m if `generate` ends before.
        """
        key = (repr(sorted((settings or {}).items())), tuple(text.prompt), tuple(token_ids))
        if key not in self._followed:
            self._followed[key] = choices = Choices(token_ids)
            with generation_settings(self.model, settings or {}):
                write_text(self.model, text.prompt, token_ids, choices)
        return self._followed[key]

    @cached_property
    def margin_bound(self) -> float:
        """The largest difference of two logits that rounding explains, by calls of the model."""
        target = DraftingModel(self.model).target
        bounds = []
        for text in self.texts():
            start = text.output[: len(text.output) - len(text.logits)]
            prompt, source = (start, text.prompt) if start else (text.prompt, None)
            token_ids = text.output[len(start) :]
            bounds.append(follow_text(target, prompt, token_ids, source=source)[1].margin_bound)
        return max(bounds)


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
