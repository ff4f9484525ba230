"""Targets with recurrent or convolution states: read in segments, rolled back to a snapshot.

A state cannot drop tokens as a KV cache can. So each verifying call is read in two segments by the
layers that keep states (their *mixers*), and all at once by all others:

    certain   accepted tokens that are not in the cache yet, and the exact token   -> snapshot
    draft     the draft tokens                                                     -> verdict

If all draft tokens are accepted, the states stay. Otherwise the snapshot is restored, attention
layers drop the draft, and the accepted tokens are read once more, as the first segment of the next
call. So no call is spent on rolling back, and no more than one draft is ever read again.

Some mixers (Mamba, Jamba) start from an empty state when they read several tokens; they read one
token at a time, as in `generate`. Which ones is found out by comparing numbers, once for each
model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from lattice_bpd.models.lm_call import LMOutput, call_forward
from lattice_bpd.verify.rounding import reads_alike

StateKey = tuple[int, int]  # layer, number of the state in that layer
States = dict[StateKey, tuple[Tensor | None, Tensor | None]]  # convolution and recurrent states
_PROMPT, _NEXT = (1, 2, 3, 5, 4, 6, 7, 3, 9, 8, 2, 5), (6, 3, 7)
_WITHOUT_STATE = ("moe", "mlp")  # layers that transformers gives a state that stays empty
_KNOWN: WeakKeyDictionary[nn.Module, Mixers] = WeakKeyDictionary()


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
        states: which states each updates.
        one_by_one: whether they must read one token at a time.
    """

    def __init__(
        self, states: dict[nn.Module, list[StateKey]], *, one_by_one: bool = False
    ) -> None:
        self.states, self.one_by_one = states, one_by_one

    @contextmanager
    def split(self, cache: Any, certain: int, total: int) -> Iterator[States]:
        """Have the mixers read the tokens of one call in segments.

        Args:
            cache: what the call extends.
            certain: tokens of the first segment.
            total: tokens of the call.

        Yields:
            The states that follow the first segment, once the call has been made.
        """
        sizes = [1] * total if self.one_by_one else [certain, total - certain]
        saved: States = {}

        def save(keys: Sequence[StateKey]) -> None:
            saved.update({key: _copy(cache.layers[key[0]], key[1]) for key in keys})

        with ExitStack() as stack:
            for module, keys in self.states.items():
                done = functools.partial(save, keys)
                stack.enter_context(_read_in(module, sizes, certain, done))
            yield saved


@contextmanager
def _read_in(
    module: nn.Module, sizes: Sequence[int], certain: int, save: Callable[[], None]
) -> Iterator[None]:
    """Replace a module's forward by one that reads its tokens in segments."""
    whole, total = module.forward, sum(sizes)

    def forward(*arguments: Any, **named: Any) -> Any:
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
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def _cut(value: Any, start: int, end: int, total: int) -> Any:
    """Tokens `start` .. `end` of what holds `total` tokens in its second axis."""
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
    """A state of a layer, which later tokens overwrite."""
    conv, recurrent = layer.conv_states[number], layer.recurrent_states[number]
    return None if conv is None else conv.clone(), None if recurrent is None else recurrent.clone()


class RecurrentCache:
    """The cache of one text over a target with states; used where BatchCache is for others.

    Args:
        cache: what the target's calls read and extend; it covers the prompt.
        length: tokens of the prompt.

    Attributes:
        lengths: tokens of the text that are accepted and read.
        pending: the last of them, which the cache does not cover: the next call reads them again.
    """

    capacity = None

    def __init__(self, cache: Cache, length: int) -> None:
        self.cache, self.lengths = cache, [length]
        self.pending: list[int] = []
        self._draft: list[int] = []
        self._saved: States = {}

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
        output, self._saved = target.read_segments(ids, self.cache, positions, pending + 1)
        self._draft = token_ids[1:]
        return LMOutput(output.logits[:, pending:], output.hidden[:, pending:])

    def keep(self, count: int) -> None:
        """Keep the first `count` draft tokens of the last call, and its exact token."""
        self.lengths[0] += 1 + count
        if count == len(self._draft):
            self.pending = []
            return
        layers: list[Any] = self.cache.layers
        for (number, state), (conv, recurrent) in self._saved.items():
            layers[number].conv_states[state] = conv
            layers[number].recurrent_states[state] = recurrent
        for layer in layers:
            if isinstance(layer, DynamicLayer) and layer.keys is not None:
                _drop_slots(layer, len(self._draft))
        self.pending = self._draft[:count]


def _drop_slots(layer: Any, count: int) -> None:
    """Drop the last cache positions of a layer that may keep states besides."""
    if isinstance(layer, LinearAttentionLayer):
        DynamicLayer.crop(layer, -count)  # type: ignore[arg-type]
    else:
        layer.crop(-count)


def find_mixers(target: Any) -> Mixers:
    """The modules of a target that keep states, and how they read several tokens.

    Raises:
        ValueError: they cannot be read in segments, so that drafts cannot be taken back.
    """
    known = _KNOWN.get(target.base)
    if known is None:
        known = _KNOWN[target.base] = _find_mixers(target)
    return known


@torch.inference_mode()
def _find_mixers(target: Any) -> Mixers:
    name = type(target.base).__name__
    mixers = Mixers(_record_mixers(target), one_by_one=True)
    refusal = f"decode: {name} keeps a recurrent state that cannot be rolled back"
    advice = "use the model's own generate, or another target"
    if not mixers.states:
        raise ValueError(f"{refusal}: no module of it updates the states of its cache; {advice}")
    wanted, cold = _read_singly(target, empty=False), _read_singly(target, empty=True)
    singly = _read_segments(target, mixers)
    mixers.one_by_one = False
    segments = _read_segments(target, mixers)
    if segments is not None and reads_alike(target.base, segments, wanted, cold):
        # Where rounding is coarse, a mixer that forgets its state may look alike as well.
        noise = _distance(singly, wanted) + torch.finfo(target.dtype).eps * float(wanted.norm())
        if singly is None or _distance(segments, wanted) <= 4.0 * noise:
            return mixers
    mixers.one_by_one = True
    if singly is not None and reads_alike(target.base, singly, wanted, cold):
        return mixers
    raise ValueError(
        f"{refusal}: several tokens read in one call give other logits than one after another; "
        f"{advice}"
    )


def _read_segments(target: Any, mixers: Mixers) -> Tensor | None:
    """(T, V) logits of a few tokens read in one call; None where that does not work."""
    ids = _ids(target, _NEXT)
    cache = _read_prompt(target)
    try:
        with mixers.split(cache, 1, len(_NEXT)) as saved:
            found = _call(target, ids, cache, len(_PROMPT))
    except Exception:  # of any kind
        return None
    complete = len(saved) == sum(map(len, mixers.states.values()))
    return found if complete else None


def _distance(found: Tensor | None, wanted: Tensor) -> float:
    return 0.0 if found is None else float((found - wanted).norm())


def _read_singly(target: Any, *, empty: bool) -> Tensor:
    """(T, V) logits of a few tokens that are read one after another, as in `generate`."""
    cache = _read_prompt(target)
    if empty:  # as if the mixers had read nothing: how much do their states matter?
        for layer in cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                _empty(layer)
    rows = [
        _call(target, _ids(target, [token]), cache, len(_PROMPT) + place)
        for place, token in enumerate(_NEXT)
    ]
    return torch.cat(rows)


def _empty(layer: Any) -> None:
    """Set the recurrent states to zero, or where there are none the convolution's."""
    recurrent = [state for state in layer.recurrent_states.values() if state is not None]
    for state in recurrent or layer.conv_states.values():
        if state is not None:
            state.zero_()


def _read_prompt(target: Any) -> Any:
    cache = target.new_cache()
    _call(target, _ids(target, _PROMPT), cache, 0)
    return cache


def _ids(target: Any, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([list(tokens)], device=target.device)
    return ids % int(target.vocab_size)


def _call(target: Any, ids: Tensor, cache: Any, start: int) -> Tensor:
    positions = torch.arange(start, start + ids.shape[1], device=target.device)[None]
    output = call_forward(target.base, target.embedding, target.inputs(ids, cache, positions))
    logits: Tensor = output.logits[0]
    return logits.float()


def _record_mixers(target: Any) -> dict[nn.Module, list[StateKey]]:
    """Which states each module of a model updates."""
    running: list[nn.Module] = []
    found: dict[nn.Module, list[StateKey]] = {}
    cache: Any = target.new_cache()

    def watch(update: Any) -> Any:
        def updated(states: Tensor, layer_idx: int, state_idx: int = 0, **named: Any) -> Any:
            keys = found.setdefault(running[-1], [])
            if (layer_idx, state_idx) not in keys:
                keys.append((layer_idx, state_idx))
            return update(states, layer_idx, state_idx, **named)

        return updated

    cache.update_conv_state = watch(cache.update_conv_state)
    cache.update_recurrent_state = watch(cache.update_recurrent_state)
    handles = []
    for module in target.base.modules():
        handles.append(module.register_forward_pre_hook(lambda one, _: running.append(one)))
        handles.append(module.register_forward_hook(lambda *_: running.pop() and None))
    try:
        _call(target, _ids(target, _PROMPT), cache, 0)
    finally:
        for handle in handles:
            handle.remove()
    return found
