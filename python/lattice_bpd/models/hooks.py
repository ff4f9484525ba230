"""Hooks of modules that other threads may be calling too, and adapters that act by hooks.

Adapters of PEFT and of `adapters` that do not act on every token alike are refused: decoding calls
the model's `forward` on parts of a text. A prompt that the adapter adds, layers that are active
after certain tokens only, and experts that are chosen by the content of a call are not part of
that, and a comparison on one text need not show it. So they are recognized by the config.

Hooks of accelerate keep weights elsewhere between calls (CPU and disk offload), as tensors on the
meta device, which has no values. So devices are those that hooks name, and modules are called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Types of PEFT whose layers are functions of a token's own state and of fixed weights.
_TOKEN_WISE = frozenset({
    "LORA", "ADALORA", "LOHA", "LOKR", "OFT", "BOFT", "IA3", "VERA", "FOURIERFT", "HRA",
    "LN_TUNING", "VBLORA", "UNILORA", "TINYLORA", "BONE", "MISS", "RANDLORA", "ROAD", "HIRA",
    "TRAINABLE_TOKENS", "SHIRA", "C3A", "WAVEFT", "OSF", "DELORA", "GRALORA",
})  # fmt: skip
# Options of LoRA that choose tokens or experts.
_SELECTIVE = ("alora_invocation_tokens", "arrow_config")
# Hooks by which PEFT gives every row of a batch an adapter, or a part of the text, of its own.
_ROW_HOOKS = ("_adapter_names_pre_forward_hook", "_alora_offsets_pre_forward_hook")


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that runs in calls of the thread that made it; others' calls stay as they are.

    A server may decode with one model in several threads, and hooks belong to the model.

    Args:
        hook: a hook of `torch.nn.Module`, before or after `forward`.
    """
    owner = threading.get_ident()

    def of_owner(*arguments: Any) -> Any:
        return hook(*arguments) if threading.get_ident() == owner else None

    return as_own(of_owner)


def as_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a hook or a `forward` of this library, which is there during a call only."""
    function._lattice_bpd = True  # type: ignore[attr-defined]
    return function


def is_own(function: Any) -> bool:
    """Whether `as_own` marked a function."""
    return getattr(function, "_lattice_bpd", False) is True


def device_of(module: nn.Module) -> torch.device:
    """The device of a module's inputs: that of its weights, or where a hook executes it."""
    weight = next(module.parameters())
    if not weight.is_meta and "_hf_hook" not in vars(module):
        return weight.device
    for part in module.modules():
        hook = vars(part).get("_hf_hook")
        for one in getattr(hook, "hooks", (hook,)):
            device = getattr(one, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return weight.device


@contextmanager
def loaded(module: nn.Module) -> Iterator[None]:
    """Inside, the weights of a module that hooks offload have values, as in its call."""
    hook = vars(module).get("_hf_hook")
    if hook is None:
        yield
        return
    hook.pre_forward(module)
    try:
        yield
    finally:
        hook.post_forward(module, None)


def check_weights(base: nn.Module) -> None:
    """Raise ValueError if weights are on the meta device and no hook loads them."""
    is_hooked = any("_hf_hook" in vars(module) for module in base.modules())
    if not is_hooked and any(weight.is_meta for weight in base.parameters()):
        raise ValueError(
            "decode: the model's weights are on the meta device, which holds no values; expected a "
            "loaded model; load it with from_pretrained"
        )


def refuse_adapters(model: Any) -> None:
    """Raise ValueError for adapters that act on part of a text, or by its content.

    Args:
        model: a model of `transformers`, or a wrapper such as a PeftModel.
    """
    configs = getattr(model, "peft_config", None)
    for name, config in configs.items() if isinstance(configs, dict) else ():
        kind = getattr(config, "peft_type", None)
        kind = str(getattr(kind, "value", kind))
        selective = [option for option in _SELECTIVE if getattr(config, option, None)]
        if kind not in _TOKEN_WISE or selective or getattr(config, "is_prompt_learning", False):
            what = f"{kind} with {selective[0]}" if selective else kind
            raise ValueError(_message(model, f"adapter {name!r} ({what})"))
    setup = getattr(getattr(model, "adapters_config", None), "active_setup", None)
    if setup is not None:
        raise ValueError(_message(model, f"the adapters {setup}"))
    for module in model.modules() if configs else ():
        for hook in module._forward_pre_hooks.values():
            if getattr(getattr(hook, "func", hook), "__name__", "") in _ROW_HOOKS:
                raise ValueError(_message(model, "adapters by row (adapter_names)"))


def _message(model: Any, what: str) -> str:
    return (
        f"decode: {type(model).__name__} has {what}, which may act on part of a text or by its "
        "content, so calls on several tokens could differ from those of generate; expected "
        "adapters that act on every token alike, such as LoRA; use the model's own generate, or "
        "merge or delete the adapter"
    )
