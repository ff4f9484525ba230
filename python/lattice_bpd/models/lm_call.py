"""The call of a causal LM: its own forward, and the hidden states that give the logits.

The logits of a target are those of its own `forward`, always. Its *hidden states* are what
`forward` passes to the output embedding (`get_output_embeddings()`):

    ids -> decoder -> (transform, scale) -> hidden -> output embedding -> (scale, cap) -> logits

so they include every layer and scale before the output embedding (the transform of BERT-like heads,
the division of MiniCPM3), and exclude every scale or cap of the logits (Granite, Cohere, Gemma 2).
Heads are trained on these states and get them in every call.

Most LMs compute nothing between `base_model` and the output embedding and nothing after it. For
those `call_inner` gives the same tensors with less overhead, and can leave out logits that are not
needed. `inner_call_is_exact` decides whether it may be used, by comparing both on the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

_PROMPT, _NEXT = (1, 2, 3, 5, 4), (6, 3, 7)  # token ids that the comparison reads
_EXACT: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_TAKES_POSITIONS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
_PARAMETERS: WeakKeyDictionary[type, Mapping[str, inspect.Parameter]] = WeakKeyDictionary()


class LMOutput(NamedTuple):
    """One call of an LM.

    Attributes:
        logits: (B, T, V) float, those of the model's own `forward`.
        hidden: (B, T, D) float, the states that enter the output embedding; see the module.
    """

    logits: Tensor
    hidden: Tensor


def unwrap_model(model: Any) -> Any:
    """The `PreTrainedModel` in a wrapper, or what was given where there is no wrapper.

    Args:
        model: a `torch.compile`d model, a DataParallel, a PEFT model or any `nn.Module` that holds
            exactly one PreTrainedModel at its top.

    Raises:
        TypeError: the wrapper computes other logits than the model that it wraps.
    """
    inner = model
    while isinstance(inner, nn.Module) and not isinstance(inner, PreTrainedModel):
        children = list(inner.children())
        models = [child for child in children if isinstance(child, PreTrainedModel)]
        if len(models) == 1:
            inner = models[0]
        elif not models and len(children) == 1:
            inner = children[0]
        else:
            return model
    if inner is not model and isinstance(inner, PreTrainedModel):
        if not hasattr(model, "_orig_mod"):  # torch.compile computes what the model computes
            _check_wrapper(model, inner)
        return inner
    return model


@torch.inference_mode()
def _check_wrapper(wrapper: nn.Module, inner: PreTrainedModel) -> None:
    """Raise TypeError if the wrapper's logits are not those of the wrapped model."""
    ids = torch.tensor([_PROMPT], device=inner.device)
    try:
        found = wrapper(input_ids=ids)
    except Exception:  # it cannot be called like an LM, so it is only a container
        return
    logits = getattr(found, "logits", None)
    wanted = getattr(inner(input_ids=ids), "logits", None)
    if not (
        isinstance(logits, Tensor)
        and isinstance(wanted, Tensor)
        and logits.shape == wanted.shape
        and torch.allclose(logits.float(), wanted.float(), rtol=1e-3, atol=1e-5, equal_nan=True)
    ):
        raise TypeError(
            f"decode: model is a {type(wrapper).__name__} around a {type(inner).__name__}, and "
            "computes other logits than the model that it wraps; expected a causal LM of "
            "transformers; merge what the wrapper adds into the model, or give the inner model"
        )


def cache_argument(base: PreTrainedModel) -> str | None:
    """The name by which `forward` takes a cache; None where it takes none."""
    names = ("past_key_values", "cache_params")
    return next((name for name in names if name in _parameters(type(base))), None)


def takes_position_ids(base: PreTrainedModel) -> bool:
    """Whether `forward` can be told positions 0, 1, .. of a text, itself or the decoder below it.

    Not where a model numbers its tokens in another way and `generate` leaves that to it, as
    Kosmos-2.5 does.
    """
    known = _TAKES_POSITIONS.get(base)
    if known is None:
        known = _TAKES_POSITIONS[base] = _has_position_ids(base) and not _numbers_itself(base)
    return known


def _has_position_ids(base: PreTrainedModel) -> bool:
    parameters = _parameters(type(base))
    if "position_ids" in parameters:
        return True
    passes_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    inner = base.base_model
    return passes_on and inner is not base and "position_ids" in _parameters(type(inner))


@torch.inference_mode()
def _numbers_itself(base: PreTrainedModel) -> bool:
    """Whether `generate` tells a model no positions, and telling it makes a difference."""
    device = next(base.parameters()).device
    ids = torch.tensor([_PROMPT], device=device)
    steps = torch.arange(len(_PROMPT), device=device)[None]
    model: Any = base
    try:
        prepared = model.prepare_inputs_for_generation(
            ids, attention_mask=torch.ones_like(ids), position_ids=steps, use_cache=True,
            is_first_iteration=True,
        )  # fmt: skip
        if prepared.get("position_ids") is not None:
            return False
        own, told = (
            model(input_ids=ids, use_cache=False, **given).logits
            for given in ({}, {"position_ids": steps})
        )
    except Exception:  # of any kind; the first call of decoding reports it
        return False
    scale = float(own.abs().max())
    return not torch.allclose(own, told, rtol=0.0, atol=1e-2 * scale)


def _parameters(kind: type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a class's `forward`."""
    known = _PARAMETERS.get(kind)
    if known is None:
        known = _PARAMETERS[kind] = inspect.signature(kind.forward).parameters
    return known


def call_forward(base: Any, embedding: nn.Module, inputs: dict[str, Any]) -> LMOutput:
    """The LM's own forward pass; the hidden states are read where they enter its output embedding.

    Args:
        base: LM of `transformers`.
        embedding: its output embedding.
        inputs: of `forward`, by name.

    Raises:
        TypeError: it does not call its output embedding once for all positions.
    """
    seen: list[Tensor] = []

    def remember(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(arguments[0] if arguments else next(iter(named.values())))

    handle = embedding.register_forward_pre_hook(remember, with_kwargs=True)
    try:
        logits: Tensor = base(**inputs).logits
    finally:
        handle.remove()
    if not seen or seen[-1].shape[:-1] != logits.shape[:-1]:
        raise TypeError(
            f"decode: {type(base).__name__} does not call its output embedding, so the hidden "
            "state that heads start from is not known; expected a causal LM that computes its "
            "logits by its output embedding"
        )
    return LMOutput(logits, seen[-1])


def call_inner(base: Any, embedding: nn.Module, inputs: dict[str, Any]) -> LMOutput:
    """`base_model` and the output embedding; only where `inner_call_is_exact`."""
    hidden: Tensor = base.base_model(**inputs).last_hidden_state
    return LMOutput(embedding(hidden), hidden)


def inner_call_is_exact(base: PreTrainedModel, embedding: nn.Module) -> bool:
    """Whether `call_inner` gives the very numbers of `call_forward`, found out once for each model.

    Both read three tokens over a cache that the model's own forward has filled with a prompt; all
    logits and hidden states must be equal bit for bit.
    """
    known = _EXACT.get(base)
    if known is None:
        modes = [(module, module.training) for module in base.modules()]
        base.eval()  # type: ignore[no-untyped-call]  # dropout differs from call to call
        try:
            known = _EXACT[base] = base.base_model is not base and _compare(base, embedding)
        finally:
            for module, training in modes:
                module.training = training
    return known


@torch.inference_mode()
def _compare(base: PreTrainedModel, embedding: nn.Module) -> bool:
    try:
        wanted, found = (_probe(base, embedding, call) for call in (call_forward, call_inner))
    except Exception:  # of any kind: then the model's own forward is called
        return False
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


def _probe(base: PreTrainedModel, embedding: Any, call: Any) -> LMOutput:
    """What a call gives for several positions over the cache of a prompt."""
    name = cache_argument(base)
    cache = DynamicCache(config=base.config)
    inputs: dict[str, Any] = (
        {"use_cache": True} if name is None else {"use_cache": True, name: cache}
    )
    size, positions = len(embedding.weight), takes_position_ids(base)
    start = 0
    for read, ids in ((call_forward, _PROMPT), (call, _NEXT)):
        inputs["input_ids"] = torch.tensor([ids], device=embedding.weight.device) % size
        if positions:
            steps = torch.arange(start, start + len(ids), device=embedding.weight.device)
            inputs["position_ids"] = steps[None]
        output: LMOutput = read(base, embedding, inputs)
        start += len(ids)
    return output
