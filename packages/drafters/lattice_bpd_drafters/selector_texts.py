"""What a selector is trained on: options, candidates of frozen heads, pieces of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.blockwise import BlockwiseLM
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd.models.sources import HeadSource
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.features import read_features
from lattice_bpd_drafters.scorers import find_candidates
from lattice_bpd_drafters.selector import SlotCandidates, candidates_of


@dataclass(frozen=True)
class SelectorOptions:
    """Options of `train_selector`.

    Attributes:
        rank: r, of the selector.
        top_k: k, candidates of a slot.
        steps: optimizer steps.
        batch_size: pieces of text per step.
        anchors: blocks of H slots per piece, at different positions.
        sequence_length: longer texts are cut into pieces of so many tokens. None: 256, or as many
            as the target has positions for.
        learning_rate: AdamW's peak rate.
        warmup: steps of linear warm-up; then a cosine down to 5 %.
        gamma: the loss of slot j (from 1) has the weight exp(-(j - 1) / gamma); None: (H + 1) / 2.
        first_position: first position of a text that can be an anchor; P if texts start with a
            prompt of P tokens that the target did not generate.
        validation_fraction: part of the texts that is held out, where no others are given.
        seed: of the initial weights, the held-out texts and the batches.
    """

    rank: int = 64
    top_k: int = 16
    steps: int = 1000
    batch_size: int = 8
    anchors: int = 128
    sequence_length: int | None = None
    learning_rate: float = 0.005
    warmup: int = 30
    gamma: float | None = None
    first_position: int = 1
    validation_fraction: float = 0.05
    seed: int = 0

    def check(self) -> None:
        """Raise ValueError, naming the option, for one out of range."""
        minima = {"warmup": 0, "seed": 0, "sequence_length": 3}
        for field in fields(self):
            value, minimum = getattr(self, field.name), minima.get(field.name, 1)
            if str(field.type).startswith("int") and value is not None and value < minimum:
                raise ValueError(
                    f"train_selector: {field.name} is {value}; expected {minimum} or more"
                )
        for name in ("learning_rate", "gamma"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < float("inf"):
                raise ValueError(f"train_selector: {name} is {value}; expected a number above 0")
        if not 0.0 < self.validation_fraction < 1.0:
            raise ValueError(
                f"train_selector: validation_fraction is {self.validation_fraction}; expected a "
                "number between 0 and 1"
            )


AnyHeads = BlockwiseHeads | HeadSource | BlockDrafter


class SlotReader(Protocol):
    """Candidates of blocks of whole texts.

    Attributes:
        num_slots: H.
        vocab_size: V.
        state_size: D, width of the states that the selector reads.
        slot_gates: H where the slots share one state, else None; see CandidateSelector.
    """

    num_slots: int
    vocab_size: int
    state_size: int
    slot_gates: int | None

    def read(self, token_ids: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
        """Candidates of M blocks of each of B texts, as B * M rows.

        Args:
            token_ids: (B, T) int64, padded on the right.
            anchors: (B, M) int64, positions of the tokens before slot 0; 1 or more.
            top_k: k.
        """
        ...


class HeadSlots:
    """Slots of heads on the target's last hidden state.

    The state that a selector's gate reads is this hidden state, the one that the heads read: that
    of the position before the anchor. All slots share it.

    Args:
        model: the target with such heads.
    """

    def __init__(self, model: BlockwiseLM) -> None:
        self.num_slots, self.vocab_size = model.num_slots, model.vocab_size
        self.state_size = int(model.output_embedding.weight.shape[1])
        self.slot_gates: int | None = model.num_slots
        self._model = model

    @torch.no_grad()
    def read(self, token_ids: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
        """See SlotReader."""
        hidden = self._model.hidden_states(token_ids)
        index = (anchors - 1).unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        rows = hidden.gather(1, index).flatten(0, 1)
        exact = token_ids.gather(1, anchors).flatten()
        logits = self._model.head_logits(rows, exact)
        return candidates_of(logits, rows.unsqueeze(1), exact, top_k)


class BlockSlots:
    """Slots of a block drafter.

    Args:
        target: the target.
        drafter: attached to it here.
    """

    def __init__(self, target: PreTrainedModel, drafter: BlockDrafter) -> None:
        drafter.attach(target)
        config = drafter.config
        assert config.vocab_size is not None  # known after `attach`
        self.num_slots, self.vocab_size = drafter.num_slots, config.vocab_size
        self.state_size = config.hidden_size
        self.slot_gates: int | None = None
        self._target, self._drafter = target, drafter

    @torch.no_grad()
    def read(self, token_ids: Tensor, anchors: Tensor, top_k: int) -> SlotCandidates:
        """See SlotReader."""
        features = read_features(self._target, token_ids, self._drafter.hidden_layers).features
        states = self._drafter.train_states(features, token_ids, anchors).flatten(0, 1)
        return find_candidates(self._drafter, states, token_ids.gather(1, anchors).flatten(), top_k)


def slots_of(target: PreTrainedModel, heads: AnyHeads) -> SlotReader:
    """The slots of heads of any kind.

    Raises:
        TypeError: heads that are neither a BlockDrafter nor a head source.
        ValueError: heads of another width or vocabulary.
    """
    if isinstance(heads, BlockDrafter):
        return BlockSlots(target, heads)
    return HeadSlots(BlockwiseLM(target, heads=heads))


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
        token_ids = torch.zeros(len(chosen), longest, dtype=torch.int64, device="cpu")
        noise = torch.rand(len(chosen), longest, generator=generator, device="cpu")
        padded = torch.full((len(chosen), longest + num_slots), -1, device="cpu")
        for row, (piece, first) in enumerate(chosen):
            token_ids[row, : len(piece)] = padded[row, : len(piece)] = torch.from_numpy(piece)
            noise[row, :first] = noise[row, len(piece) - 1 :] = 2.0
        count = min(self._options.anchors, longest)
        found = noise.topk(count, dim=1, largest=False)
        is_block = found.values < 2.0
        anchors = torch.where(is_block, found.indices, 1)
        steps = torch.arange(num_slots, device="cpu")
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
