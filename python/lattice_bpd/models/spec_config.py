"""The config, the KV cache and the files of a SpecDrafter."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_bpd.models.block_layers import KeysValues
from lattice_bpd.models.head_files import HeadFiles

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
