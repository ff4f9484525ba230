"""A drafter that knows what the target writes, with errors planted at known tokens."""

from __future__ import annotations

import numpy as np
import torch

from lattice_bpd import Drafts
from lattice_bpd.decode import Drafter


class PlantedDrafts(Drafter):
    """Drafts the known continuation of its text, every `wrong`-th token replaced by another.

    Args:
        continuation: what the target writes.
        vocab_size: V.
        num_slots: longest draft.
        wrong: which tokens are replaced.
    """

    def __init__(self, continuation, vocab_size, num_slots=6, wrong=5) -> None:
        self.continuation = [
            (token + 1) % vocab_size if place % wrong == wrong - 1 else token
            for place, token in enumerate(continuation)
        ]
        self.num_slots = num_slots

    def propose(self, state):
        done = len(state.tokens) - state.prompt_length
        chain = self.continuation[done : done + min(self.num_slots, state.room)]
        if not chain:
            return None
        ids = np.array([[chain]], np.int32)
        return Drafts(ids, np.zeros((1, 1), np.float32), np.ones(1, np.int32))


def plain_continuation(model, prompt, **options) -> list[int]:
    """What the model's own greedy `generate` writes after a prompt."""
    ids = torch.tensor([prompt])
    found = model.generate(ids, **{"do_sample": False, "max_new_tokens": 24, **options})
    return found[0, len(prompt) :].tolist()
