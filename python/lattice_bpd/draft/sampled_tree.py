"""Draft trees for targets that sample: sampled from the rescored lattice, or shaped by noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.arguments import check_number
from lattice_bpd.draft.config import TREE_NODES, DraftConfig
from lattice_bpd.draft.search import check_search
from lattice_bpd.lm.ngram import NGramLM

_KEYS = 1 << 64


@dataclass(frozen=True)
class SampledTree:
    """A tree for each lattice of a batch, with siblings sampled without replacement.

    Nodes are in the order in which they were sampled, parents before their children. Arrays are
    numpy's; row b has ``counts[b]`` nodes, other entries are padding.

    Attributes:
        token_ids: (B, N) int32, a node's token; -1 in the padding.
        parents: (B, N) int32, the node before it; -1 for first tokens and in the padding.
        depths: (B, N) int32, the slot of a node's token, 0..H-1; 0 in the padding.
        log_probs: (B, N) float32, natural log of the probability of a node's prefix, given the
            target's noise if there is any; -inf in the padding.
        counts: (B,) int32, the number of nodes.
        slot_token_ids: (B, H, K) int32, the candidates of each slot by ascending id; -1 in the
            padding.
        child_probs: (B, N + 1, K) float64, the exact probability of each candidate of the next
            slot: after the context, then after each node; 0 in the padding and after the last
            slot.
        is_sampled: whether siblings are samples; False if the tree uses the target's noise.
    """

    token_ids: npt.NDArray[np.int32]
    parents: npt.NDArray[np.int32]
    depths: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int32]
    slot_token_ids: npt.NDArray[np.int32]
    child_probs: npt.NDArray[np.float64]
    is_sampled: bool = True

    def sampled_from(
        self, row: int, node: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]] | None:
        """The distribution that the children of a node were sampled from.

        Args:
            row: of the batch.
            node: -1 for the context.

        Returns:
            Token ids (k,) int32 and probabilities (k,) float64 that sum to 1; None after the last
            slot, and where the lattice ends before the next one.
        """
        slot = 0 if node < 0 else int(self.depths[row, node]) + 1
        if slot >= self.slot_token_ids.shape[1]:
            return None
        token_ids = self.slot_token_ids[row, slot]
        width = int((token_ids >= 0).sum())
        if width == 0:  # all tokens masked
            return None
        return token_ids[:width], self.child_probs[row, node + 1, :width]


@dataclass(frozen=True)
class SharedNoise:
    """The Gumbel noise with which a target samples its tokens, shared with the drafts.

    Attributes:
        keys: of the noise, one for each lattice, 0..2^64-1.
        positions: the position, in that noise, of the first slot of each lattice.
        sharpness: inverse temperature of the drafts' distribution given the noise, above 0: after a
            prefix a token has probability softmax(sharpness * (ln q + noise)). 1 suits calibrated
            drafts; 0.5 was best for heads with an n-gram LM, which are overconfident.
    """

    keys: Sequence[int]
    positions: Sequence[int]
    sharpness: float = 0.5


def sample_tree(
    head_logits: Any,
    context: Any,
    lm: NGramLM | None,
    *,
    max_nodes: int = TREE_NODES,
    top_k: int = DraftConfig.top_k,
    alpha: float = DraftConfig.alpha,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    noise: SharedNoise | None = None,
    bos: bool = True,
    log_softmax: bool = False,
    threads: int = 0,
) -> SampledTree:
    """Samples paths from the rescored lattice without replacement, as a tree of their prefixes.

    The score of `rescore_lattice`, normalized over the lattice, is a distribution over its paths.
    Paths are sampled from it exactly, by backward sampling, until the tree has `max_nodes` nodes.
    `lattice_bpd.verify.Rejection` verifies such a tree so that the output has the target's own
    distribution.

    Args:
        head_logits: As for :func:`rescore_lattice`, like all arguments not listed here.
        context: See there.
        lm: See there.
        max_nodes: N, 1..4096.
        top_k: See there.
        alpha: See there.
        temperature: See there; that of the target's sampling.
        seed: 0..2^64-1, or one for each lattice; the same seed samples the same tree.
        noise: The noise of the target's samples: instead of sampling, returns the prefixes that are
            most probable given this noise; siblings are not samples.
        bos: See there.
        log_softmax: See there.
        threads: See there.

    Returns:
        :class:`SampledTree`; B is 1 for a single lattice.

    Raises:
        TypeError: Arguments of the wrong kind or element type.
        ValueError: As for `rescore_lattice`; or seeds, keys or positions that are out of range or
            not one for each lattice, or a sharpness that is not above 0.

    Source: Gumbel top-k without replacement (Kool, van Hoof, Welling 2019) on the exact sums of
    forward filtering, backward sampling; see docs/concepts.md.
    """
    where = "sample_tree"
    search = check_search(
        where, head_logits, context, lm, top_k=top_k, alpha=alpha, temperature=temperature,
        bos=bos, log_softmax=log_softmax, threads=threads,
    )  # fmt: skip
    batch = len(search.contexts[1]) - 1
    if noise is None:
        keys = [seed] * batch if isinstance(seed, int) else list(seed)
        positions, sharpness = [0] * batch, 1.0
    else:
        keys, positions = list(noise.keys), list(noise.positions)
        sharpness = check_number(f"{where}: sharpness", noise.sharpness)
    arrays = (_to_uint64(where, "seed", keys), _to_uint64(where, "position", positions))
    fields: Any = search.sample_tree(where, max_nodes, (*arrays, noise is not None, sharpness))
    return replace(SampledTree(*fields), is_sampled=noise is None)


def _to_uint64(where: str, name: str, values: Sequence[int]) -> npt.NDArray[np.uint64]:
    for value in values:
        if not isinstance(value, (int, np.integer)) or not 0 <= value < _KEYS:
            raise ValueError(f"{where}: {name} is {value!r}; expected integers in 0..2^64-1")
    return np.array([int(value) for value in values], np.uint64)
