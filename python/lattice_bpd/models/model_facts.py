"""Facts about models that are measured once, and again when the model has changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.nn.modules import module as globals_of_modules

from lattice_bpd.models.hooks import is_own

OWN_ATTENTION = "lattice_bpd"  # begins the names of the core's attention implementations
_FACTS: WeakKeyDictionary[nn.Module, tuple[list[Any], dict[Any, Any]]] = WeakKeyDictionary()
_CALL = threading.local()  # facts of the models that this thread's call has described


@contextmanager
def described_once() -> Iterator[None]:
    """Inside, `facts_of` describes each model once: a call of `generate` changes none."""
    outer = getattr(_CALL, "facts", None)
    _CALL.facts = WeakKeyDictionary()
    try:
        yield
    finally:
        _CALL.facts = outer


def facts_of(model: nn.Module) -> dict[Any, Any]:
    """What has been measured of a model as it is now, to be read and extended.

    Empty after a change of modules, of a `forward` (of a class or of an object), of hooks, of
    weights, of active adapters, of the mode or of the config; the core's kernels are no change.
    Takes about a millisecond for 400 modules, so a decoding step keeps what it needs, and a call of
    `generate` is inside `described_once`.
    """
    return _look_up(model)[1]


def state_of(model: nn.Module) -> list[Any]:
    """Equal as long as the results of its calls are, by the rules of `facts_of`."""
    return _look_up(model)[0]


def _look_up(model: nn.Module) -> tuple[list[Any], dict[Any, Any]]:
    in_call: Any = getattr(_CALL, "facts", None)
    known: Any = None if in_call is None else in_call.get(model)
    if known is not None:
        return known  # type: ignore[no-any-return]
    state = _describe(model)
    known = _FACTS.get(model)
    if known is None or known[0] != state:
        known = _FACTS[model] = (state, {})
    if in_call is not None:
        in_call[model] = known
    return known  # type: ignore[no-any-return]


def _describe(model: nn.Module) -> list[Any]:
    """What the result of a call depends on, without references that keep the model alive."""
    config: Any = getattr(model, "config", None)
    state: list[Any] = [attention_of(config)]
    state.append(repr(config.to_dict()) if hasattr(config, "to_dict") else None)
    state += globals_of_modules._global_forward_hooks
    state += globals_of_modules._global_forward_pre_hooks
    for module in model.modules():
        own = vars(module)
        forward = own.get("forward")
        of_class = type(module).forward
        of_class = nn.Linear.forward if is_own(of_class) else of_class
        state += (id(module), module.training, of_class)
        if "_active_adapter" in own:
            state.append(str((own["_active_adapter"], own.get("_disable_adapters"))))
        if forward is not None and not is_own(forward):
            state.append(_identity(forward))
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            state += [key for key, hook in own[name].items() if not is_own(hook)]
        state += [version_of(one) for one in own["_parameters"].values() if one is not None]
    return state


def attention_of(config: Any) -> str:
    """The attention implementation of a config; "sdpa" where the core's kernels replace it."""
    name = str(getattr(config, "_attn_implementation", "eager"))
    return "sdpa" if name.startswith(OWN_ATTENTION) else name


def _identity(function: Any) -> Any:
    """Equal as long as it is the same function; bound methods are those of an object."""
    owner = getattr(function, "__self__", None)
    return ref(function) if owner is None else (id(owner), ref(function.__func__))


def version_of(weight: Tensor) -> tuple[int, int, int]:
    """Changes with the tensor, its memory and every assignment to its values.

    The same for all without values, such as offloaded ones, which are new tensors after each call.
    """
    if weight.is_meta:
        return 0, 0, 0
    written = 0 if weight.is_inference() else weight._version
    return id(weight), weight.data_ptr(), written
