"""SpecDrafter: a non-autoregressive decoder that drafts a block of tokens per call.

    source            -> encoder states                (its own encoder's, or the target's)
    prefix  y_1 .. y_t        causal attention
    block   [1] [2] .. [H]    attends to the prefix and the whole block   -> logits of y_{t+1} ..

The prefix does not attend to the block, so its keys and values are cached from block to block. The
input of a masked slot is the last token's embedding plus the slot's query, plus a projection of the
target's hidden state that predicted that token, if the drafter is built with it.

Xia et al. 2022 (SpecDec), section 3: distinct queries for each masked position, a deep encoder and
a shallow decoder. Using the target's encoder and hidden states, and initializing from its decoder
(`start_from`), are additions of this library.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lattice_bpd.models.head_files import HeadFiles
from lattice_bpd_translation.layers import (
    BlockLayer,
    KeysValues,
    additive_mask,
    embed_positions,
    visible_to_blocks,
)

SPEC_DRAFTER_FILES = HeadFiles(
    "spec_drafter",
    {
        "vocab_size": 1, "num_slots": 1, "hidden_size": 2, "inner_size": 1, "attention_heads": 1,
        "encoder_layers": 0, "decoder_layers": 1, "source_size": 0, "state_size": 0,
    },
)  # fmt: skip


@dataclass(frozen=True)
class SpecDrafterConfig:
    """Sizes of a SpecDrafter.

    Attributes:
        vocab_size: V of the target, and of the sources if it has its own encoder.
        num_slots: H, positions of a block.
        hidden_size: D, even and a multiple of attention_heads.
        inner_size: width of feed-forward layers.
        attention_heads: of each layer.
        encoder_layers: of its own encoder; 0: it uses the target's encoder states.
        decoder_layers: 1 or more.
        source_size: width of the target's encoder states; 0 if it has its own encoder.
        state_size: width of the target's hidden state; 0: it is not used.
    """

    vocab_size: int
    num_slots: int = 5
    hidden_size: int = 128
    inner_size: int = 512
    attention_heads: int = 4
    encoder_layers: int = 0
    decoder_layers: int = 1
    source_size: int = 0
    state_size: int = 0

    def check(self) -> None:
        """Raise ValueError for sizes that do not fit together."""
        if self.hidden_size % (2 * self.attention_heads):
            raise ValueError(
                f"SpecDrafter: hidden_size is {self.hidden_size}; expected a multiple of twice "
                f"attention_heads, {2 * self.attention_heads}"
            )
        if (self.encoder_layers > 0) == (self.source_size > 0):
            raise ValueError(
                f"SpecDrafter: encoder_layers {self.encoder_layers} and source_size "
                f"{self.source_size}; expected one of them: layers of its own encoder, or the "
                "width of the target's encoder states"
            )
        if min(self.vocab_size, self.num_slots, self.inner_size, self.decoder_layers) < 1:
            raise ValueError(
                f"SpecDrafter: vocab_size {self.vocab_size}, num_slots {self.num_slots}, "
                f"inner_size {self.inner_size}, decoder_layers {self.decoder_layers}; expected 1 "
                "or more of each"
            )


@dataclass
class SpecDrafterCache:
    """The keys and values of one text, kept from block to block.

    Attributes:
        source: of each layer the keys and values of the source, (1, heads, S, D/heads) float.
        prefix: of each layer the keys and values of the prefix.
        length: tokens of the prefix.
    """

    source: list[KeysValues]
    prefix: list[KeysValues | None]
    length: int = 0


class SpecDrafter(nn.Module):
    """Drafts the block of tokens after a prefix of an output in one pass; in float32.

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
            self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        for table in (self.embedding, self.slots):
            nn.init.normal_(table.weight, std=self.config.hidden_size**-0.5)
        self.slots.weight[0] = 0.0  # so that slot 0 can start as the target: see start_from
        if self.state_projection is not None:
            nn.init.zeros_(self.state_projection.weight)
            nn.init.zeros_(self.state_projection.bias)

    @torch.no_grad()
    def start_from(self, target: PreTrainedModel) -> None:
        """Copy the target's embedding and the first layers of its decoder.

        Slot 0, which replaces the last token of the prefix, then starts as a copy of the target: an
        exact one if the drafter has one slot and as many layers, and the target has Marian's
        sinusoids and ReLU. The other slots need training.

        Args:
            target: of the same sizes, with decoder layers named as Marian's or BART's.

        Raises:
            ValueError: a target of other sizes or modules, or a drafter with its own encoder.
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
        """The source states that the decoder's layers attend to.

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
            hidden = None if mask is None else additive_mask(mask[:, None] != 0)
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
        """Logits of N blocks after N prefixes of each text.

        Args:
            source: (B, S, D) float, what `read_source` returned.
            source_mask: (B, S), 0 for padding, or None.
            tokens: (B, T) int64, texts, padded on the right.
            starts: (B, N) int64, the index of the last token of each block's prefix, 0..T-1.
            hidden: (B, N, state_size) float, the target's hidden states that predicted those
                tokens; None if the drafter does not use them.
            revealed: (B, N, H) int64, unmasked tokens of the blocks; -1 where masked. None: all are
                masked.

        Returns:
            (B, N, H, V) float; slot 0 predicts the token after the prefix.
        """
        batch, length = tokens.shape
        last = tokens.gather(1, starts.clamp(max=length - 1))
        blocks = self._embed_blocks(last, starts, hidden, revealed)  # (B, N, H, D)
        states = torch.cat([self._embed(tokens, 0), blocks.flatten(1, 2)], dim=1)
        own = additive_mask(visible_to_blocks(length, starts, self.num_slots))
        padding = None if source_mask is None else additive_mask(source_mask[:, None] != 0)
        for layer in self._layers():
            states, _ = layer(states, own, source=layer.cross(source), source_hidden=padding)
        return self._logits(states[:, length:]).view(batch, starts.shape[1], self.num_slots, -1)

    def new_cache(self, source: Tensor) -> SpecDrafterCache:
        """The cache of an empty prefix; source is (1, S, D) of `read_source`."""
        keys_values = [layer.cross(source) for layer in self._layers()]
        return SpecDrafterCache(keys_values, [None] * len(keys_values))

    def draft(
        self, cache: SpecDrafterCache, tokens: Tensor, hidden: Tensor | None = None
    ) -> Tensor:
        """Logits of the block after one text.

        Args:
            cache: of the text; extended by the new tokens.
            tokens: (n,) int64, the tokens since the last block, 1 or more.
            hidden: (state_size,) float, the target's hidden state that predicted the last one.

        Returns:
            (H, V) float.
        """
        count, size = len(tokens), len(tokens) + self.num_slots
        last = torch.tensor([[cache.length + count - 1]], device=tokens.device)
        given = None if hidden is None else hidden[None, None]
        block = self._embed_blocks(tokens[None, -1:], last, given, None)[0]  # (1, H, D)
        states = torch.cat([self._embed(tokens[None], cache.length), block], dim=1)
        sees = torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()
        sees[count:] = True
        sees[count:, count - 1] = False  # slot 0 replaces the last token
        own = additive_mask(torch.cat([sees.new_ones(size, cache.length), sees], dim=1)[None])
        for number, layer in enumerate(self.decoder):
            states, (keys, values) = layer(
                states, own, past=cache.prefix[number], source=cache.source[number]
            )
            kept = cache.length + count
            cache.prefix[number] = keys[:, :, :kept], values[:, :, :kept]
        cache.length += count
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
        sizes = SPEC_DRAFTER_FILES.read_config(Path(directory))
        config = SpecDrafterConfig(**{name: sizes[name] for name in SPEC_DRAFTER_FILES.minima})
        return SPEC_DRAFTER_FILES.read_heads(Path(directory), lambda: cls(config)).eval()

    def _layers(self) -> list[BlockLayer]:
        return cast("list[BlockLayer]", list(self.decoder))

    def _embed(self, tokens: Tensor, first: int) -> Tensor:
        """(B, T, D) of tokens (B, T) from position `first` on."""
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        return self._scaled(tokens) + embed_positions(positions, self.config.hidden_size)

    def _scaled(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.embedding(tokens) * float(self.config.hidden_size) ** 0.5
        return embedded

    def _embed_blocks(
        self, last: Tensor, starts: Tensor, hidden: Tensor | None, revealed: Tensor | None
    ) -> Tensor:
        """(B, N, H, D): slot queries, or revealed tokens, at their positions after the prefixes."""
        if (self.state_projection is None) != (hidden is None):
            raise ValueError(
                f"SpecDrafter: state_size is {self.config.state_size} and hidden states were "
                f"{'not ' if hidden is None else ''}given; expected them where state_size is above "
                "0 and only there"
            )
        size, slots = self.config.hidden_size, self.num_slots
        queries = self.slots.weight * float(size) ** 0.5
        # As in the target, the input at a position predicts the token at the next one.
        positions = starts.unsqueeze(-1) + torch.arange(slots, device=starts.device)  # (B, N, H)
        embedded = queries + self._scaled(last).unsqueeze(2)
        if revealed is not None:
            tokens = self._scaled(revealed.clamp(min=0))
            embedded = torch.where((revealed >= 0).unsqueeze(-1), tokens, embedded)
        if self.state_projection is not None:
            embedded = embedded + self.state_projection(hidden).unsqueeze(2)
        inputs: Tensor = embedded + embed_positions(positions, size)
        return inputs

    def _logits(self, states: Tensor) -> Tensor:
        logits: Tensor = nn.functional.linear(states, self.embedding.weight)
        return logits
