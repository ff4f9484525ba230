"""The chain of greatest expected accepted length, for targets that verify one draft."""

from __future__ import annotations

from collections.abc import Sequence

from lattice_bpd.decode.drafters.head_candidates import LatticeDrafter
from lattice_bpd.decode.drafters.target_noise import sampling_temperature
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree


class ChainDrafter(LatticeDrafter):
    """One draft: the path of greatest expected accepted length of the rescored lattice.

    Better than the best path (strategy "ngram") if only one draft can be verified. The trees have
    log probabilities, so a caller can cut a draft at an improbable prefix.

    Args:
        lm: n-gram LM over the target's token ids, or None: heads alone ("0-gram").
        config: options; None: the defaults.
        options: by name, instead of the config's: top_k, alpha, temperature, normalization;
            see `DraftConfig`.

    Raises:
        TypeError: an unknown option.
        ValueError: an option out of range, or of other strategies; in `propose`, an LM of another
            vocabulary than the target's, or a top_k above V.
    """

    strategy = "chain"

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A chain for each state."""
        temperature = self.config.temperature * sampling_temperature(states)
        return self.search(states, "chain", temperature=temperature)
