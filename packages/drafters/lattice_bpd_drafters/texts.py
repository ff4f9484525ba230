"""Training texts of block drafters, and the pieces and anchors sampled for one step.

A sample depends only on the seed and the step, so a resumed training samples what an uninterrupted
one would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.token_ids import Int32Array, Int64Array, to_token_ids
from lattice_bpd_kim2024.heads.options import HeadText, mix_seed


class Pieces(NamedTuple):
    """Pieces of text with the anchors of their blocks.

    Attributes:
        token_ids: (B, T) int64, padded on the right with 0.
        anchors: (B, N) int64, ascending positions; at least H tokens follow each.
    """

    token_ids: Tensor
    anchors: Tensor


@dataclass(frozen=True)
class BlockTexts:
    """Texts one after another.

    Attributes:
        token_ids: (L,) int32, possibly a mapped file.
        ends: (M,) int64, offset of the end of each text.
        first_position: first position of a text that is an anchor.
    """

    token_ids: Int32Array
    ends: Int64Array
    first_position: int = 0

    @classmethod
    def of_rows(cls, text: HeadText) -> BlockTexts:
        """A text for each row of a text; the whole as one where it has no rows."""
        length = text.row_length or len(text.token_ids)
        ends = np.arange(length, len(text.token_ids) + 1, length, dtype=np.int64)
        return cls(text.token_ids, ends, text.first_position)

    @property
    def starts(self) -> Int64Array:
        """(M,) int64 offset of each text."""
        return self.ends - self.lengths

    @property
    def lengths(self) -> Int64Array:
        """(M,) int64 tokens of each text."""
        return np.diff(self.ends, prepend=0)

    def check(self, num_slots: int, vocab_size: int, where: str) -> None:
        """Raises ValueError for no text, a text without an anchor, or ids out of range."""
        needed = self.first_position + num_slots + 1
        if not len(self.ends) or int(self.lengths.min()) < needed:
            shortest = int(self.lengths.min()) if len(self.ends) else 0
            raise ValueError(
                f"{where}: {len(self.ends)} texts, the shortest of {shortest} tokens; expected "
                f"{needed} or more in each (first_position + {num_slots} slots + 1); leave "
                "shorter ones out"
            )
        low, high = int(self.token_ids.min()), int(self.token_ids.max())
        if not 0 <= low <= high < vocab_size:
            raise ValueError(
                f"{where}: ids {low}..{high}; expected 0..{vocab_size - 1}; use the target's "
                "tokenizer"
            )

    def sample(
        self, length: int, batch: int, anchors: int, num_slots: int, seed: int, step: int
    ) -> Pieces:
        """Pieces of a step (from 0), every token being as likely as any other.

        Args:
            length: the most tokens of a piece, first_position + H + 1 or more.
            batch: B, pieces.
            anchors: N, blocks of each.
            num_slots: H, tokens that follow each anchor.
            seed: of the training.
            step: the step's number.
        """
        generator = np.random.default_rng(mix_seed(seed, step))
        texts = np.searchsorted(
            self.ends, generator.integers(0, len(self.token_ids), batch), side="right"
        )
        sizes = np.minimum(self.lengths[texts], length)
        skipped = generator.integers(0, self.lengths[texts] - sizes + 1)
        first = np.maximum(0, self.first_position - skipped)
        counts = sizes - num_slots - first
        # One anchor in each of N equal parts: distinct where there are N positions.
        spread = (np.arange(anchors) + generator.random((batch, anchors))) / anchors
        chosen = np.minimum((spread * counts[:, None]).astype(np.int64), counts[:, None] - 1)
        starts = self.starts[texts] + skipped
        return Pieces(self._read(starts, sizes), torch.from_numpy(first[:, None] + chosen))

    def _read(self, starts: Int64Array, sizes: Int64Array) -> Tensor:
        rows = np.zeros((len(starts), int(sizes.max())), dtype=np.int64)
        for row, start, size in zip(rows, starts, sizes, strict=True):
            row[:size] = self.token_ids[start : start + size]
        return torch.from_numpy(rows)


def make_texts(
    texts: Sequence[npt.ArrayLike] | npt.NDArray[np.integer], first_position: int, where: str
) -> BlockTexts:
    """Texts of a list, or the rows of an array.

    Args:
        texts: token ids of each text, or (M, T) integers.
        first_position: first position of a text that is an anchor.
        where: the caller's name, for error messages.

    Raises:
        TypeError: elements that are not integers.
        ValueError: texts that are not one-dimensional.
    """
    rows = [to_token_ids(text, f"{where}: text {number}") for number, text in enumerate(texts)]
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    joined = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)
    return BlockTexts(joined, ends, first_position)
