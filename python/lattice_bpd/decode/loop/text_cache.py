"""KV caches that the next turn of a chat continues, so that it reads only its new tokens.

A `DynamicCache` of transformers holds the keys and values; a record beside them says which tokens
they belong to, and of which model. The next call keeps what its prompt has in common with these
tokens and reads the rest, so an edited history is read from the first difference on.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.models.model_facts import version_of
from lattice_bpd.token_ids import count_shared
from lattice_bpd.verify.cache import EMPTY
from lattice_bpd.verify.protocol import TargetOutput
from lattice_bpd.verify.recurrent_cache import RecurrentCache
from lattice_bpd.verify.rows import Rows

_RECORD = "_lattice_bpd_texts"  # attribute of a cache
Layers = list[tuple[Tensor, ...]]


@dataclass
class CachedText:
    """One text that a target has read.

    Attributes:
        token_ids: (T,) ints.
        layers: of each layer the keys and values, (1, heads, T, D) float; () without attention.
    """

    token_ids: list[int] = field(default_factory=list)
    layers: Layers = field(default_factory=list)


@dataclass
class _Record:
    """What a cache holds.

    Attributes:
        model: the model that filled it.
        weights: see `_weights_of`.
        token_ids: of each row.
        parts: the tensors of its layers; others mean that other code changed it.
    """

    model: weakref.ref[Any]
    weights: int
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
        texts: of each prompt, what is read of it and cached; None: nothing.
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
        self.texts: list[CachedText | None] = [None] * count
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

    def read(self, model: DraftingModel, prompts: list[list[int]]) -> Any:
        """Read what prompts have beyond their cached texts, each in a call of its own.

        Args:
            model: the target.
            prompts: B prompts.

        Returns:
            The same as `read_prompts` of the target; None if no prompt has cached tokens.
        """
        pairs = list(zip(prompts, self.texts, strict=True))
        self.texts = [None] * len(prompts)
        self.reused = [_count_usable(model, tokens, text) for tokens, text in pairs]
        if not any(self.reused):
            return None
        target: Any = model.target
        outputs, rows = [], []
        for (tokens, text), length in zip(pairs, self.reused, strict=True):
            cache = target.new_cache()
            if text is not None and length > 0:
                _fill(cache, [[part[:, :, :length] for part in layer] for layer in text.layers])
            ids = torch.tensor([tokens[length:]], device=model.device)
            positions = torch.arange(length, len(tokens), device=model.device)[None]
            output, cache = target.read_prompts(
                ids, None, positions if target.takes_positions else None, cache
            )
            outputs.append(output)
            rows.append(_layers_of(cache))
        merged = cache if len(rows) == 1 else _fill(target.new_cache(), _merge(rows))
        logits = torch.cat([output.logits for output in outputs])
        return TargetOutput(logits, torch.cat([output.hidden for output in outputs])), merged

    def keep(self, number: int, state: Rows | RecurrentCache, row: int, text: list[int]) -> None:
        """Keep a text that has ended.

        Args:
            number: index of the text.
            state: the cache of the batch.
            row: of the text in it.
            text: prompt and output.
        """
        if self.refusal is None:
            self.texts[number] = _take(state, row, text)

    def store(self, model: DraftingModel) -> None:
        """Replace what the caches hold by `texts`."""
        texts = [CachedText() if text is None else text for text in self.texts]
        if self._is_shared:
            _write_rows(self.caches[0], model, texts)
            return
        for cache, text in zip(self.caches, texts, strict=True):
            _write_rows(cache, model, [text])


def _find_refusal(model: DraftingModel) -> str | None:
    """Why a text cannot be continued from its cache, or None."""
    target: Any = model.target
    name = type(target.base).__name__
    config = target.base.config
    if config.get_text_config(decoder=True) is not config:  # may read a prompt in both directions
        return f"{name} reads more than text"
    if target.is_recurrent:
        return f"{name} keeps a recurrent state, which cannot drop tokens"
    if target.feature_layers:
        return "the heads read outputs of layers, which a cache does not hold"
    if any(type(layer) not in (DynamicLayer, EMPTY) for layer in target.new_cache().layers):
        return f"{name} has layers that keep more than keys and values"
    return None


def _take(state: Rows | RecurrentCache, row: int, token_ids: list[int]) -> CachedText | None:
    """A copy of what a cache holds of one text; None for a recurrent state."""
    if isinstance(state, RecurrentCache):
        return None
    length = min(state.lengths[row], len(token_ids))
    return CachedText(token_ids[:length], state.read_text(row, length))


def _count_usable(model: DraftingModel, tokens: list[int], text: CachedText | None) -> int:
    """Cached tokens that a prompt can continue from; its last token is always read."""
    if text is None or not text.token_ids:
        return 0
    target: Any = model.target
    longest = max(len(tokens), len(text.token_ids))
    if any(longest > boundary for boundary in target.limits.boundaries):
        return 0  # the keys of a long text have other rotary frequencies
    return min(count_shared(text.token_ids, tokens), len(tokens) - 1)


def _check_kind(cache: Any) -> None:
    if type(cache) is not DynamicCache or getattr(cache, "offloading", False):
        kind = type(cache).__name__
        error: type[Exception] = ValueError if isinstance(cache, Cache) else TypeError
        raise error(
            f"decode: cache is a {kind}; expected True, an empty DynamicCache(), or the cache of "
            "an earlier result"
        )


def _read_rows(cache: Any, model: DraftingModel, count: int) -> list[CachedText | None]:
    """The texts in a cache; None for each in an empty one."""
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
        return [None] * count
    base = model.target.base
    if record.model() is not base or record.weights != _weights_of(base):
        filled = record.model()
        changed = "a model whose weights, hooks or adapters have changed"
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
        return [None] * count
    if len(record.token_ids) != count:
        raise ValueError(
            f"decode: cache holds {len(record.token_ids)} texts, found {count} prompts; expected "
            "the same texts in the same order; begin with a new one (cache=True)"
        )
    return [
        CachedText(
            token_ids,
            [
                tuple(part[row : row + 1, :, width - len(token_ids) :] for part in layer)
                for layer in layers
            ],
        )
        for row, token_ids in enumerate(record.token_ids)
    ]


def _write_rows(cache: Any, model: DraftingModel, texts: list[CachedText]) -> None:
    """Replace what a cache holds."""
    fresh = model.target.new_cache()
    if all(text.token_ids for text in texts):
        _fill(fresh, _merge([text.layers for text in texts]))
    else:
        texts = [CachedText() for _ in texts]
    cache.layers = fresh.layers
    base = model.target.base
    parts = [part for layer in _layers_of(cache) for part in layer]
    tokens = [text.token_ids for text in texts]
    setattr(cache, _RECORD, _Record(weakref.ref(base), _weights_of(base), tokens, parts))


def _layers_of(cache: Any) -> Layers:
    """Keys and values of each layer; () where it has none."""
    return [
        () if getattr(layer, "keys", None) is None else (layer.keys, layer.values)
        for layer in cache.layers
    ]


def _fill(cache: Cache, layers: Sequence[Sequence[Tensor]]) -> Cache:
    """Copy keys and values of each layer into an empty cache."""
    for number, parts in enumerate(layers):
        if parts:
            cache.update(parts[0], parts[1], number)
    return cache


def _merge(rows: list[Layers]) -> Layers:
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


def _weights_of(base: Any) -> int:
    """A number that changes with weights, dtype, device, hooks and active adapters of a model."""
    weights = ((*version_of(weight), weight.dtype) for weight in base.parameters())
    modules = (
        (
            len(module._forward_hooks) + len(module._forward_pre_hooks),
            id(vars(module).get("forward")),
            str([vars(module).get(name) for name in ("_active_adapter", "_disable_adapters")]),
        )
        for module in base.modules()
    )
    return hash((tuple(weights), tuple(modules)))
