"""Heads for tests that know the greedy output and make planned mistakes.

Drafts of random heads are never accepted, so they test neither acceptance nor cache updates. These
heads give the right token the highest logit, the second highest, or a very low one, by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_RANKS = (0, 0, 1, 0, None, 0, 1, 0, 0)  # of the right token; None: not among the candidates


class InformedHeads:
    """A source of head logits; see `lattice_bpd.decode.state.DraftHeads`.

    Args:
        texts: token ids of prompts and outputs; of encoder-decoders outputs only.
        vocab_size: V.
        num_slots: H.

    Attributes:
        num_slots: H.
        max_decoded: the most new tokens of any sequence when heads ran.
    """

    def __init__(self, texts: Sequence[Sequence[int]], vocab_size: int, num_slots: int = 4) -> None:
        self.texts = [list(text) for text in texts]
        self.vocab_size, self.num_slots = vocab_size, num_slots
        self.max_decoded = 0

    def read_states(self, states: Sequence[Any]) -> Tensor:
        """(B, H, V) float32."""
        decoded = [len(state.tokens) - state.prompt_length for state in states]
        self.max_decoded = max(self.max_decoded, *decoded)
        return torch.stack([self._logits(list(state.tokens)) for state in states])

    def _logits(self, tokens: list[int]) -> Tensor:
        length = len(tokens)
        generator = torch.Generator().manual_seed(length)
        logits = torch.randn((self.num_slots, self.vocab_size), generator=generator)
        text = next((t for t in self.texts if t[:length] == tokens), None)
        following = [] if text is None else text[length : length + self.num_slots]
        for slot, token in enumerate(following):
            rank = _RANKS[(3 * length + 5 * slot) % len(_RANKS)]
            if rank is None:
                logits[slot, token] = -10.0
                continue
            logits[slot, token] = 10.0
            if rank == 1:
                logits[slot, (token + 1) % self.vocab_size] = 11.0
        return logits
