"""Encoded sources, and a decoder's KV cache that contains them.

    source ids -> encoder -> states -> keys and values of every cross-attention layer
                                       (computed in the first call of the decoder, then only read)

SourceRows are Rows of the decoder's tokens that also select the rows of the sources,
so verification uses it like any other cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from lattice_bpd.verify.rows import Rows


@dataclass(frozen=True)
class Source:
    """Encoded sources of B sequences, padded on the right.

    Attributes:
        token_ids: (S_b,) ints of each sequence, without padding.
        states: (B, S, D) float, the encoder's output.
        mask: (B, S) int64, 0 for padding; None where nothing is padded.
        keys: of each cross-attention layer (B, heads, S, D) float; empty before the first call.
        values: the same.
    """

    token_ids: list[list[int]]
    states: Tensor
    mask: Tensor | None
    keys: tuple[Tensor, ...] = ()
    values: tuple[Tensor, ...] = ()

    def __len__(self) -> int:
        """B."""
        return len(self.token_ids)

    def select(self, rows: Sequence[int]) -> Source:
        """The sources of these rows; one may be selected several times."""
        if len(self) == 1:  # a view is enough

            def take(part: Tensor) -> Tensor:
                return part.expand(len(rows), *part.shape[1:])
        else:
            index = torch.tensor(rows, device=self.states.device)

            def take(part: Tensor) -> Tensor:
                return part.index_select(0, index)

        return Source(
            [self.token_ids[row] for row in rows],
            take(self.states),
            None if self.mask is None else take(self.mask),
            tuple(take(part) for part in self.keys),
            tuple(take(part) for part in self.values),
        )

    def row(self, number: int) -> Source:
        """One sequence's source, without padding."""
        length = len(self.token_ids[number])
        return Source(
            [self.token_ids[number]],
            self.states[number : number + 1, :length],
            None,
            tuple(part[number : number + 1, :, :length] for part in self.keys),
            tuple(part[number : number + 1, :, :length] for part in self.values),
        )


class SourceRows(Rows):
    """The decoder's keys and values, and the sources of its texts.

    Attributes:
        source: a row for each row of the next call.
        paired: both, in the type that decoders of `transformers` use.
    """

    def set_source(self, source: Source) -> None:
        """Replace the sources, one for each text."""
        self._of_texts = source
        self._pair(source)

    def _pair(self, source: Source) -> None:
        self.source = source
        self.paired = EncoderDecoderCache(self, _to_cache(source))

    @classmethod
    def of_first_call(cls, cache: Any, source: Source) -> SourceRows:
        """Convert the EncoderDecoderCache that a decoder's first call has filled.

        Raises:
            ValueError: layers that drop some keys.
        """
        own: SourceRows = cls.from_cache(cache.self_attention_cache)
        layers: list[Any] = cache.cross_attention_cache.layers
        own.set_source(
            Source(
                source.token_ids,
                source.states,
                source.mask,
                tuple(layer.keys for layer in layers),
                tuple(layer.values for layer in layers),
            )
        )
        return own

    def source_of(self, number: int) -> Source:
        """The source of a text, without padding."""
        return self._of_texts.row(number)

    def branch(self, texts: Sequence[int]) -> None:
        """See Rows; the sources are selected too."""
        super().branch(texts)
        self._pair(self._of_texts.select(texts))

    def keep_rows(self, rows: Sequence[int], counts: Sequence[int]) -> None:
        """See Rows; further rows leave the call."""
        super().keep_rows(rows, counts)
        if self.source is not self._of_texts:
            self._pair(self._of_texts)

    def keep_sequences(self, texts: Sequence[int]) -> None:
        """See Rows; the sources are selected too."""
        super().keep_sequences(texts)
        self.set_source(self._of_texts.select(texts))


def _to_cache(source: Source) -> Cache:
    """The cross-attention's keys and values, without a copy."""
    layers = []
    for keys, values in zip(source.keys, source.values, strict=True):
        layer: Any = DynamicLayer()  # type: ignore[no-untyped-call]
        layer.keys, layer.values, layer.is_initialized = keys, values, True
        layers.append(layer)
    return Cache(layers=layers)
