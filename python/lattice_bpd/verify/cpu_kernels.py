"""The core's attention and linear layers on the CPU, for models of `transformers`.

A call of `generate` lends them to its models. Other threads, which see the same modules and
configs, compute as before, and the last call that ends leaves a model as it was.
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lattice_bpd import _core
from lattice_bpd.lattice.logits import use_torch_threads
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.linear import CALL, MOST_STATES, VECTOR, CpuLinear, LentLinear
from lattice_bpd.models.model_facts import OWN_ATTENTION, attention_of, facts_of

_MOST_QUERIES = 64  # of a text: beyond, torch's matrix products are as fast
_TYPES = (torch.float32, torch.bfloat16)
_LOCK = threading.Lock()  # of all changes
_asks_for_sdpa = re.compile(r"_attn_implementation\s*(==|!=|in|not in)\s.*[\"']sdpa").search


class _State(NamedTuple):
    """The class of a model's linear layers, and the attention implementation of its configs."""

    layer: type[nn.Linear]
    attention: str


_TORCH = _State(nn.Linear, "sdpa")
_LENT = _State(LentLinear, f"{OWN_ATTENTION}_lent")
_KEPT = _State(CpuLinear, OWN_ATTENTION)


class Kernels:
    """What the core's kernels may replace of a model; see `use_cpu_kernels`.

    Attributes:
        layers: linear layers.
        configs: of attention layers.
        calls: that they are lent to.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        modules = list(model.modules())
        is_usable = device_of(model).type == "cpu" and use_torch_threads()
        is_usable = is_usable and not any(map(_is_compiled, modules))
        kinds = [state.layer for state in (_TORCH, _LENT, _KEPT)]
        has_layers = is_usable and bool(MOST_STATES)
        self.layers = [one for one in modules if has_layers and type(one) in kinds]
        self.configs = _find_configs(model, modules) if is_usable else []
        self.calls: set[int] = set()
        if self.configs:
            AttentionInterface.register(_KEPT.attention, attend)
            AttentionInterface.register(_LENT.attention, _attend_if_lent)
            for name in (_KEPT.attention, _LENT.attention):
                AttentionMaskInterface.register(name, sdpa_mask)

    @property
    def is_lent(self) -> bool:
        """Whether calls use some that the model's other calls do not."""
        lent = any(config._attn_implementation == _LENT.attention for config in self.configs)
        return lent or any(type(layer) is _LENT.layer for layer in self.layers)

    def lend(self, call: int) -> None:
        """Let a call use them until `end`."""
        with _LOCK:
            self.calls.add(call)
            self._change(_TORCH, _LENT)

    def end(self, call: int) -> None:
        """End a call, also one that `lend` did not finish."""
        with _LOCK:
            self.calls.discard(call)
            if not self.calls:
                self._change(_LENT, _TORCH)

    def keep(self) -> None:
        """Let all calls use them from now on."""
        with _LOCK:
            self._change(_TORCH, _KEPT)
            self._change(_LENT, _KEPT)

    def _change(self, before: _State, after: _State) -> None:
        for layer in self.layers:
            if type(layer) is before.layer:
                object.__setattr__(layer, "__class__", after.layer)  # that of nn.Module is slow
        for config in self.configs:
            if config._attn_implementation == before.attention:
                # The property would change the configs in it too.
                config._attn_implementation_internal = after.attention


def _is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile made a module's call, which another class would compile again."""
    own = vars(module)
    return (
        own.get("_compiled_call_impl") is not None
        or hasattr(own.get("forward"), "_torchdynamo_orig_callable")
        or "_orig_mod" in own["_modules"]
    )


def _find_configs(model: PreTrainedModel, modules: Sequence[nn.Module]) -> list[Any]:
    """The configs that name the attention of a model's layers; none: it stays torch's."""
    parts: list[PreTrainedModel] = [one for one in modules if isinstance(one, PreTrainedModel)]
    if (
        model.dtype not in _TYPES
        or attention_of(model.config) != "sdpa"
        or not model._can_set_attn_implementation()
        or any(name.endswith("indexer") for name, _ in model.named_modules())
        or any(map(_depends_on_sdpa, {type(one).__module__ for one in modules}))
    ):
        return []
    configs = {id(config): config for one in modules if (config := vars(one).get("config"))}
    fixed = {id(part.config) for part in parts if not part._can_set_attn_implementation()}
    named = [config for config in configs.values() if attention_of(config) == "sdpa"]
    return [config for config in named if id(config) not in fixed]


@cache
def _depends_on_sdpa(module: str) -> bool:
    """Whether code of a Python module does something else if attention is called "sdpa"."""
    try:
        return _asks_for_sdpa(inspect.getsource(sys.modules[module])) is not None
    except (KeyError, OSError, TypeError):  # no source
        return False


@contextmanager
def kernels_in_call(model: Any, *, wanted: bool) -> Iterator[bool]:
    """Inside, calls of this thread use the core's kernels, if they are wanted and fit the model.

    Yields:
        Whether that changes the model's calls; no if they all have them.
    """
    outer = CALL.kernels
    kernels: dict[nn.Module, Kernels] | None = {} if wanted else None
    try:
        CALL.kernels = kernels
        yield lend_kernels(model)
    finally:
        CALL.kernels = outer
        for one in (kernels or {}).values():
            one.end(id(kernels))


def lend_kernels(model: Any) -> bool:
    """Let this thread's call use the core's kernels for a further model, such as one that drafts.

    Nothing happens outside of `kernels_in_call`, and where they are not wanted.

    Returns:
        Whether it uses some.
    """
    kernels = CALL.kernels
    if kernels is None or not isinstance(model, PreTrainedModel):
        return False
    if model not in kernels:
        kernels[model] = _kernels_of(model)
        kernels[model].lend(id(kernels))
    return bool(kernels[model].is_lent)


def _kernels_of(model: PreTrainedModel) -> Kernels:
    facts = facts_of(model)
    with _LOCK:
        if "kernels" not in facts:
            facts["kernels"] = Kernels(model)
    kernels: Kernels = facts["kernels"]
    return kernels


def use_cpu_kernels(model: PreTrainedModel) -> bool:
    """Lets all calls of a model on the CPU use the core's attention and linear layers.

    `generate`, `decode` and `CustomGenerate` do so themselves during a call, unless
    `cpu_kernels=False`. This is for other calls, such as `model.generate` and training data.

    Attention is that of decoding, a few tokens of each text over its KV cache, such as the steps of
    a batch or the tree of a draft: keys that a text does not see are not read, and key heads are
    not repeated for the query heads that share them. All other calls remain those of "sdpa".

    Linear layers are those of processors without AVX-512, where torch reads a matrix of 16-bit
    numbers once for each token, and a call with drafts costs as much as calls without; in float32
    of calls of up to 64 tokens. With AMX they are those of calls of up to 8 tokens in bfloat16 and
    16 in float16. `nn.Linear` modules become `CpuLinear`, with the same parameters;
    quantize a model before.

    Args:
        model: of `transformers`, loaded with attention "sdpa", the usual one.

    Returns:
        Whether attention is the core's from now on; linear layers may be where it is not. It is
        for a model on the CPU in float32 or bfloat16 that takes other attention implementations,
        whose code does nothing else for "sdpa" and has no indexer (which hides keys from those of
        torch only), where torch (2.10 or later) offers its threads. Of a model with parts that
        torch.compile compiled nothing changes. Results change by rounding alone.
    """
    kernels = _kernels_of(model)
    kernels.keep()
    return bool(kernels.configs)


def _attend_if_lent(*arguments: Any, **options: Any) -> tuple[Tensor, Any]:
    """`attend` in threads that decode with the core's kernels, "sdpa" in others."""
    return (sdpa_attention_forward if CALL.kernels is None else attend)(*arguments, **options)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer as `transformers` calls it: (B, T, heads, D) of (B, heads, T, D)."""
    if not _fits(query, key, value, attention_mask, options):
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return result
    rows, heads, queries, size = query.shape
    out = query.new_empty(rows, queries, heads, size)
    mask = None
    if attention_mask is not None:
        of_row, _, of_query, _ = attention_mask.stride()
        has_rows, _, has_queries, _ = (count > 1 for count in attention_mask.shape)
        mask = attention_mask.data_ptr(), of_row * has_rows, of_query * has_queries
    _core.attend(
        (rows, heads, key.shape[1], queries, key.shape[2], size),
        query.dtype == torch.bfloat16, _view(query), _view(key), _view(value),
        mask, attention_mask is not None and attention_mask.dtype == torch.bool,
        size**-0.5 if scaling is None else scaling, out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out, None


def _fits(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
) -> bool:
    """Whether the core computes this call."""
    rows, heads, queries, size = query.shape
    if mask is None:
        mask_fits = queries == 1
    else:
        mask_fits = (
            mask.dtype in (torch.bool, query.dtype)
            and mask.shape[1] == 1
            and mask.shape[0] in (1, rows)
            and mask.shape[2] in (1, queries)
            and mask.shape[3] == key.shape[2]
            and mask.stride(3) == 1
        )
    return (
        mask_fits
        and queries <= _MOST_QUERIES
        and query.device.type == "cpu"
        and query.dtype in _TYPES
        and key.dtype == value.dtype == query.dtype
        and key.shape == value.shape
        and key.shape[0] == rows
        and heads % key.shape[1] == 0
        and size % VECTOR == 0
        and query.stride(3) == key.stride(3) == value.stride(3) == 1
        and not any(options.get(name) for name in ("dropout", "softcap", "output_attentions"))
        and options.get("position_bias") is None
        and not (torch.is_grad_enabled() and (query.requires_grad or key.requires_grad))
        and not torch.compiler.is_compiling()
    )


def _view(tensor: Tensor) -> tuple[int, int, int, int]:
    of_row, of_head, of_token, _ = tensor.stride()
    return tensor.data_ptr(), of_row, of_head, of_token
