"""A drafter that knows the target's output, with errors planted at known tokens; random targets."""

from __future__ import annotations

import torch

from lattice_bpd.decode import Drafter
from lattice_bpd.verify import PrefixTree


class PlantedDrafts(Drafter):
    """Drafts the known continuation of its text, every `wrong`-th token replaced by another.

    With two drafts, a wrong one precedes it.

    Args:
        continuation: the target's output.
        vocab_size: V.
        num_slots: longest draft.
        wrong: which tokens are replaced.
        num_drafts: 1 or 2.
    """

    def __init__(self, continuation, vocab_size, num_slots=6, wrong=5, num_drafts=1) -> None:
        self.continuation = [
            (token + 1) % vocab_size if index % wrong == wrong - 1 else token
            for index, token in enumerate(continuation)
        ]
        self.vocab_size, self.num_slots, self.num_drafts = vocab_size, num_slots, num_drafts

    def propose(self, states):
        return [self.draft(state) for state in states]

    def draft(self, state):
        """A tree for one text, or None."""
        done = len(state.tokens) - state.prompt_length
        chain = self.continuation[done : done + min(self.num_slots, state.max_draft_length)]
        if not chain:
            return None
        other = [(chain[0] + 1) % self.vocab_size, *chain[1:]]
        return PrefixTree.from_drafts(state.tokens[-1], [other, chain][-self.num_drafts :])


def plain_continuation(model, prompt, **options) -> list[int]:
    """The output of the model's own greedy `generate` after a prompt."""
    ids = torch.tensor([prompt])
    output = model.generate(ids, **{"do_sample": False, "max_new_tokens": 24, **options})
    return output[0, len(prompt) :].tolist()


@torch.no_grad()
def randomize(model, spread=0.3) -> None:
    """Random matrices, large enough that a model's choices vary."""
    for weight in model.parameters():
        if weight.ndim >= 2:
            weight.normal_(0.0, spread)
