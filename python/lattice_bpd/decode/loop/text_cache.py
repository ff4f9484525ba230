"""KV caches that the next turn of a chat continues, so that it reads only its new tokens.

A `DynamicCache` of transformers holds the keys and values; a record beside them says which tokens
they belong to, and of which model. The next call keeps what its prompt has in common with these
tokens and reads the rest, so an edited history is read from the first difference on.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from lattice_bpd.decode.loop.request import Start
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.model_facts import state_of
from lattice_bpd.token_ids import count_shared
from lattice_bpd.verify.cache import EMPTY, fill_cache
from lattice_bpd.verify.probes import find_parts_refusal
from lattice_bpd.verify.row_buffers import LayerParts
from lattice_bpd.verify.rows import Rows

_RECORD = "_lattice_bpd_texts"  # attribute of a cache


@dataclass
class _Record:
    """What a cache holds.

    Attributes:
        model: the model that filled it.
        state: of that model then.
        token_ids: of each row.
        parts: the tensors of its layers; others mean that other code changed it.
    """

    model: weakref.ref[Any]
    state: list[Any]
    token_ids: list[list[int]]
    parts: list[Tensor]


class TextCaches:
    """The caches of the texts of one call: one for each, or one for all of them.

    Args:
        given: True for new caches; one or a list of caches of transformers, empty or filled by an
            earlier call. They are updated in place.
        count: number of texts.

    Attributes:
        caches: one for each text; the same one for all if a single one was given.
        texts: of each prompt, what is read of it and cached, perhaps nothing.
        reused: tokens of each prompt that were in its cache.
        refusal: why nothing can be reused, or None.

    Raises:
        TypeError: something else.
        ValueError: another number of caches.
    """

    def __init__(self, given: Any, count: int) -> None:
        self.caches: list[Any]
        if given is True:
            given = [DynamicCache() for _ in range(count)]
        self._is_shared = not isinstance(given, (list, tuple))
        self.caches = [given] * count if self._is_shared else list(given)
        for cache in self.caches:
            _check_kind(cache)
        if len(self.caches) != count:
            raise ValueError(
                f"decode: found {len(self.caches)} caches for {count} prompts; expected one for "
                "each, in order, or one with a row for each"
            )
        self.texts = [Start([])] * count
        self.reused = [0] * count
        self.refusal: str | None = None

    def load(self, model: DraftingModel, refusal: str | None) -> None:
        """Set `texts` to what the caches hold.

        Args:
            model: the target.
            refusal: why nothing can be reused, if the caller knows a reason.

        Raises:
            ValueError: an encoder-decoder, or a cache of another model, with other rows, or with
                unknown tokens.
        """
        if model.target.decoder_prompt is not None:
            raise ValueError(
                f"decode: {type(model.target.base).__name__} is an encoder-decoder, whose texts "
                "begin anew; expected a decoder-only causal LM; leave cache out"
            )
        if self._is_shared:
            texts = _read_rows(self.caches[0], model, len(self.texts))
        else:
            texts = [_read_rows(cache, model, 1)[0] for cache in self.caches]
        self.refusal = refusal or _find_refusal(model)
        if self.refusal is None:
            self.texts = texts

    def find_starts(self, model: DraftingModel, prompts: Sequence[list[int]]) -> list[Start | None]:
        """What each prompt continues of its cached text; None: nothing."""
        starts: list[Start | None] = []
        for number, (tokens, text) in enumerate(zip(prompts, self.texts, strict=True)):
            self.reused[number] = length = _count_usable(model, tokens, text)
            starts.append(Start(tokens[:length], saved=text.saved) if length else None)
        self.texts = [Start([])] * len(prompts)
        return starts

    def keep(self, number: int, rows: Rows, row: int, text: list[int]) -> None:
        """Keep a text that has ended.

        Args:
            number: index of the text.
            rows: of the batch.
            row: of the text in them.
            text: prompt and output.
        """
        if self.refusal is None:
            length = min(rows.lengths[row], len(text))
            self.texts[number] = Start(text[:length], saved=rows.save(row, length))

    def store(self, model: DraftingModel) -> None:
        """Replace what the caches hold by `texts`."""
        if self._is_shared:
            _write_rows(self.caches[0], model, self.texts)
            return
        for cache, text in zip(self.caches, self.texts, strict=True):
            _write_rows(cache, model, [text])


def _find_refusal(model: DraftingModel) -> str | None:
    """Why a text cannot be continued from its cache, or None."""
    target: Any = model.target
    if refusal := find_parts_refusal(target):
        return refusal
    if any(type(layer) not in (DynamicLayer, EMPTY) for layer in target.new_cache().layers):
        return f"{type(target.base).__name__} has layers that keep more than keys and values"
    return None


def _count_usable(model: DraftingModel, tokens: list[int], text: Start) -> int:
    """Cached tokens that a prompt can continue from; its last token is always read."""
    if not model.target.limits.allows_parts(max(len(tokens), len(text.tokens))):
        return 0
    return min(count_shared(text.tokens, tokens), len(tokens) - 1)


def _check_kind(cache: Any) -> None:
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        kind = type(cache).__name__
        error: type[Exception] = ValueError if isinstance(cache, Cache) else TypeError
        raise error(
            f"decode: cache is a {kind}; expected True, an empty DynamicCache(), or the cache of "
            "an earlier result"
        )


def _read_rows(cache: Any, model: DraftingModel, count: int) -> list[Start]:
    """The texts in a cache; without tokens in an empty one."""
    record: _Record | None = getattr(cache, _RECORD, None)
    layers = _layers_of(cache)
    width = max((layer[0].shape[2] for layer in layers if layer), default=0)
    if record is None:
        if width > 0:
            raise ValueError(
                f"decode: cache holds {width} positions of unknown tokens; expected an empty "
                "DynamicCache(), or one that generate or CustomGenerate filled; read the whole "
                "text with cache=True"
            )
        return [Start([])] * count
    base = model.target.base
    if record.model() is not base or record.state != state_of(base):
        filled = record.model()
        changed = "a model that has changed since: its weights, hooks, adapters, config or mode"
        what = "another model" if filled is not base else changed
        raise ValueError(
            f"decode: cache was filled by {what}; expected one of this {type(base).__name__}; "
            "begin with a new one (cache=True)"
        )
    parts = [part for layer in layers for part in layer]
    if len(parts) != len(record.parts) or any(
        part is not known for part, known in zip(parts, record.parts, strict=True)
    ):
        longest = max(map(len, record.token_ids))
        raise ValueError(
            f"decode: cache has {width} positions and was changed since a call filled it with "
            f"{longest} tokens; expected it as that call left it: an edited or shorter history "
            "needs no crop; begin with a new one (cache=True)"
        )
    if not parts:
        return [Start([])] * count
    if len(record.token_ids) != count:
        raise ValueError(
            f"decode: cache holds {len(record.token_ids)} texts, found {count} prompts; expected "
            "the same texts in the same order; begin with a new one (cache=True)"
        )
    return [
        Start(
            token_ids,
            saved=[
                tuple(part[row : row + 1, :, width - len(token_ids) :] for part in layer)
                for layer in layers
            ],
        )
        for row, token_ids in enumerate(record.token_ids)
    ]


def _write_rows(cache: Any, model: DraftingModel, texts: list[Start]) -> None:
    """Replace what a cache holds."""
    fresh = model.target.new_cache()
    if all(text.tokens for text in texts):
        fill_cache(fresh, _merge([text.saved or [] for text in texts]))
    else:
        texts = [Start([])] * len(texts)
    cache.layers = fresh.layers
    base = model.target.base
    parts = [part for layer in _layers_of(cache) for part in layer]
    tokens = [text.tokens for text in texts]
    setattr(cache, _RECORD, _Record(weakref.ref(base), state_of(base), tokens, parts))


def _layers_of(cache: Any) -> list[LayerParts]:
    """Keys and values of each layer; () where it has none."""
    return [
        () if getattr(layer, "keys", None) is None else (layer.keys, layer.values)
        for layer in cache.layers
    ]


def _merge(rows: list[list[LayerParts]]) -> list[LayerParts]:
    """Layers of several texts as those of a batch, padded on the left."""
    merged = []
    for layers in zip(*rows, strict=True):
        width = max((layer[0].shape[2] for layer in layers if layer), default=0)
        merged.append(
            tuple(
                torch.cat([F.pad(part, (0, 0, width - part.shape[2], 0)) for part in parts])
                for parts in zip(*layers, strict=True)
            )
        )
    return merged
