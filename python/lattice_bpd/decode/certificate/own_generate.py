"""The model's own `generate`, made to write a given text, with its logits at each position.

These calls share no code with the calls of `lattice_bpd.verify`: prompt, cache, positions and masks
are those of `transformers`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel

from lattice_bpd.models.hooks import device_of
from lattice_bpd.verify.greedy import FloatRow, greedy_tokens, logits_row

Take = Callable[[int, Tensor], None]


class _WriteText(LogitsProcessor):
    """Passes on the scores of each position, and leaves only the token of the text."""

    def __init__(self, token_ids: Sequence[int], take: Take) -> None:
        self._token_ids, self._take, self._index = token_ids, take, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        self._take(self._index, scores[0])
        only = torch.full_like(scores, -torch.inf)
        only[:, self._token_ids[self._index]] = 0.0
        self._index += 1
        return only


@torch.inference_mode()
def write_text(
    base: Any,
    input_ids: Sequence[int],
    token_ids: Sequence[int],
    take: Take,
    **options: Any,
) -> None:
    """Make `base.generate` write a text, under the model's own generation config.

    Args:
        base: of `transformers`.
        input_ids: (T,) ints, the prompt; for an encoder-decoder the source.
        token_ids: (m,) ints; where one of them ends a text, the rest is not written.
        take: called with each index in token_ids and the scores there, (V,) float32, after all
            logits processors of the generation config.
        options: further arguments of `generate`.
    """
    if not token_ids:
        return
    ids = torch.tensor([list(input_ids)], device=device_of(base))
    with ids.device:  # sliding-window layers of transformers 5.24 name none
        base.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=1,
            max_new_tokens=len(token_ids),
            logits_processor=LogitsProcessorList([_WriteText(token_ids, take)]),
            **options,
        )


def write_plainly(
    base: PreTrainedModel,
    prompt: Sequence[int],
    token_ids: Sequence[int],
    take: Take,
    source: Sequence[int] | None = None,
) -> None:
    """`write_text` without the model's generation config: plain greedy decoding without an end.

    Args:
        base: a causal LM or an encoder-decoder.
        prompt: (T,) ints; for an encoder-decoder the decoder prompt.
        token_ids: (m,) ints.
        take: see `write_text`; the scores are the logits.
        source: (S,) ints, the source of an encoder-decoder.
    """
    plain: Any = copy.copy(base)  # the same modules with another generation config
    plain.generation_config = GenerationConfig(pad_token_id=0)  # type: ignore[no-untyped-call]
    if source is None:
        write_text(plain, prompt, token_ids, take)
        return
    plain.generation_config.decoder_start_token_id = prompt[0]
    start = torch.tensor([list(prompt)], device=device_of(base))
    write_text(plain, source, token_ids, take, decoder_input_ids=start)


class Choices:
    """What plain greedy decoding selects along a text; a `take` of `write_text`.

    Args:
        token_ids: (m,) ints, the text.

    Attributes:
        token_ids: argmax at each position read.
        margins: the logit of the text's token minus the best other logit, at each of them.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._text = token_ids
        self.token_ids: list[int] = []
        self.margins: list[float] = []

    def __call__(self, index: int, scores: Tensor) -> None:
        """Record one position."""
        row = logits_row(scores)
        self.token_ids.append(int(greedy_tokens(torch.from_numpy(row))))
        self.margins.append(margin_of(row, self._text[index]))

    @property
    def differing(self) -> list[int]:
        """The indices at which another token than the text's is selected."""
        pairs = zip(self.token_ids, self._text, strict=False)
        return [index for index, (own, token) in enumerate(pairs) if own != token]


def margin_of(row: FloatRow, token: int) -> float:
    """The logit of a token minus the best other logit; infinite if there is no other."""
    others = (row[:token].max(initial=-np.inf), row[token + 1 :].max(initial=-np.inf))
    return float(row[token]) - float(max(others))
