"""What is known of a causal LM before it is called: its arguments, sizes and cache.

`lattice_bpd.models.forward` calls it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel

from lattice_bpd.models.forward import LMOutput, call_forward, call_inner, has_own_call
from lattice_bpd.models.hooks import check_weights, device_of, refuse_adapters
from lattice_bpd.models.model_facts import facts_of

_PROMPT, _NEXT = (1, 2, 3, 5, 4), (6, 3, 7)  # token ids for comparisons
CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""A cache among the arguments of `forward`: with transformers 5.24 and later, and before, where
recurrent models had a name of their own."""


def unwrap_model(model: Any) -> Any:
    """The `PreTrainedModel` inside a wrapper; other objects are returned as they are.

    Args:
        model: a `torch.compile`d model, a DataParallel, a PEFT model or any `nn.Module` that holds
            exactly one PreTrainedModel at its top.

    Raises:
        TypeError: the wrapper computes other logits than the wrapped model.
        ValueError: it has adapters that do not act on every token alike.
    """
    inner = model
    while isinstance(inner, nn.Module) and not isinstance(inner, PreTrainedModel):
        refuse_adapters(inner)
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
    ids = torch.tensor([_PROMPT], device=device_of(inner))
    try:
        output = wrapper(input_ids=ids)
    except Exception:  # it cannot be called like an LM, so it is only a container
        return
    logits = getattr(output, "logits", None)
    expected = getattr(inner(input_ids=ids), "logits", None)
    if not (
        isinstance(logits, Tensor)
        and isinstance(expected, Tensor)
        and logits.shape == expected.shape
        and torch.allclose(logits.float(), expected.float(), rtol=1e-3, atol=1e-5, equal_nan=True)
    ):
        raise TypeError(
            f"decode: model is a {type(wrapper).__name__} around a {type(inner).__name__}, and "
            "computes other logits than the model that it wraps; expected a causal LM of "
            "transformers; merge what the wrapper adds into the model, or give the inner model"
        )


def find_max_positions(config: Any) -> int | None:
    """The maximum text length of a decoder, in tokens; None if its config has no limit."""
    limit = getattr(config, "max_position_embeddings", None)
    return None if limit is None or int(limit) < 1 else int(limit)


def cache_argument(module: nn.Module) -> str | None:
    """The name of `forward`'s cache argument; None if it has none."""
    parameters = _parameters(type(module))
    inner = getattr(module, "base_model", module)
    if _passes_on(parameters) and inner is not module:
        parameters = _parameters(type(inner))
    if _passes_on(parameters):  # which arguments is not known: that of transformers itself
        parameters = _signature(GenerationMixin.prepare_inputs_for_generation)
    return next((name for name in CACHE_NAMES if name in parameters), None)


def pass_cache(module: nn.Module, cache: Any) -> dict[str, Any]:
    """A cache as an argument of `forward`, which must have one."""
    name = cache_argument(module)
    if name is None:
        raise TypeError(
            f"{type(module).__name__} takes no cache; expected one of {', '.join(CACHE_NAMES)}"
        )
    return {name: cache}


def build_inputs(
    base: PreTrainedModel,
    input_ids: Tensor,
    cache: Any = None,
    position_ids: Tensor | None = None,
    *,
    use_cache: bool = True,
    takes_positions: bool | None = None,
) -> dict[str, Any]:
    """The arguments of `forward` for new tokens after those of a cache.

    Args:
        base: the model.
        input_ids: (B, T) int64.
        cache: keys and values of the earlier tokens; None: there are none.
        position_ids: (B, T) int64, where the model takes positions; None: those after the cache.
        use_cache: whether the model keeps what it computes.
        takes_positions: the result of `takes_position_ids`; None: it is called.
    """
    inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": use_cache}
    name = cache_argument(base)
    if cache is not None and name is not None:
        inputs[name] = cache
    if takes_position_ids(base) if takes_positions is None else takes_positions:
        # Passed as `generate` does: the model's own numbering may differ (RoBERTa).
        if position_ids is None:
            start = 0 if cache is None else int(cache.get_seq_length())
            steps = torch.arange(start, start + input_ids.shape[1], device=input_ids.device)
            position_ids = steps.expand(len(input_ids), -1)
        inputs["position_ids"] = position_ids
    return inputs


def takes_position_ids(base: PreTrainedModel) -> bool:
    """Whether `forward`, or the decoder that it calls, takes position ids 0, 1, .. of a text.

    False if `generate` passes none and the model numbers its tokens in another way (Kosmos-2.5).
    """
    facts = facts_of(base)
    if "takes_positions" not in facts:
        facts["takes_positions"] = _has_position_ids(base) and not _numbers_itself(base)
    return bool(facts["takes_positions"])


def _has_position_ids(base: PreTrainedModel) -> bool:
    parameters = _parameters(type(base))
    if "position_ids" in parameters:
        return True
    passes_on = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    inner = base.base_model
    return passes_on and inner is not base and "position_ids" in _parameters(type(inner))


@torch.inference_mode()
def _numbers_itself(base: PreTrainedModel) -> bool:
    """Whether `generate` passes a model no positions, and passing them changes its logits."""
    device = device_of(base)
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
        without, given = (
            model(input_ids=ids, use_cache=False, **positions).logits
            for positions in ({}, {"position_ids": steps})
        )
    except Exception:  # of any kind; the first call of decoding reports it
        return False
    scale = float(without.abs().max())
    return not torch.allclose(without, given, rtol=0.0, atol=1e-2 * scale)


@torch.inference_mode()
def counts_padding(base: PreTrainedModel) -> bool:
    """Whether padding on the left changes a model's logits, though the attention mask hides it."""
    facts, model = facts_of(base), cast(Any, base)
    if "counts_padding" not in facts:
        ids = torch.tensor([_PROMPT], device=device_of(base))
        padded, mask = ids.repeat(1, 2), torch.ones_like(ids).repeat(1, 2)
        mask[:, : ids.shape[1]] = 0
        try:
            plain = model(input_ids=ids, use_cache=False).logits[:, -1]
            hidden = model(input_ids=padded, attention_mask=mask, use_cache=False).logits[:, -1]
            scale = float(plain.abs().max())
            facts["counts_padding"] = not torch.allclose(plain, hidden, rtol=0.0, atol=1e-2 * scale)
        except Exception:  # of any kind; the first call of decoding reports it
            facts["counts_padding"] = True
    return bool(facts["counts_padding"])


def _parameters(kind: type[nn.Module]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a class's `forward`.

    One with `**kwargs` passes them on, so those of the class below are among them.
    """
    own = _signature(kind.forward)
    if any(one.kind is one.VAR_KEYWORD for one in own.values()):
        classes = iter(base for base in kind.__mro__ if "forward" in vars(base))
        next(classes, None)  # of `own`
        below = next(classes, nn.Module)
        if below is not nn.Module:
            return {**_parameters(below), **own}
    return own


def _passes_on(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether a method has the parameters `self, *args, **kwargs` only."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(one.kind in variable for one in [*parameters.values()][1:])


@functools.lru_cache(maxsize=256)
def _signature(forward: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(forward).parameters


def plain_weight(base: nn.Module, embedding: Any) -> Tensor | None:
    """An output embedding's (V, D) weight of floats; None for others, and where hooks move it."""
    weight: Any = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return None if weight.is_meta or "_hf_hook" in vars(base) else weight


def find_sizes(base: Any, embedding: Any) -> tuple[int, torch.device, torch.dtype]:
    """The number of token ids, and the device and dtype of the hidden states.

    A weight of floats names them. Quantized and wrapped output embeddings have none, or one of
    another shape, and hooks of accelerate move weights and states, so the model is called with one
    token, once.

    Raises:
        TypeError: it returns no logits.
    """
    weight = plain_weight(base, embedding)
    if weight is not None:
        return int(weight.shape[0]), weight.device, base.dtype
    sizes = facts_of(base).setdefault("sizes", {})
    if embedding not in sizes:
        sizes[embedding] = _read_sizes(base, embedding)
    found: tuple[int, torch.device, torch.dtype] = sizes[embedding]
    return found


@torch.inference_mode()
def _read_sizes(base: Any, embedding: Any) -> tuple[int, torch.device, torch.dtype]:
    """See `find_sizes`."""
    ids = torch.zeros(1, 1, dtype=torch.long, device=device_of(base))
    try:
        output = call_forward(base, embedding, {"input_ids": ids}, needs_hidden=False)
    except AttributeError as error:
        raise TypeError(
            f"decode: {type(base).__name__} returns no logits of a token ({error}); expected a "
            "causal LM; load it with AutoModelForCausalLM"
        ) from error
    states = output.hidden
    return int(output.logits.shape[-1]), states.device, states.dtype


def inner_call_is_exact(base: PreTrainedModel, embedding: nn.Module) -> bool:
    """Whether `call_inner` returns the numbers of `call_forward`; compared once per model.

    Both read three tokens after a prompt that the model's own forward has read; all logits and
    hidden states must be equal bit for bit. That says nothing of a `forward` that depends on the
    content, so it must be one of transformers, without hooks (see `has_own_call`).
    """
    if has_own_call(base) or not type(base).forward.__module__.startswith("transformers."):
        return False
    facts = facts_of(base)
    if ("inner", embedding) not in facts:
        facts["inner", embedding] = _is_exact(base, embedding)
    return bool(facts["inner", embedding])


def _is_exact(base: PreTrainedModel, embedding: nn.Module) -> bool:
    modes = [(module, module.training) for module in base.modules()]
    base.eval()  # type: ignore[no-untyped-call]  # dropout differs from call to call
    try:
        return base.base_model is not base and _compare(base, embedding)
    finally:
        for module, training in modes:
            module.training = training


@torch.inference_mode()
def _compare(base: PreTrainedModel, embedding: nn.Module) -> bool:
    try:
        expected, actual = (_probe(base, embedding, call) for call in (call_forward, call_inner))
    except Exception:  # of any kind: then the model's own forward is called
        return False
    pairs = zip(expected[:2], actual[:2], strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def _probe(base: PreTrainedModel, embedding: Any, call: Any) -> LMOutput:
    """The output of a call on several tokens after a cached prompt."""
    weight, cache, start = embedding.weight, DynamicCache(config=base.config), 0
    for read, tokens in ((call_forward, _PROMPT), (call, _NEXT)):
        ids = torch.tensor([tokens], device=weight.device) % len(weight)
        steps = torch.arange(start, start + len(tokens), device=weight.device)[None]
        output: LMOutput = read(base, embedding, build_inputs(base, ids, cache, steps))
        start += len(tokens)
    return output


def check_causal(base: Any) -> PreTrainedModel:
    """The model, which must be a decoder-only causal LM with a KV cache.

    Raises:
        TypeError: another model, or one without an output embedding.
        ValueError: it takes no cache, has weights without values, or adapters that do not act on
            every token alike.
    """
    name = type(base).__name__
    if not isinstance(base, PreTrainedModel):
        raise TypeError(
            f"decode: model is a {name}; expected a causal LM of transformers; load one with "
            "AutoModelForCausalLM.from_pretrained"
        )
    if getattr(base.config, "is_encoder_decoder", False):
        raise TypeError(
            f"decode: {name} is an encoder-decoder; expected a decoder-only causal LM; load it "
            "with AutoModelForCausalLM"
        )
    refuse_adapters(base)
    check_weights(base)
    try:
        embedding = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    except Exception:  # some models without one raise an AttributeError
        embedding = None
    if embedding is None and not base.can_generate():
        raise TypeError(
            f"decode: {name} has no output embedding, so it gives no logits of tokens; expected a "
            "causal LM; load it with AutoModelForCausalLM"
        )
    if cache_argument(base) is None:
        raise ValueError(
            f"decode: {name} takes no KV cache (an argument {' or '.join(CACHE_NAMES)}), so each "
            "call would read the whole text again; use the model's own generate, or another target"
        )
    return base
