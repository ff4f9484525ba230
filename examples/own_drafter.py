"""A drafter of your own: copies what followed the last two tokens earlier in the text.

    python examples/own_drafter.py

It needs no heads. `propose` drafts for all sequences of a batch at once.
"""

from collections.abc import Sequence

from tiny_model import load

from lattice_bpd.decode import DecodeState, Drafter, decode
from lattice_bpd.verify import PrefixTree


class CopyDrafter(Drafter):
    """Finds the last two tokens in what came before."""

    num_copied = 0

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree | None]:
        """What followed them in each sequence, or None."""
        return [self._copy(state.tokens) for state in states]

    def _copy(self, tokens: list[int]) -> PrefixTree | None:
        for start in range(len(tokens) - 3, -1, -1):
            if tokens[start : start + 2] == tokens[-2:]:
                return PrefixTree.from_drafts(tokens[-1], [tokens[start + 2 : start + 8]])
        return None

    def observe(self, state: DecodeState, token_ids: Sequence[int]) -> None:  # noqa: ARG002
        """Counts accepted draft tokens; the last token is the target's own."""
        self.num_copied += len(token_ids) - 1


model, _, _ = load()
drafter = CopyDrafter()
stats = decode(model, [5, 6, 7], drafter, max_new_tokens=120).stats
print(f"{stats.tokens} tokens in {stats.target_calls} calls, {drafter.num_copied} of them copied")
