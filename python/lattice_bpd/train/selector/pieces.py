"""The texts of a selector's training, cut into pieces, and the blocks that are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.train.selector.options import SelectorOptions

_FEWEST = 3  # tokens of a piece: a prefix, the anchor and a label


class Blocks(NamedTuple):
    """Blocks of B pieces of text.

    Attributes:
        token_ids: (B, T) int64, padded on the right.
        anchors: (B, M) int64, positions of the tokens before slot 0; 1 or more.
        previous: (B, M, H) int64, the token before each slot.
        labels: (B, M, H) int64, the token in each slot; -1 after the end of the text, and
            everywhere in blocks that only fill the tensor.
    """

    token_ids: Tensor
    anchors: Tensor
    previous: Tensor
    labels: Tensor


class Pieces:
    """Pieces of texts, a part of them held out.

    Args:
        texts: (T,) ints each.
        options: see SelectorOptions.
        length: the most tokens of a piece.
        vocab_size: V.
        validation: texts to hold out, or none; None: a part of `texts`, chosen by the seed.

    Raises:
        ValueError: ids outside of the vocabulary, or too few texts that are long enough.
    """

    def __init__(
        self,
        texts: Sequence[npt.ArrayLike],
        options: SelectorOptions,
        length: int,
        vocab_size: int,
        validation: Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        self._options, self._length = options, length
        training = self._long_enough(texts, vocab_size, 2 if validation is None else 1)
        if validation is not None:
            held = self._long_enough(validation, vocab_size, min(1, len(validation)))
        else:
            order = np.random.default_rng(options.seed).permutation(len(training))
            held_out = max(1, round(options.validation_fraction * len(training)))
            held = [training[number] for number in order[:held_out]]
            training = [training[number] for number in order[held_out:]]
        self.validation, self.training = self._cut(held), self._cut(training)

    def _long_enough(
        self, texts: Sequence[npt.ArrayLike], vocab_size: int, needed: int
    ) -> list[npt.NDArray[np.generic]]:
        """The texts that have a block; ValueError for ids out of range or fewer than needed."""
        arrays = [np.asarray(text) for text in texts]
        for number, array in enumerate(arrays):
            _check_text(array, number, vocab_size)
        fewest = max(_FEWEST, self._options.first_position + 2)
        found = [array for array in arrays if len(array) >= fewest]
        if len(found) < needed:
            raise ValueError(
                f"train_selector: {len(found)} texts have {fewest} tokens or more; expected "
                f"{needed} or more such texts to train on and to hold out"
            )
        return found

    def _cut(
        self, texts: Sequence[npt.NDArray[np.generic]]
    ) -> list[tuple[npt.NDArray[np.int64], int]]:
        """Pieces and the first position of an anchor in each."""
        size, found = self._length, []
        for text in texts:
            for start in range(0, len(text), size):
                piece = text[start : start + size]
                first = max(1, self._options.first_position - start)
                if len(piece) >= first + 2:
                    found.append((piece.astype(np.int64), first))
        return found

    def sample(
        self, which: Sequence[int], num_slots: int, generator: torch.Generator, *, held_out: bool
    ) -> Blocks:
        """Blocks at random positions of some pieces, no position twice.

        Args:
            which: B indices of pieces.
            num_slots: H.
            generator: of the positions.
            held_out: of `validation`, not of `training`.
        """
        pieces = self.validation if held_out else self.training
        chosen = [pieces[number] for number in which]
        longest = max(len(piece) for piece, _ in chosen)
        token_ids = torch.zeros(len(chosen), longest, dtype=torch.int64)
        noise = torch.rand(len(chosen), longest, generator=generator)
        padded = torch.full((len(chosen), longest + num_slots), -1)
        for row, (piece, first) in enumerate(chosen):
            token_ids[row, : len(piece)] = padded[row, : len(piece)] = torch.from_numpy(piece)
            noise[row, :first] = noise[row, len(piece) - 1 :] = 2.0
        count = min(self._options.anchors, longest)
        found = noise.topk(count, dim=1, largest=False)
        is_block = found.values < 2.0
        anchors = torch.where(is_block, found.indices, 1)
        steps = torch.arange(num_slots)
        windows = (anchors.unsqueeze(-1) + steps).flatten(1)
        previous = padded.gather(1, windows).clamp_min(0).view(*anchors.shape, num_slots)
        labels = padded.gather(1, windows + 1).view(*anchors.shape, num_slots)
        return Blocks(token_ids, anchors, previous, labels.where(is_block.unsqueeze(-1), -1))


def _check_text(array: npt.NDArray[np.generic], number: int, vocab_size: int) -> None:
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ValueError(
            f"train_selector: text {number} has shape {array.shape} and type {array.dtype}; "
            "expected one sequence of token ids"
        )
    if array.size and (int(array.min()) < 0 or int(array.max()) >= vocab_size):
        raise ValueError(
            f"train_selector: text {number} has ids {int(array.min())}..{int(array.max())}; "
            f"expected 0..{vocab_size - 1}; use the tokenizer of the target"
        )
