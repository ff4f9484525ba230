"""Draft heads made of a SpecDrafter, which reads the source and all decoded tokens.

Every strategy can use them: "bpd" is SpecDec; "ngram", "p_best" and "tree" rescore its blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.models.checkpoint import HeadFormat
from lattice_bpd_translation.drafter import SPEC_DRAFTER_FILES, SpecDrafter, SpecDrafterCache
from lattice_bpd_translation.source_cache import Source


class SpecDrafterHeads:
    """The blocks of a SpecDrafter as head logits of an encoder-decoder: `generate(.., heads=..)`.

    For a single text the drafter's keys and values are cached between steps. The texts of a batch
    are read again in each step, all in one call.

    Args:
        drafter: trained for the target; moved to the target's device.

    Raises:
        TypeError: not a SpecDrafter.
    """

    def __init__(self, drafter: SpecDrafter) -> None:
        if not isinstance(drafter, SpecDrafter):
            raise TypeError(
                f"SpecDrafterHeads: drafter is a {type(drafter).__name__}; expected a SpecDrafter"
            )
        self.drafter, self.num_slots = drafter.eval(), drafter.num_slots
        self._dtype = drafter.embedding.weight.dtype

    def as_draft_heads(self, target: Any) -> SpecDrafterHeads:
        """These heads, on the device of the target.

        Raises:
            ValueError: the target is no encoder-decoder.
        """
        if target.decoder_prompt is None:
            raise ValueError(
                "SpecDrafterHeads: the target is no encoder-decoder, so there is no source; "
                "expected one; use heads on hidden states for a decoder-only LM"
            )
        self.drafter.to(target.device)
        return self

    def read_states(self, states: Sequence[DecodeState]) -> Tensor:
        """See `lattice_bpd.decode.state.model.DraftHeads`.

        Raises:
            ValueError: the target has other widths.
        """
        sources = [self._source_of(state) for state in states]
        if len(states) == 1:
            return self._read_one(states[0], sources[0])[None]
        length = torch.tensor([len(source.token_ids[0]) for source in sources], device="cpu")
        tokens = [torch.tensor(state.tokens, device="cpu") for state in states]
        padded = pad_sequence([self._inputs_of(source)[0] for source in sources], batch_first=True)
        device = padded.device
        mask = (torch.arange(int(length.max()), device="cpu") < length[:, None]).to(device)
        starts = torch.tensor([[len(state.tokens) - 1] for state in states], device=device)
        hidden = None
        if self.drafter.config.state_size:
            hidden = torch.stack([state.hidden for state in states])[:, None].to(self._dtype)
        logits: Tensor = self.drafter(
            self.drafter.read_source(padded, mask), mask,
            pad_sequence(tokens, batch_first=True).to(device), starts, hidden,
        )  # fmt: skip
        return logits[:, 0]

    def _read_one(self, state: DecodeState, source: Source) -> Tensor:
        if state.memory is None:
            state.memory = self.drafter.new_cache(self.drafter.read_source(self._inputs_of(source)))
        memory = cast(SpecDrafterCache, state.memory)
        new = torch.tensor(state.tokens[memory.length :], device=source.states.device)
        hidden = state.hidden.to(self._dtype) if self.drafter.config.state_size else None
        return self.drafter.draft(memory, new, hidden)

    def _inputs_of(self, source: Source) -> Tensor:
        """The drafter's source input: token ids, or the target's encoder states."""
        if self.drafter.config.source_size:
            return source.states.to(self._dtype)
        return torch.tensor(source.token_ids, device=source.states.device)

    def _source_of(self, state: DecodeState) -> Source:
        config = self.drafter.config
        widths = (state.source.states.shape[-1], state.hidden.shape[-1])
        expected = (config.source_size or widths[0], config.state_size or widths[1])
        if widths != expected:
            raise ValueError(
                f"SpecDrafterHeads: the target's encoder and decoder states have widths {widths}, "
                f"the drafter expects {expected}; use a drafter trained on this target"
            )
        source: Source = state.source
        return source


class SpecDrafterFormat(HeadFormat):
    """Folders that `SpecDrafter.save_pretrained` wrote; see `lattice_bpd.models.checkpoint`."""

    name, kind = SPEC_DRAFTER_FILES.config_name, SpecDrafterHeads

    def find_loader(self, directory: Path) -> Callable[[Path], SpecDrafterHeads] | None:
        """See HeadFormat."""
        if not (directory / self.name).is_file():
            return None
        return lambda folder: SpecDrafterHeads(SpecDrafter.from_pretrained(folder))

    def write(self, heads: Any, directory: Path) -> Any:
        """See HeadFormat."""
        if isinstance(heads, SpecDrafterHeads):
            heads.drafter.save_pretrained(directory)
            return None
        for stale in (SPEC_DRAFTER_FILES.config_name, SPEC_DRAFTER_FILES.weights_name):
            (directory / stale).unlink(missing_ok=True)
        return heads


SPEC_DRAFTER_FORMAT = SpecDrafterFormat()
