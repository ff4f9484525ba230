"""Token by token after each text: chains, sampled chains, and the slots of a lattice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.decode.drafters.draft_model.candidates import find_best, find_failed
from lattice_bpd.decode.drafters.draft_model.sampling import DraftSampler
from lattice_bpd.decode.drafters.growing_tree import GrowingTree


@dataclass
class Path:
    """The greedy continuation of one text, with the candidates of each slot.

    Attributes:
        token_ids: for each slot (k,) int32, its candidates after the best ones so far, best first.
        scores: for each slot (k,) float32, their logits.
        failed: whether a slot's logits were no numbers; the path ends before it.
    """

    token_ids: list[npt.NDArray[np.int32]] = field(default_factory=list)
    scores: list[npt.NDArray[np.float32]] = field(default_factory=list)
    failed: bool = False

    @property
    def tokens(self) -> list[int]:
        """The token of each slot."""
        return [int(ids[0]) for ids in self.token_ids]


def roll_out(
    reader: CachedReader, texts: ReadTexts, logits: Tensor, depths: Sequence[int], top_k: int
) -> list[Path]:
    """Continue each text greedily, one call of the model for each slot but the first.

    Args:
        reader: of the draft model.
        texts: R texts as read; afterwards they hold their continuations but for the last tokens.
        logits: (R, V) after them.
        depths: tokens to add to each, 1 or more.
        top_k: k, candidates of each slot.

    Returns:
        R paths.
    """
    paths = [Path() for _ in depths]
    for slot in range(max(depths)):
        best = find_best(logits, top_k)
        new: list[int | None] = [None] * len(paths)
        for row, path in enumerate(paths):
            path.failed = path.failed or (slot < depths[row] and bool(best.failed[row]))
            if path.failed or slot >= depths[row]:
                continue
            path.token_ids.append(best.token_ids[row])
            path.scores.append(best.scores[row])
            new[row] = int(best.token_ids[row, 0]) if slot + 1 < depths[row] else None
        if all(token is None for token in new):
            break
        logits = reader.extend(texts, new)
    return paths


def sample_chains(
    reader: CachedReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    samplers: Sequence[DraftSampler],
) -> list[GrowingTree]:
    """Continue each text with samples of all tokens; see `roll_out`.

    Args:
        reader: see there, as for texts, logits and depths.
        texts: see there.
        logits: see there.
        depths: see there.
        samplers: of each text.

    Returns:
        R trees of one path.
    """
    trees = [GrowingTree() for _ in depths]
    for slot in range(max(depths)):
        failed, host = find_failed(logits), logits.float().cpu()
        new: list[int | None] = [None] * len(trees)
        for row, tree in enumerate(trees):
            tree.failed = tree.failed or (slot < depths[row] and bool(failed[row]))
            if tree.failed or slot >= depths[row]:
                continue
            children = samplers[row].sample(host[row], 1, None, slot - 1, slot)
            tree.add_children(slot - 1, *children)
            new[row] = children.token_ids[0] if slot + 1 < depths[row] else None
        if all(token is None for token in new):
            break
        logits = reader.extend(texts, new)
    return trees
