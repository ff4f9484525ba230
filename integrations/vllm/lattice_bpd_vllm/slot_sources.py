"""Where lattices come from in vLLM: draft heads on hidden states, or a block drafter."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd_vllm.batch import DraftBatch
from lattice_bpd_vllm.block_lattices import BlockLattices, TargetView
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.head_logits import HeadLogits
from lattice_bpd_vllm.runner_v1 import Step, aux_layers_of, read_features, read_layout


class SlotSource(Protocol):
    """Gives the slots of a step.

    Attributes:
        num_slots: slots that it gives.
        aux_layers: layers of the target that it reads besides the last one, in vLLM's numbers.
    """

    num_slots: int
    aux_layers: tuple[int, ...]

    def store(self, step: Step) -> None:
        """Called in every step, before `read`."""
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


def make_source(parts: DrafterParts, target: Any, model_config: Any, num_tokens: int) -> SlotSource:
    """The source of a drafter.

    Args:
        parts: of the drafter.
        target: vLLM's model.
        model_config: vLLM's `ModelConfig` of it.
        num_tokens: draft tokens that vLLM verifies at most.

    Raises:
        ValueError: heads or LM of another target, or a target that cannot be used.
    """
    device = next(target.parameters()).device
    heads = parts.heads.to(device=device, dtype=model_config.dtype).eval()
    if isinstance(heads, BlockDrafter):
        return BlockSource(heads, parts.vocab_size, target, model_config, num_tokens)
    # "argmax" takes the best token of each slot, whatever the transitions
    selector = None if parts.draft == "argmax" else parts.selector
    return HeadSource(heads, parts.vocab_size, target, model_config, num_tokens, selector)


class HeadSource:
    """Draft heads, with a selector or without.

    Args:
        heads: on the target's device, in its dtype.
        vocab_size: V that heads, LM and drafter.json expect; None: any.
        target: see `make_source`, as for the other arguments.
        model_config: see there.
        num_tokens: see there.
        selector: transition scores, or None.

    Raises:
        ValueError: heads, selector or LM of another target.
    """

    aux_layers: tuple[int, ...] = ()

    def __init__(
        self,
        heads: Any,
        vocab_size: int | None,
        target: Any,
        model_config: Any,
        num_tokens: int,
        selector: CandidateSelector | None = None,
    ) -> None:
        self.head_logits = HeadLogits(heads, target.compute_logits, num_tokens)
        self.num_slots = self.head_logits.num_slots
        width, columns = model_config.get_hidden_size(), model_config.get_vocab_size()
        head_width = getattr(heads, "hidden_size", width)
        if head_width != width:
            raise ValueError(
                f"lattice-bpd: the heads take hidden states of width {head_width}, the target's "
                f"have {width}; use heads trained on this target"
            )
        with torch.inference_mode():
            device = next(target.parameters()).device
            state = torch.zeros(1, width, device=device, dtype=model_config.dtype)
            logits = self.head_logits(state, [0])
        columns = columns if logits is None else int(logits.shape[-1])
        check_vocabulary(columns, vocab_size)
        self._selector = None if selector is None else selector.to(device).eval()
        if selector is not None:
            selector.check_fit(columns, width, int(heads.num_slots), "lattice-bpd")

    def store(self, step: Step) -> None:
        """Nothing: the heads read the last hidden states only."""

    def read(self, batch: DraftBatch, hidden: Tensor) -> Tensor | LatticeInput | None:
        """See SlotSource."""
        exact_tokens = batch.exact_tokens
        logits = self.head_logits(hidden, exact_tokens)
        if logits is None or self._selector is None:
            return logits
        anchors = torch.tensor(exact_tokens, device=hidden.device)
        return self._selector.lattice_of_heads(logits, hidden, anchors)


class BlockSource:
    """A block drafter.

    Args:
        drafter: on the target's device, in its dtype.
        vocab_size: see `HeadSource`, as for the other arguments.
        target: see there.
        model_config: see there.
        num_tokens: see there.

    Raises:
        ValueError: a drafter or LM of another target, or a target without hidden states of layers.
    """

    def __init__(
        self,
        drafter: BlockDrafter,
        vocab_size: int | None,
        target: Any,
        model_config: Any,
        num_tokens: int,
    ) -> None:
        self._num_layers = model_config.get_total_num_hidden_layers()
        columns = model_config.get_vocab_size()
        check_vocabulary(columns, vocab_size)
        width = model_config.get_hidden_size()
        view: Any = TargetView(target, self._num_layers, width, columns, model_config.dtype)
        drafter.attach(view)
        if not hasattr(target, "set_aux_hidden_state_layers"):
            raise ValueError(
                f"lattice-bpd: vLLM's {type(target).__name__} does not return hidden states of its "
                "layers (set_aux_hidden_state_layers), which a block drafter reads; use draft heads"
            )
        self._layers = drafter.hidden_layers
        self._lattices = BlockLattices(drafter, num_tokens, columns)
        self.num_slots = self._lattices.num_slots
        self.aux_layers = aux_layers_of(self._layers, self._num_layers)

    def store(self, step: Step) -> None:
        """Keep what the drafter reads of all tokens, those of prompts too."""
        features = read_features(step, self._layers, self._num_layers)
        self._lattices.store(features, read_layout(step))

    def read(self, batch: DraftBatch, hidden: Tensor) -> Tensor | LatticeInput:  # noqa: ARG002
        """See SlotSource."""
        before = [length - 1 for length in batch.lengths]
        return self._lattices(batch.requests, before, batch.exact_tokens)


def check_vocabulary(columns: int, vocab_size: int | None) -> None:
    """Raise ValueError unless the target's logits have as many columns as drafter and LM expect."""
    if vocab_size not in (None, columns):
        raise ValueError(
            f"lattice-bpd: the target's logits have {columns} columns, drafter and LM a vocabulary "
            f"of {vocab_size}; expected the same; use drafter and LM of this target"
        )
