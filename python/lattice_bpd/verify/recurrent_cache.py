"""The cache of targets whose layers keep recurrent or convolution states.

Such a state cannot drop tokens as a KV cache can. So the modules that keep states (*mixers*) read
a verifying call in two segments, all other layers at once:

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
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from lattice_bpd.models.forward import LMOutput
from lattice_bpd.models.hooks import as_own, in_this_thread
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.memory import describe_lack_of_memory, is_lack_of_memory
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.rounding import read_tokens, texts_match

StateKey = tuple[int, int]  # layer, number of the state in that layer
States = dict[StateKey, tuple[Tensor | None, Tensor | None]]  # convolution and recurrent states
_TOKENS, _PROMPT = (1, 2, 3, 5, 4, 6, 7, 3, 9, 8, 2, 5, 6, 3, 7), 12  # ids; the first are a prompt
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

    Attributes:
        one_by_one: whether they must read one token at a time.
    """

    def __init__(self, states: dict[nn.Module, list[StateKey]]) -> None:
        self.states, self.one_by_one = states, False
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
    """The cache of one text over a target with states, as Rows are for other targets.

    Args:
        cache: what the target's calls read and extend; it covers the prompt.
        length: tokens of the prompt.

    Attributes:
        lengths: tokens of the text that are accepted and read.
        pending: the last of them, dropped with a draft; the next call reads them again.
    """

    recorded = None  # no call over states is replayed

    def __init__(self, cache: Cache, length: int) -> None:
        self.cache, self.lengths = cache, [length]
        self.pending: list[int] = []
        self._draft: list[int] = []
        self._snapshot: States = {}

    def source_of(self, number: int) -> None:
        """None: there is no encoder."""

    def lay_out(
        self, trees: Sequence[PrefixTree], device: torch.device
    ) -> tuple[Tensor, Tensor, npt.NDArray[np.int64]]:
        """The next call: the pending tokens, the exact token and the only draft.

        Returns:
            Ids and positions, both (1, P + T) int64, and the indices (T,) of the tree's nodes.

        Raises:
            ValueError: several texts or drafts.
        """
        if len(trees) != 1 or trees[0].max_depth + 1 != len(trees[0]):
            raise ValueError(
                "verify: the target keeps a recurrent state, which cannot branch; expected one "
                "text with one draft (PrefixTree.best_chain)"
            )
        token_ids, count = trees[0].token_ids, len(self.pending)
        self._draft = token_ids[1:]
        ids = torch.tensor([[*self.pending, *token_ids]], device=device)
        start, size = self.lengths[0] - count, ids.shape[1]
        return ids, torch.arange(start, start + size, device=device)[None], np.arange(count, size)

    def read(self, target: Any, input_ids: Tensor, position_ids: Tensor | None) -> LMOutput:
        """One call of the target over what `lay_out` returned."""
        certain = len(self.pending) + 1
        output: LMOutput
        output, self._snapshot = target.read_segments(input_ids, self.cache, position_ids, certain)
        return output

    def keep_rows(self, rows: Sequence[int], counts: Sequence[int]) -> None:  # noqa: ARG002
        """After a call keep its exact token and the first draft tokens, `counts[0]` in all."""
        (count,) = counts
        self.lengths[0] += count
        if count == 1 + len(self._draft):
            self.pending = []
            return
        layers: list[Any] = self.cache.layers
        for (number, state), (conv, recurrent) in self._snapshot.items():
            layers[number].conv_states[state] = conv
            layers[number].recurrent_states[state] = recurrent
        for layer in layers:
            if isinstance(layer, DynamicLayer) and layer.keys is not None:
                _drop_positions(layer, len(self._draft))
        self.pending = self._draft[: count - 1]


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
    mixers = Mixers(_record_mixers(target))
    refusal = f"decode: {name} keeps a recurrent state that cannot be rolled back"
    advice = "use the model's own generate, or another target"
    if not mixers.states:
        raise ValueError(f"{refusal}: no module of it updates the states of its cache; {advice}")

    def read(one_by_one: bool, tokens: list[int]) -> tuple[Tensor, Tensor, Tensor] | None:
        expected, cold = (_read_singly(target, tokens, empty=empty) for empty in (False, True))
        mixers.one_by_one = True
        actual = singly = _read_segments(target, mixers, tokens)
        if not one_by_one:
            mixers.one_by_one = False
            actual = _read_segments(target, mixers, tokens)
        if actual is not None and singly is not None:
            # Where rounding is coarse, a mixer that forgets its state may match as well.
            noise = float((singly - expected).norm())
            noise += torch.finfo(target.dtype).eps * float(expected.norm())
            if float((actual - expected).norm()) > 4.0 * noise:
                return None
        return None if actual is None else (actual, expected, cold)

    for one_by_one in (False, True):
        if texts_match(target, _TOKENS, functools.partial(read, one_by_one)):
            mixers.one_by_one = one_by_one
            return mixers
    raise ValueError(
        f"{refusal}: several tokens read in one call give other logits than one after another; "
        f"{advice}"
    )


def _read_segments(target: Any, mixers: Mixers, tokens: list[int]) -> Tensor | None:
    """(T, V) logits of the tokens after the prompt, read in one call; None where that fails."""
    cache = _read_prompt(target, tokens)
    try:
        with mixers.split(cache, 1, len(tokens) - _PROMPT) as snapshot:
            logits = read_tokens(target, tokens[_PROMPT:], cache, _PROMPT)
    except Exception as error:  # of any kind
        if is_lack_of_memory(error):
            raise
        return None
    complete = len(snapshot) == sum(map(len, mixers.states.values()))
    return logits if complete else None


def _read_singly(target: Any, tokens: list[int], *, empty: bool) -> Tensor:
    """(T, V) logits of the tokens after the prompt, read one at a time, as in `generate`."""
    cache = _read_prompt(target, tokens)
    if empty:  # as if the mixers had read nothing: how much do their states matter?
        for layer in cache.layers:
            if isinstance(layer, LinearAttentionLayer):
                _empty(layer)
    rows = [
        read_tokens(target, [tokens[index]], cache, index) for index in range(_PROMPT, len(tokens))
    ]
    return torch.cat(rows)


def _empty(layer: Any) -> None:
    """Set the recurrent states to zero, or the convolution states where there are none."""
    recurrent = [state for state in layer.recurrent_states.values() if state is not None]
    for state in recurrent or layer.conv_states.values():
        if state is not None:
            state.zero_()


def _read_prompt(target: Any, tokens: list[int]) -> Any:
    cache = target.new_cache()
    read_tokens(target, tokens[:_PROMPT], cache, 0)
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
        ids = [token % int(target.vocab_size) for token in _TOKENS[:_PROMPT]]
        read_tokens(target, ids, cache, 0)
    finally:
        for handle in handles:
            handle.remove()
    return states
