"""Token by token after each text: greedy and sampled chains."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.decode.drafters.draft_model.candidates import find_best, find_failed
from lattice_bpd.decode.drafters.draft_model.sampling import DraftSampler
from lattice_bpd.decode.drafters.growing_tree import GrowingTree


def roll_out(
    reader: CachedReader, texts: ReadTexts, logits: Tensor, depths: Sequence[int]
) -> tuple[list[list[int]], list[bool]]:
    """Continue each text greedily, one call of the model for each slot but the first.

    Args:
        reader: of the draft model.
        texts: R texts as read; afterwards they hold their continuations but for the last tokens.
        logits: (R, V) after them.
        depths: tokens to add to each, 1 or more.

    Returns:
        R paths, and whether logits on the way of each were no numbers.
    """
    paths: list[list[int]] = [[] for _ in depths]
    has_failed = [False] * len(paths)
    for slot in range(max(depths)):
        best = find_best(logits, 1)
        new: list[int | None] = [None] * len(paths)
        for row, path in enumerate(paths):
            has_failed[row] |= slot < depths[row] and bool(best.failed[row])
            if has_failed[row] or slot >= depths[row]:
                continue
            path.append(int(best.token_ids[row, 0]))
            new[row] = path[-1] if slot + 1 < depths[row] else None
        if all(token is None for token in new):
            break
        logits = reader.extend(texts, new)
    return paths, has_failed


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
