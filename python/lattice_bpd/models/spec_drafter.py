"""SpecDrafter: a non-autoregressive decoder that fills a block of masked positions at once.

    source            -> encoder states                (its own encoder's, or the target's)
    prefix  y_1 .. y_t        each sees itself and what is before it
    block   [1] [2] .. [H]    each sees the prefix and the whole block   -> logits of y_{t+1} ..

The prefix never sees the block, so its keys and values are kept from one block to the next. A
masked slot is the last token's embedding and the slot's own query; a projection of the target's
hidden state, which predicted that token, is added where the drafter was built with it.

Xia et al. 2022 (SpecDec), section 3: distinct queries for each masked position, a deep encoder and
a shallow decoder. Reading the target's encoder and hidden state, and beginning as a copy of its
decoder (`start_from`), are ours.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models.block_layers import BlockLayer, embed_positions, hide, see_blocks
from lattice_bpd.models.spec_config import SPEC_DRAFTER_FILES, DraftMemory, SpecDrafterConfig


class SpecDrafter(nn.Module):
    """A block of tokens in one pass, behind any prefix of any source; in float32.

    Args:
        config: sizes.

    Raises:
        ValueError: sizes that do not fit together.
    """

    def __init__(self, config: SpecDrafterConfig) -> None:
        super().__init__()
        config.check()
        size = config.hidden_size
        self.config, self.num_slots = config, config.num_slots
        sizes = (size, config.inner_size, config.attention_heads)
        self.embedding = nn.Embedding(config.vocab_size, size)
        self.slots = nn.Embedding(config.num_slots, size)
        self.encoder = nn.ModuleList(
            BlockLayer(*sizes, crossed=False) for _ in range(config.encoder_layers)
        )
        self.source_projection = nn.Linear(config.source_size, size) if config.source_size else None
        self.state_projection = nn.Linear(config.state_size, size) if config.state_size else None
        self.decoder = nn.ModuleList(
            BlockLayer(*sizes, crossed=True) for _ in range(config.decoder_layers)
        )
        if not self.embedding.weight.is_meta:
            self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        for table in (self.embedding, self.slots):
            nn.init.normal_(table.weight, std=self.config.hidden_size**-0.5)
        self.slots.weight[0] = 0.0  # the slot that can do as the target does: see start_from
        if self.state_projection is not None:
            nn.init.zeros_(self.state_projection.weight)
            nn.init.zeros_(self.state_projection.bias)

    @torch.no_grad()
    def start_from(self, target: PreTrainedModel) -> None:
        """Take over the target's embedding and the first layers of its decoder.

        Then slot 0, which stands where the prefix's last token stands and is made of it, begins as
        a copy of the target (all of it, where the drafter has as many layers, Marian's sinusoids
        and ReLU are the target's, and there is one slot), and training teaches the other slots.

        Args:
            target: of the same sizes, with decoder layers named as Marian's or BART's.

        Raises:
            ValueError: a target of other sizes or parts, or a drafter with its own encoder.
        """
        decoder: Any = target.get_decoder()  # type: ignore[no-untyped-call]
        layers = getattr(decoder, "layers", [])
        config = self.config
        try:
            if len(layers) < config.decoder_layers or config.source_size != config.hidden_size:
                raise RuntimeError(
                    f"it has {len(layers)} decoder layers, encoder states of {config.source_size}"
                )
            self.embedding.weight.copy_(decoder.embed_tokens.weight)
            for own, other in zip(self._layers(), layers, strict=False):
                own.start_from(other)
        except (AttributeError, RuntimeError) as error:
            raise ValueError(
                f"SpecDrafter: cannot start from a {type(target).__name__} ({error}); expected "
                f"decoder layers as Marian's of width {config.hidden_size} and "
                f"{config.inner_size}, {config.decoder_layers} or more; train it from scratch"
            ) from error
        projection = cast(nn.Linear, self.source_projection)
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)

    def read_source(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """The source as the decoder's layers look at it.

        Args:
            source: (B, S) int64 token ids for its own encoder, or (B, S, source_size) float, the
                target's encoder states.
            mask: (B, S), 0 for padding; None where nothing is padded.

        Returns:
            (B, S, D) float.
        """
        if self.source_projection is not None:
            states: Tensor = self.source_projection(source)
        else:
            states = self._embed(source, 0)
            hidden = None if mask is None else hide(mask[:, None] != 0)
            for layer in self.encoder:
                states, _ = layer(states, hidden)
        return states

    def forward(
        self,
        source: Tensor,
        source_mask: Tensor | None,
        tokens: Tensor,
        starts: Tensor,
        hidden: Tensor | None = None,
        revealed: Tensor | None = None,
    ) -> Tensor:
        """Logits of N blocks behind N prefixes of each text.

        Args:
            source: (B, S, D) float, what `read_source` gave.
            source_mask: (B, S), 0 for padding, or None.
            tokens: (B, T) int64, texts, padded on the right.
            starts: (B, N) int64, the prefix of a block ends with this token, 0..T-1.
            hidden: (B, N, state_size) float, the target's hidden states that predicted those
                tokens; None where the drafter does not read them.
            revealed: (B, N, H) int64, tokens of the blocks that are told; -1 where masked. None:
                all are masked.

        Returns:
            (B, N, H, V) float; slot 0 guesses the token behind the prefix.
        """
        batch, length = tokens.shape
        last = tokens.gather(1, starts.clamp(max=length - 1))
        blocks = self._embed_blocks(last, starts, hidden, revealed)  # (B, N, H, D)
        states = torch.cat([self._embed(tokens, 0), blocks.flatten(1, 2)], dim=1)
        own = hide(see_blocks(length, starts, self.num_slots))
        padding = None if source_mask is None else hide(source_mask[:, None] != 0)
        for layer in self._layers():
            states, _ = layer(states, own, source=layer.cross(source), source_hidden=padding)
        return self._logits(states[:, length:]).view(batch, starts.shape[1], self.num_slots, -1)

    def begin(self, source: Tensor) -> DraftMemory:
        """Memory of a text that has just begun; source is (1, S, D) of `read_source`."""
        read = [layer.cross(source) for layer in self._layers()]
        return DraftMemory(read, [None] * len(read))

    def draft(self, memory: DraftMemory, tokens: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Logits of the block behind one text.

        Args:
            memory: of the text; grows by the new tokens.
            tokens: (n,) int64, the tokens that are new since the last block, 1 or more.
            hidden: (state_size,) float, the target's hidden state that predicted the last one.

        Returns:
            (H, V) float.
        """
        count, size = len(tokens), len(tokens) + self.num_slots
        last = torch.tensor([[memory.length + count - 1]], device=tokens.device)
        given = None if hidden is None else hidden[None, None]
        block = self._embed_blocks(tokens[None, -1:], last, given, None)[0]  # (1, H, D)
        states = torch.cat([self._embed(tokens[None], memory.length), block], dim=1)
        sees = torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()
        sees[count:] = True
        sees[count:, count - 1] = False  # slot 0 stands in for the last token
        own = hide(torch.cat([sees.new_ones(size, memory.length), sees], dim=1)[None])
        for number, layer in enumerate(self.decoder):
            states, (keys, values) = layer(
                states, own, before=memory.prefix[number], source=memory.source[number]
            )
            kept = memory.length + count
            memory.prefix[number] = keys[:, :, :kept], values[:, :, :kept]
        memory.length += count
        return self._logits(states[0, count:])

    def save_pretrained(self, directory: str | Path) -> None:
        """Write spec_drafter.safetensors and spec_drafter.json; see `head_files`.

        Raises:
            OSError: the directory cannot be written.
        """
        SPEC_DRAFTER_FILES.write(Path(directory), asdict(self.config), self)

    @classmethod
    def from_pretrained(cls, directory: str | Path) -> SpecDrafter:
        """Read what `save_pretrained` wrote, on the CPU, in evaluation mode.

        Raises:
            FormatError: a file is missing, cut, altered or of another format version.
            ValueError: sizes that do not fit together.
        """
        found = SPEC_DRAFTER_FILES.read_config(Path(directory))
        config = SpecDrafterConfig(**{name: found[name] for name in SPEC_DRAFTER_FILES.least})
        return SPEC_DRAFTER_FILES.read_heads(Path(directory), lambda: cls(config)).eval()

    def _layers(self) -> list[BlockLayer]:
        return cast("list[BlockLayer]", list(self.decoder))

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        """(B, T, D) of tokens (B, T) whose first one stands at position `first`."""
        places = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        return self._scaled(tokens) + embed_positions(places, self.config.hidden_size)

    def _scaled(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens) * float(self.config.hidden_size) ** 0.5
        return embedded

    def _embed_blocks(
        self, last: Tensor, starts: Tensor, hidden: Tensor | None, revealed: Tensor | None
    ) -> Tensor:
        """(B, N, H, D): slot queries, or told tokens, at their positions behind the prefixes."""
        if (self.state_projection is None) != (hidden is None):
            raise ValueError(
                f"SpecDrafter: state_size is {self.config.state_size} and hidden states were "
                f"{'not ' if hidden is None else ''}given; expected them where state_size is above "
                "0 and only there"
            )
        size, slots = self.config.hidden_size, self.num_slots
        queries = self.slots.weight * float(size) ** 0.5
        # As in the target, what stands at a position predicts the token of the next one.
        places = starts.unsqueeze(-1) + torch.arange(slots, device=starts.device)  # (B, N, H)
        embedded = queries + self._scaled(last).unsqueeze(2)
        if revealed is not None:
            told = self._scaled(revealed.clamp(min=0))
            embedded = torch.where((revealed >= 0).unsqueeze(-1), told, embedded)
        if self.state_projection is not None:
            embedded = embedded + self.state_projection(hidden).unsqueeze(2)
        placed: Tensor = embedded + embed_positions(places, size)
        return placed

    def _logits(self, states: Tensor) -> Tensor:
        logits: Tensor = nn.functional.linear(states, self.embedding.weight)
        return logits
