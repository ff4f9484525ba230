"""Token by token behind each text: the path of a chain, and the slots of a lattice along it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.decode.drafters.draft_model.candidates import find_best

Choose = Callable[[int, npt.NDArray[np.float32]], int]


@dataclass
class Path:
    """What a draft model wrote behind one text.

    Attributes:
        chosen: the place of the token of each slot among its candidates.
        token_ids: for each slot (k,) int32, its candidates behind the tokens chosen so far.
        scores: for each slot (k,) float32, their logits.
        failed: whether a slot's logits were no numbers; the path ends before it.
    """

    chosen: list[int] = field(default_factory=list)
    token_ids: list[npt.NDArray[np.int32]] = field(default_factory=list)
    scores: list[npt.NDArray[np.float32]] = field(default_factory=list)
    failed: bool = False

    @property
    def tokens(self) -> list[int]:
        """The token of each slot."""
        return [int(ids[place]) for ids, place in zip(self.token_ids, self.chosen, strict=True)]


def roll_out(
    reader: CachedReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    top_k: int,
    choose: Choose | None = None,
) -> list[Path]:
    """Write tokens behind each text, one call of the model for each slot but the first.

    Args:
        reader: of the draft model.
        texts: R texts as read; afterwards they hold what was written, but for the last tokens.
        logits: (R, V) behind them.
        depths: tokens to write behind each, 1 or more.
        top_k: k, candidates of each slot.
        choose: picks a place among the (k,) scores of a row; None: the best.

    Returns:
        R paths.
    """
    paths = [Path() for _ in depths]
    for slot in range(max(depths)):
        best = find_best(logits, top_k)
        new: list[int | None] = []
        for row, path in enumerate(paths):
            path.failed = path.failed or (slot < depths[row] and bool(best.failed[row]))
            if path.failed or slot >= depths[row]:
                new.append(None)
                continue
            place = 0 if choose is None else choose(row, best.scores[row])
            path.chosen.append(place)
            path.token_ids.append(best.token_ids[row])
            path.scores.append(best.scores[row])
            new.append(int(best.token_ids[row, place]) if slot + 1 < depths[row] else None)
        if all(token is None for token in new):
            break
        logits = reader.extend(texts, new)
    return paths
