"""A drafter of your own: copies what followed the last two tokens earlier in the text.

    python examples/own_drafter.py

It needs no heads. `observe` hears what was kept; `propose` may also return a DraftTree.
"""

import numpy as np
from tiny_model import load

from lattice_bpd import Drafts
from lattice_bpd.decode import DecodeState, Drafter, decode


class CopyDrafter(Drafter):
    """Finds the last two tokens in what came before."""

    def __init__(self, longest: int) -> None:
        self.longest, self.kept = longest, 0

    def propose(self, state: DecodeState) -> Drafts | None:
        """What followed them."""
        tokens = state.tokens
        for start in range(len(tokens) - 3, -1, -1):
            if tokens[start : start + 2] == tokens[-2:]:
                draft = tokens[start + 2 :][: min(self.longest, state.num_slots)]
                ids = np.array([[draft]], np.int32)  # (1 text, 1 draft, slots)
                return Drafts(ids, np.zeros((1, 1), np.float32), np.ones(1, np.int32))
        return None

    def observe(self, accepted: list[int]) -> None:
        """The last one is the target's own."""
        self.kept += len(accepted) - 1


model, _, _ = load()
drafter = CopyDrafter(longest=6)
stats = decode(model, [5, 6, 7], drafter, max_new_tokens=120).stats
print(f"{stats.tokens} tokens in {stats.target_calls} calls, {drafter.kept} of them copied")
