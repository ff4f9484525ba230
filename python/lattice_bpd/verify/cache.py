"""KV caches of `transformers`: building them, rolling them back, and those that keep states.

`lattice_bpd.verify.batch_cache` has the cache of targets whose layers are attention. A recurrent or
convolution state cannot drop tokens as a KV cache can. So the modules that keep states (*mixers*)
read a verifying call in two segments, all other layers at once:

    certain   accepted tokens that are not in the cache yet, and the exact token   -> snapshot
    draft     the draft tokens

If all draft tokens are accepted, the states stay. Otherwise the snapshot is restored, attention
layers drop the draft, and the accepted tokens are read again in the first segment of the next
call. So rolling back takes no call of its own, and at most one draft is read twice.

Some mixers (Mamba, Jamba) start from an empty state when they read several tokens; they read one
token at a time, as in `generate`. A probe per model decides, by comparing logits.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, StaticCache
from transformers.cache_utils import (
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticLayer,
)

from lattice_bpd.models.forward import LMOutput
from lattice_bpd.models.hooks import as_own, in_this_thread
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.memory import describe_lack_of_memory, is_lack_of_memory
from lattice_bpd.verify.rounding import logits_match, read_tokens

if TYPE_CHECKING:
    from lattice_bpd.verify.batch_cache import StackedCache

# Layers whose cache positions can be dropped, copied and selected. `_STATES` keep a recurrent or
# convolution state, which RecurrentCache restores.
_CROPPED = (DynamicLayer, DynamicIndexedLayer, StaticLayer)
_STATES = (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)


def build_cache(base: Any) -> Cache:
    """An empty cache for a model, with the kinds of layers that its config names.

    Sliding-window layers keep everything instead of their window, so that rejected drafts can be
    dropped; the window is then applied by the mask.

    Raises:
        ValueError: the model does not keep its state in caches of `transformers`, or has layers
            whose cache cannot be rolled back.
    """
    name = type(base).__name__
    supports = getattr(base, "_supports_default_dynamic_cache", None)
    if supports is not None and not supports():
        raise ValueError(
            f"decode: {name} keeps its state in a form of its own instead of a cache of "
            "transformers, so rejected drafts cannot be taken back; use the model's own generate, "
            "or another target"
        )
    try:
        cache = DynamicCache(config=base.config)
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"decode: transformers builds no cache from the config of {name} ({error!r}); use the "
            "model's own generate, or another target"
        ) from error
    layers: list[Any] = cache.layers
    for number, layer in enumerate(layers):
        if type(layer) is DynamicSlidingWindowLayer:
            layers[number] = DynamicLayer()  # type: ignore[no-untyped-call]
        elif type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
            layers[number] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
        elif type(layer) not in (*_CROPPED, *_STATES):
            raise ValueError(
                f"decode: layer {number} of {name} has a {type(layer).__name__}, which cannot be "
                "rolled back to the accepted tokens; use the model's own generate, or another "
                "target"
            )
    return cache


def check_cache(cache: Cache) -> None:
    """Raise unless cache positions can be dropped.

    Args:
        cache: the target's cache after its first call.

    Raises:
        ValueError: a layer forgets (sliding window, recurrent state), so that rejected drafts
            could not be taken back.
    """
    layers: list[Any] = (
        cache.layers if isinstance(cache, Cache) else []
    )  # else a class of the caller
    forgets = any(getattr(cache, "is_sliding", [])) or any(
        not isinstance(layer, _CROPPED) and not hasattr(layer, "stack") and not is_empty(layer)
        for layer in layers
    )
    if forgets or not (layers or getattr(cache, "is_croppable", True)):
        raise ValueError(
            f"verify_drafts: the target's {type(cache).__name__} cannot be rolled back (a layer "
            "has a sliding window or a recurrent state); expected full attention in every layer; "
            "use CausalLMTarget(model).new_cache(), which keeps all tokens of a sliding "
            "window"
        )


def is_empty(layer: Any) -> bool:
    """Whether a layer holds nothing, as where the model's layer has no attention."""
    return getattr(layer, "keys", None) is None and getattr(layer, "device", None) is None


def _partly_filled(cache: Any) -> bool:
    """Whether some layers are empty, so that layers must be treated one by one."""
    return isinstance(cache, Cache) and any(is_empty(layer) for layer in cache.layers)


def stack_layers(cache: Any, num_free: int) -> tuple[Tensor, Tensor, int] | None:
    """Buffers of the keys and values of all layers, and their width; see `StackedCache.from_cache`.

    None if the layers differ in shape, or are not those of a `DynamicCache`.
    """
    layers: list[Any] = cache.layers
    if type(cache) is not DynamicCache or any(
        type(layer) is not DynamicLayer or layer.keys is None or layer.values is None
        for layer in layers
    ):
        return None
    parts = [(layer.keys, layer.values) for layer in layers]
    shapes = {(keys.shape, values.shape) for keys, values in parts}
    kinds = {(part.dtype, part.device) for pair in parts for part in pair}
    if len(shapes) != 1 or len(kinds) != 1:
        return None
    width = int(parts[0][0].shape[2])
    buffers = []
    for of_layers in zip(*parts, strict=True):
        batch, heads, _, size = of_layers[0].shape
        buffer = of_layers[0].new_empty((len(layers), batch, heads, width + num_free, size))
        for number, part in enumerate(of_layers):
            buffer[number, :, :, :width] = part
        buffers.append(buffer)
    return buffers[0], buffers[1], width


def crop_layers(cache: Any, width: int, now: int) -> None:
    """Drop all cache positions from `width` on; `now` are in use."""
    if isinstance(cache, StaticCache):
        layers: list[Any] = cache.layers
        for layer in layers:
            layer.cumulative_length.fill_(width)
    elif width < now:
        # Negative = "remove so many": a positive length is refused since transformers 5.
        if not _partly_filled(cache):
            cache.crop(width - now)
            return
        for layer in cache.layers:
            if not is_empty(layer):
                layer.crop(width - now)


def move_in_layers(cache: Any, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each sequence to `start`, `start`+1, ... in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    index = pad_sources(sources)
    end = start + index.shape[1]
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            if states is None:  # a layer without attention
                continue
            batch, heads, _, size = states.shape
            rows = index.to(states.device).view(batch, 1, -1, 1)
            states[:, :, start:end] = states.gather(2, rows.expand(batch, heads, -1, size))
        indexed = getattr(layer, "indexer_keys", None)
        if indexed is not None:  # (B, positions, D)
            rows = index.to(indexed.device).unsqueeze(-1).expand(-1, -1, indexed.shape[-1])
            indexed[:, start:end] = indexed.gather(1, rows)


def select_in_layers(cache: Any, sequences: list[int]) -> None:
    """Keep the sequences of these indices; one may be kept several times."""
    layers = getattr(cache, "layers", None) or []
    keys = [layer.keys for layer in layers if getattr(layer, "keys", None) is not None]
    index = torch.tensor(sequences, device=keys[0].device if keys else None)
    if not _partly_filled(cache):
        cache.batch_select_indices(index)
        return
    for layer in layers:
        if not is_empty(layer):
            layer.batch_select_indices(index.to(layer.keys.device))


def move_on_device(buffer: Tensor, start: int, sources: Sequence[Sequence[int]]) -> None:
    """Copy cache positions of each of B sequences to `start`, `start`+1, .. in every layer.

    Sequences with fewer sources than others get undefined values after theirs.
    """
    index = pad_sources(sources).to(buffer.device)
    layers, batch, heads, _, size = buffer.shape
    index = index.view(1, batch, 1, -1, 1).expand(layers, batch, heads, -1, size)
    buffer.narrow(3, start, index.shape[3]).copy_(buffer.gather(3, index))


def copy_on_device(
    source: Tensor, rows: Sequence[int], buffer: Tensor, first_row: int, start: int, count: int
) -> None:
    """Copy positions `start` .. of rows of one buffer to rows `first_row` .. of another."""
    index = torch.tensor(rows, device=buffer.device)
    new = source.narrow(3, start, count).index_select(1, index)
    buffer.narrow(1, first_row, len(rows)).narrow(3, start, count).copy_(new)


def pad_sources(sources: Sequence[Sequence[int]]) -> Tensor:
    """(B, A) int64; shorter rows are padded with their first entry, or with 0."""
    longest = max(map(len, sources))
    return torch.tensor([[*row, *[row[0] if row else 0] * (longest - len(row))] for row in sources])


_SPARE = 64  # positions beyond those of a call, so that buffers last for several calls


class RepeatedRows:
    """Buffers for batched verification.

    Positions that a row shares with its sequence are copied once: a call copies only those that
    were appended to the cache since the previous call.
    """

    def __init__(self) -> None:
        self._buffers: StackedCache | None = None  # of all rows
        self._rows: StackedCache | None = None  # of the last call
        self._sequences: list[int] = []  # of each row that was filled
        self._num_shared = 0  # positions that those rows share with their sequences

    def repeat(self, cache: StackedCache, sequences: list[int], num_free: int) -> StackedCache:
        """A cache of R rows over this object's buffers, valid for one call.

        Args:
            cache: of B sequences.
            sequences: the sequence that each of R rows repeats.
            num_free: positions that the call writes.
        """
        rows, filled = len(sequences), self._sequences
        buffers = self._reserve(cache, rows, cache.width + num_free)
        if buffers is self._buffers and sequences[: len(filled)] == filled[:rows]:
            _fill(buffers, cache, filled, 0, self._num_shared)
            sequences = [*sequences, *filled[rows:]]
            _fill(buffers, cache, sequences, len(filled), 0)
        else:
            _fill(buffers, cache, sequences, 0, 0)
            self._rows = None
        if self._rows is None or self._rows.keys.shape[1] != rows:
            keys, values = (part.narrow(1, 0, rows) for part in (buffers.keys, buffers.values))
            self._rows = cache.over(keys, values, sequences[:rows])
        self._rows.set_width(cache.width)
        self._buffers, self._sequences, self._num_shared = buffers, sequences, cache.width
        return self._rows

    def append_to(self, cache: StackedCache, rows: list[int], count: int) -> None:
        """Append to each sequence of the cache the first positions that the last call wrote.

        Args:
            cache: the cache that was repeated.
            rows: the row of each sequence.
            count: positions to append.
        """
        assert self._buffers is not None
        cache.append_rows(self._buffers, rows, count)

    def keep_positions(self, width: int) -> None:
        """Note that the sequences may change from cache position `width` on."""
        self._num_shared = min(self._num_shared, width)

    def forget(self) -> None:
        """Note that all sequences change: the next call copies them whole."""
        self._buffers, self._rows, self._sequences, self._num_shared = None, None, [], 0

    def _reserve(self, cache: StackedCache, rows: int, width: int) -> StackedCache:
        """The buffers, or new ones if they are too small."""
        if self._buffers is not None:
            _, max_rows, _, capacity, _ = self._buffers.keys.shape
            if rows <= max_rows and width <= capacity:
                return self._buffers
            rows = max(rows, max_rows)
        self.forget()  # frees the old buffers before new ones are allocated
        return cache.empty(rows, width + _SPARE)


def _fill(
    buffers: StackedCache, cache: StackedCache, sequences: list[int], row: int, start: int
) -> None:
    """Copy the cache's positions from `start` on to the rows from `row` on."""
    if start < cache.width and row < len(sequences):
        buffers.copy_positions(cache, sequences[row:], row, start, cache.width - start)


StateKey = tuple[int, int]  # layer, number of the state in that layer
States = dict[StateKey, tuple[Tensor | None, Tensor | None]]  # convolution and recurrent states
_PROMPT, _NEXT = (1, 2, 3, 5, 4, 6, 7, 3, 9, 8, 2, 5), (6, 3, 7)
_WITHOUT_STATE = ("moe", "mlp")  # layers whose state in transformers stays empty
_PROBING = threading.Lock()


def keeps_states(base: Any, cache: Cache) -> bool:
    """Whether any layer of a model keeps a recurrent or convolution state.

    Args:
        base: the model.
        cache: an empty one, as `build_cache` makes it.
    """
    kinds = getattr(base.config.get_text_config(decoder=True), "layer_types", None)
    return any(
        isinstance(layer, LinearAttentionLayer) and not (kinds and kinds[number] in _WITHOUT_STATE)
        for number, layer in enumerate(cache.layers)
    )


class Mixers:
    """The modules of a model that keep states.

    Args:
        states: the states that each of them updates.
        one_by_one: whether they must read one token at a time.
    """

    def __init__(
        self, states: dict[nn.Module, list[StateKey]], *, one_by_one: bool = False
    ) -> None:
        self.states, self.one_by_one = states, one_by_one
        self._lock = threading.Lock()  # held while forwards are replaced

    @contextmanager
    def split(self, cache: Any, certain: int, total: int) -> Iterator[States]:
        """Make the mixers read the tokens of one call in segments.

        Args:
            cache: what the call extends.
            certain: tokens of the first segment.
            total: tokens of the call.

        Yields:
            The states after the first segment, once the call has been made.
        """
        sizes = [1] * total if self.one_by_one else [certain, total - certain]
        snapshot: States = {}

        def save(keys: Sequence[StateKey]) -> None:
            snapshot.update({key: _copy(cache.layers[key[0]], key[1]) for key in keys})

        with self._lock, ExitStack() as stack:
            for module, keys in self.states.items():
                stack.enter_context(_read_in(module, sizes, certain, functools.partial(save, keys)))
            yield snapshot


@contextmanager
def _read_in(
    module: nn.Module, sizes: Sequence[int], certain: int, save: Callable[[], None]
) -> Iterator[None]:
    """Replace a module's forward with one that reads this thread's tokens in segments."""
    whole, total, owner = module.forward, sum(sizes), threading.get_ident()

    def forward(*arguments: Any, **named: Any) -> Any:
        if threading.get_ident() != owner:  # a plain call of another thread
            return whole(*arguments, **named)
        outputs, start = [], 0
        for size in sizes:
            if size == 0:
                continue
            end = start + size
            outputs.append(
                whole(
                    *(_cut(value, start, end, total) for value in arguments),
                    **{key: _cut(value, start, end, total) for key, value in named.items()},
                )
            )
            start = end
            if start == certain and start < total:
                save()
        return _join(outputs)

    before = module.__dict__.get("forward")
    module.forward = as_own(forward)
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _cut(value: Any, start: int, end: int, total: int) -> Any:
    """Tokens `start` .. `end` of a value that has `total` tokens in its second axis."""
    if isinstance(value, Tensor) and value.ndim >= 2 and value.shape[1] == total:
        return value[:, start:end]
    if isinstance(value, tuple):
        return tuple(_cut(part, start, end, total) for part in value)
    return value


def _join(outputs: list[Any]) -> Any:
    """The outputs of all segments as one."""
    if len(outputs) == 1:
        return outputs[0]
    if isinstance(outputs[0], Tensor):
        return torch.cat(outputs, dim=1)
    if isinstance(outputs[0], tuple):
        return tuple(_join(list(parts)) for parts in zip(*outputs, strict=True))
    return outputs[-1]


def _copy(layer: Any, number: int) -> tuple[Tensor | None, Tensor | None]:
    """A copy of a layer's state, which later tokens overwrite."""
    conv, recurrent = layer.conv_states[number], layer.recurrent_states[number]
    return None if conv is None else conv.clone(), None if recurrent is None else recurrent.clone()


class RecurrentCache:
    """The cache of one text over a target with states, as BatchCache is for other targets.

    Args:
        cache: what the target's calls read and extend; it covers the prompt.
        length: tokens of the prompt.

    Attributes:
        lengths: tokens of the text that are accepted and read.
        pending: the last of them, dropped with a draft; the next call reads them again.
    """

    capacity = None

    def __init__(self, cache: Cache, length: int) -> None:
        self.cache, self.lengths = cache, [length]
        self.pending: list[int] = []
        self._draft: list[int] = []
        self._snapshot: States = {}

    def __len__(self) -> int:
        """1: states of several texts cannot progress at different speeds."""
        return 1

    def source_of(self, number: int) -> None:
        """None: there is no encoder."""

    def read(self, target: Any, token_ids: list[int]) -> LMOutput:
        """One call of the target over the pending tokens, the exact token and a draft.

        Args:
            target: a CausalLMTarget.
            token_ids: the exact token, then the draft.

        Returns:
            Logits (1, T, V) and hidden states (1, T, D) at `token_ids`.
        """
        pending = len(self.pending)
        start = self.lengths[0] - pending
        ids = torch.tensor([[*self.pending, *token_ids]], device=target.device)
        positions = torch.arange(start, start + ids.shape[1], device=target.device)[None]
        output, self._snapshot = target.read_segments(ids, self.cache, positions, pending + 1)
        self._draft = token_ids[1:]
        features = None if output.features is None else output.features[:, pending:]
        return LMOutput(output.logits[:, pending:], output.hidden[:, pending:], features)

    def keep(self, count: int) -> None:
        """Keep the first `count` draft tokens of the last call, and its exact token."""
        self.lengths[0] += 1 + count
        if count == len(self._draft):
            self.pending = []
            return
        layers: list[Any] = self.cache.layers
        for (number, state), (conv, recurrent) in self._snapshot.items():
            layers[number].conv_states[state] = conv
            layers[number].recurrent_states[state] = recurrent
        for layer in layers:
            if isinstance(layer, DynamicLayer) and layer.keys is not None:
                _drop_positions(layer, len(self._draft))
        self.pending = self._draft[:count]


def _drop_positions(layer: Any, count: int) -> None:
    """Drop the last cache positions of a layer, which may keep states too."""
    if isinstance(layer, LinearAttentionLayer):
        DynamicLayer.crop(layer, -count)  # type: ignore[arg-type]
    else:
        layer.crop(-count)


def find_mixers(target: Any) -> Mixers:
    """The modules of a target that keep states, and how they read several tokens; probed once.

    Raises:
        ValueError: they cannot be read in segments, so drafts cannot be rolled back.
        MemoryError: no memory to test it; nothing is remembered.
    """
    with _PROBING:
        facts = facts_of(target.base)
        mixers: Mixers | None = facts.get("mixers")
        if mixers is None:
            action = f"test how {type(target.base).__name__} reads several tokens"
            advice = (
                "expected memory for a few tokens; free some, or load the model in a smaller dtype"
            )
            with describe_lack_of_memory(action, advice):
                mixers = facts["mixers"] = _find_mixers(target)
        return mixers


@torch.inference_mode()
def _find_mixers(target: Any) -> Mixers:
    name = type(target.base).__name__
    mixers = Mixers(_record_mixers(target), one_by_one=True)
    refusal = f"decode: {name} keeps a recurrent state that cannot be rolled back"
    advice = "use the model's own generate, or another target"
    if not mixers.states:
        raise ValueError(f"{refusal}: no module of it updates the states of its cache; {advice}")
    expected, cold = _read_singly(target, empty=False), _read_singly(target, empty=True)
    singly = _read_segments(target, mixers)
    mixers.one_by_one = False
    segments = _read_segments(target, mixers)
    if segments is not None and logits_match(target.base, segments, expected, cold):
        # Where rounding is coarse, a mixer that forgets its state may match as well.
        noise = _distance(singly, expected) + torch.finfo(target.dtype).eps * float(expected.norm())
        if singly is None or _distance(segments, expected) <= 4.0 * noise:
            return mixers
    mixers.one_by_one = True
    if singly is not None and logits_match(target.base, singly, expected, cold):
        return mixers
    raise ValueError(
        f"{refusal}: several tokens read in one call give other logits than one after another; "
        f"{advice}"
    )


def _read_segments(target: Any, mixers: Mixers) -> Tensor | None:
    """(T, V) logits of a few tokens read in one call; None where that fails."""
    cache = _read_prompt(target)
    try:
        with mixers.split(cache, 1, len(_NEXT)) as snapshot:
            logits = read_tokens(target, _NEXT, cache, len(_PROMPT))
    except Exception as error:  # of any kind
        if is_lack_of_memory(error):
            raise
        return None
    complete = len(snapshot) == sum(map(len, mixers.states.values()))
    return logits if complete else None


def _distance(actual: Tensor | None, expected: Tensor) -> float:
    return 0.0 if actual is None else float((actual - expected).norm())


def _read_singly(target: Any, *, empty: bool) -> Tensor:
    """(T, V) logits of a few tokens that are read one at a time, as in `generate`."""
    cache = _read_prompt(target)
    if empty:  # as if the mixers had read nothing: how much do their states matter?
        for layer in cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                _empty(layer)
    rows = [
        read_tokens(target, [token], cache, len(_PROMPT) + index)
        for index, token in enumerate(_NEXT)
    ]
    return torch.cat(rows)


def _empty(layer: Any) -> None:
    """Set the recurrent states to zero, or the convolution states where there are none."""
    recurrent = [state for state in layer.recurrent_states.values() if state is not None]
    for state in recurrent or layer.conv_states.values():
        if state is not None:
            state.zero_()


def _read_prompt(target: Any) -> Any:
    cache = target.new_cache()
    read_tokens(target, _PROMPT, cache, 0)
    return cache


def _record_mixers(target: Any) -> dict[nn.Module, list[StateKey]]:
    """The states that each module of a model updates."""
    running: list[nn.Module] = []
    states: dict[nn.Module, list[StateKey]] = {}
    cache: Any = target.new_cache()

    def watch(update: Any) -> Any:
        def updated(value: Tensor, layer_idx: int, state_idx: int = 0, **named: Any) -> Any:
            keys = states.setdefault(running[-1], [])
            if (layer_idx, state_idx) not in keys:
                keys.append((layer_idx, state_idx))
            return update(value, layer_idx, state_idx, **named)

        return updated

    def enter(module: nn.Module, _arguments: Any) -> None:
        running.append(module)

    def leave(*_: Any) -> None:
        running.pop()

    cache.update_conv_state = watch(cache.update_conv_state)
    cache.update_recurrent_state = watch(cache.update_recurrent_state)
    handles = []
    for module in target.base.modules():
        handles.append(module.register_forward_pre_hook(in_this_thread(enter)))
        handles.append(module.register_forward_hook(in_this_thread(leave)))
    try:
        read_tokens(target, _PROMPT, cache, 0)
    finally:
        for handle in handles:
            handle.remove()
    return states
