"""Where lattices come from: draft heads on hidden states, or a block drafter; for any engine."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.vocabulary_heads import VocabularyHeads
from lattice_bpd_vllm.batch import DraftBatch
from lattice_bpd_vllm.block_lattices import BlockLattices, CacheLayout
from lattice_bpd_vllm.files import DrafterParts, reads_layers
from lattice_bpd_vllm.head_logits import HeadLogits
from lattice_bpd_vllm.targets import TargetInfo, TargetView


class SlotSource(Protocol):
    """Gives the slots of a step.

    Attributes:
        num_slots: slots that it gives; 0: `read` is not called.
        vocab_size: V of the target; all candidates are below, which is checked at the start.
        layers: layers of the target that it reads, from 0; -1 is the embedding. Empty where it
            reads the last hidden states only, and `store` is not called.
    """

    num_slots: int
    vocab_size: int
    layers: tuple[int, ...]

    def store(self, features: Tensor, layout: CacheLayout) -> None:
        """Called in every step, before `read`, with what `EngineStep` says of both."""
        ...

    def read(self, batch: DraftBatch, hidden: Tensor) -> Tensor | LatticeInput | None:
        """The slots after the exact tokens of a batch.

        Args:
            batch: requests of the step that was stored.
            hidden: (B, D) the states that predicted the exact tokens.

        Returns:
            Logits (B, num_slots, V), a lattice, or None on a process that gets no logits.
        """
        ...


def make_source(parts: DrafterParts, target: TargetInfo, num_tokens: int) -> SlotSource:
    """The source of a drafter; one with no slots where it has neither heads nor block drafter.

    Args:
        parts: of the drafter.
        target: the engine's model.
        num_tokens: draft tokens that the engine verifies at most.

    Raises:
        ValueError: heads or LM of another target.
    """
    columns = target.count_columns()
    check_vocabulary(columns, parts.vocab_source, parts.vocab_size)
    target = target._replace(vocab_size=columns)
    if parts.heads is None:
        return NoSource(columns)
    heads = parts.heads.to(device=target.device, dtype=target.dtype).eval()
    if reads_layers(heads):
        return BlockSource(heads, target, num_tokens)
    if isinstance(heads, VocabularyHeads):
        _attach(heads, target)
    return HeadSource(heads, target, num_tokens, parts.config.top_k)


class NoSource:
    """No slots.

    Args:
        vocab_size: V of the target.
    """

    layers: tuple[int, ...] = ()
    num_slots = 0

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def store(self, features: Tensor, layout: CacheLayout) -> None:
        """Not called: nothing is read."""

    def read(self, batch: DraftBatch, hidden: Tensor) -> None:
        """Not called either."""


class HeadSource:
    """Draft heads.

    Args:
        heads: on the target's device, in its dtype.
        target: the engine's model; `vocab_size` is the number of its logits' columns.
        num_tokens: draft tokens that the engine verifies at most.
        top_k: candidates of a slot, where the heads choose them.

    Raises:
        ValueError: heads of another target.
    """

    layers: tuple[int, ...] = ()

    def __init__(self, heads: Any, target: TargetInfo, num_tokens: int, top_k: int) -> None:
        self.head_logits = HeadLogits(heads, target.compute_logits, num_tokens)
        self._top_k = top_k
        self.num_slots = self.head_logits.num_slots
        self.vocab_size, width = target.vocab_size, target.hidden_size
        head_width = getattr(heads, "hidden_size", width)
        if head_width != width:
            raise ValueError(
                f"lattice-bpd: the heads take hidden states of width {head_width}, the target's "
                f"have {width}; use heads trained on this target"
            )
        with torch.inference_mode():
            state = torch.zeros(1, width, device=target.device, dtype=target.dtype)
            logits = self.head_logits(state, [0])
            if isinstance(heads, VocabularyHeads):
                heads.lattice(state, torch.tensor([0], device=state.device))  # the first is slow
        if logits is not None:  # heads may have logits of their own
            check_vocabulary(self.vocab_size, "the heads", int(logits.shape[-1]))

    def store(self, features: Tensor, layout: CacheLayout) -> None:
        """Not called: the heads read the last hidden states only."""

    def read(self, batch: DraftBatch, hidden: Tensor) -> Tensor | LatticeInput | None:
        """See SlotSource."""
        exact_tokens = batch.exact_tokens
        heads = self.head_logits.heads
        if isinstance(heads, VocabularyHeads):
            with torch.no_grad():
                tokens = torch.tensor(exact_tokens, device=hidden.device)
                lattice = heads.lattice(hidden, tokens, self._top_k)
            return lattice.cut(self.num_slots, self._top_k)
        return self.head_logits(hidden, exact_tokens)


class BlockSource:
    """A block drafter.

    Args:
        drafter: on the target's device, in its dtype.
        target: see `HeadSource`.
        num_tokens: see there.

    Raises:
        ValueError: a drafter of another target.
    """

    def __init__(self, drafter: Any, target: TargetInfo, num_tokens: int) -> None:
        view: Any = TargetView(target)
        drafter.attach(view)
        self.layers, self.vocab_size = drafter.hidden_layers, target.vocab_size
        self._lattices = BlockLattices(drafter, num_tokens, target.vocab_size)
        self.num_slots = self._lattices.num_slots

    def store(self, features: Tensor, layout: CacheLayout) -> None:
        """Keep what the drafter reads of all tokens, those of prompts too."""
        self._lattices.store(features, layout)

    def read(self, batch: DraftBatch, hidden: Tensor) -> Tensor | LatticeInput:  # noqa: ARG002
        """See SlotSource."""
        before = [length - 1 for length in batch.lengths]
        return self._lattices(batch.requests, before, batch.exact_tokens)


def _attach(heads: VocabularyHeads, target: TargetInfo) -> None:
    """Give heads their rows of the output embedding.

    Raises:
        ValueError: this process has not all of them as numbers, or heads of another target.
    """
    weight, expected = target.output_weight, (target.vocab_size, target.hidden_size)
    found = None if weight is None else tuple(weight.shape)
    if (
        weight is None
        or not weight.is_floating_point()
        or weight.ndim != 2
        or (len(weight) < expected[0])
    ):
        raise ValueError(
            "lattice-bpd: heads with a draft vocabulary read rows of the target's output embedding "
            f"(lm_head); found {found}, expected {expected} in floating point; without tensor "
            "parallelism and quantization of lm_head, or leave 'heads' out of sources"
        )
    view: Any = TargetView(target)
    heads.attach(view)


def check_vocabulary(columns: int, source: str, vocab_size: int | None) -> None:
    """Raise ValueError unless a vocabulary has the size of the target's logits."""
    if vocab_size not in (None, columns):
        raise ValueError(
            f"lattice-bpd: the target's logits have {columns} columns, {source} a vocabulary of "
            f"{vocab_size}; expected the same; use drafter and LM of this target"
        )
