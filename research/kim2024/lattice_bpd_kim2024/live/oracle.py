"""What hindsight could draft from the lattice of the heads."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.head_candidates import batch_head_logits, find_candidates
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree


class OracleDrafter(Drafter):
    """The path through the top-k lattice with the longest accepted prefix.

    It reads the target's output, so it is no speedup but an upper bound for drafts of the lattice.

    Args:
        continuation: (m,) ints, the target's greedy output after the prompt.
        top_k: k, candidates of a slot.

    Source: Kim et al. 2024, section 6.3.
    """

    def __init__(self, continuation: Sequence[int], *, top_k: int = 16) -> None:
        self.continuation, self.top_k = list(continuation), top_k

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """The target's own tokens, up to the first one that is not in the lattice."""
        return [self._propose(state) for state in states]

    def _propose(self, state: DecodeState) -> PrefixTree:
        logits = batch_head_logits([state])
        with state.stats.stage("top_k"):
            candidates, _ = find_candidates([state], logits, self.top_k, "OracleDrafter")
        slots = candidates.token_ids[0].tolist()
        done = len(state.tokens) - state.prompt_length
        continuation = self.continuation[done : done + state.num_slots]
        path = [ids[0] for ids in slots]
        for slot, (token, ids) in enumerate(zip(continuation, slots, strict=False)):
            if token not in ids:
                break
            path[slot] = token
        return PrefixTree.from_drafts(state.tokens[-1], [path])
