"""Calls of causal LMs that return logits and the hidden states they come from.

The logits of a target are always those of its own `forward`. Its *hidden states* are what
`forward` passes to the output embedding (`get_output_embeddings()`):

    ids -> decoder -> (transform, scale) -> hidden -> output embedding -> (scale, cap) -> logits

so they include every layer and scale before the output embedding (the transform of BERT-like heads,
the division of MiniCPM3), and exclude every scale or cap of the logits (Granite, Cohere, Gemma 2).
Heads are trained on these states and receive them in every call.

Most LMs compute nothing between `base_model` and the output embedding, and nothing after it. For
those, `call_inner` returns the same tensors with less overhead. `inner_call_is_exact` decides
whether it may be used, by comparing both on the model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel

from lattice_bpd.models.hooks import in_this_thread, refuse_adapters
from lattice_bpd.models.model_facts import facts_of, has_own_call

_PROMPT, _NEXT = (1, 2, 3, 5, 4), (6, 3, 7)  # token ids for comparisons


class LMOutput(NamedTuple):
    """One call of an LM.

    Attributes:
        logits: (B, T, V) float, those of the model's own `forward`.
        hidden: (B, T, D) float, the states that enter the output embedding; see the module. D is 0
            where they are not known.
        features: (B, T, n D) float, concatenated outputs of n decoder layers, if requested.
    """

    logits: Tensor
    hidden: Tensor
    features: Tensor | None = None


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
    ids = torch.tensor([_PROMPT], device=inner.device)
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


CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""A cache among the arguments of `forward`: with transformers 5.24 and later, and before, where
recurrent models had a name of their own."""


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


def read_cache(output: Any) -> Any:
    """The cache that a call of a model returned."""
    return next(getattr(output, name) for name in CACHE_NAMES if hasattr(output, name))


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
        without, given = (
            model(input_ids=ids, use_cache=False, **positions).logits
            for positions in ({}, {"position_ids": steps})
        )
    except Exception:  # of any kind; the first call of decoding reports it
        return False
    scale = float(without.abs().max())
    return not torch.allclose(without, given, rtol=0.0, atol=1e-2 * scale)


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


def call_forward(
    base: Any,
    embedding: nn.Module | None,
    inputs: dict[str, Any],
    layers: Sequence[int] = (),
    *,
    needs_hidden: bool = True,
) -> LMOutput:
    """The LM's own forward pass; hidden states are captured at the input of the output embedding.

    Args:
        base: LM of `transformers`.
        embedding: its output embedding; None: unknown.
        inputs: of `forward`, by name.
        layers: indices of decoder layers whose outputs are returned as features; -1: the input
            embeddings.
        needs_hidden: whether to raise if the hidden states are not known.

    Raises:
        TypeError: it does not call its output embedding once for all positions.
        ValueError: it does not return the outputs of these layers.
    """
    seen: list[Tensor] = []

    def remember(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        seen.append(arguments[0] if arguments else next(iter(named.values())))

    with ExitStack() as stack:
        if embedding is not None:
            hook = in_this_thread(remember)
            handle = embedding.register_forward_pre_hook(hook, with_kwargs=True)
            stack.callback(handle.remove)
        output = base(**_with_layers(inputs, layers))
    logits: Tensor = output.logits
    if not seen or seen[-1].shape[:-1] != logits.shape[:-1]:
        seen = [logits.new_zeros((*logits.shape[:-1], 0))]
        if needs_hidden:
            check_hidden(base, seen[-1])
    return LMOutput(logits, seen[-1], read_features(base, output, layers))


def check_hidden(base: Any, hidden: Tensor) -> None:
    """Raise TypeError if the hidden states of a call are not known."""
    if hidden.shape[-1] == 0:
        raise TypeError(
            f"decode: {type(base).__name__} does not call its output embedding, so the hidden "
            "state that heads start from is not known; expected a causal LM that computes its "
            "logits by its output embedding; decode without heads, such as by 'mixture'"
        )


@torch.inference_mode()
def find_sizes(base: Any, embedding: Any) -> tuple[int, torch.device, torch.dtype]:
    """The number of token ids, and the device and dtype of the hidden states.

    A weight of floats names them. Quantized and wrapped output embeddings have none, or one of
    another shape, so the model is called with one token.

    Raises:
        TypeError: it returns no logits.
    """
    weight = getattr(embedding, "weight", None)
    if isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point():
        return int(weight.shape[0]), weight.device, base.dtype
    ids = torch.zeros(1, 1, dtype=torch.long, device=base.device)
    try:
        output = call_forward(base, embedding, {"input_ids": ids}, needs_hidden=False)
    except AttributeError as error:
        raise TypeError(
            f"decode: {type(base).__name__} returns no logits of a token ({error}); expected a "
            "causal LM; load it with AutoModelForCausalLM"
        ) from error
    states = output.hidden
    return int(output.logits.shape[-1]), states.device, states.dtype


def call_inner(
    base: Any, embedding: nn.Module, inputs: dict[str, Any], layers: Sequence[int] = ()
) -> LMOutput:
    """`base_model` and then the output embedding; only if `inner_call_is_exact`."""
    output = base.base_model(**_with_layers(inputs, layers))
    hidden: Tensor = output.last_hidden_state
    return LMOutput(embedding(hidden), hidden, read_features(base, output, layers))


def _with_layers(inputs: dict[str, Any], layers: Sequence[int]) -> dict[str, Any]:
    return {**inputs, "output_hidden_states": True} if layers else inputs


def read_features(base: Any, output: Any, layers: Sequence[int]) -> Tensor | None:
    """The outputs of decoder layers as one tensor (B, T, n D); None for no layers.

    Args:
        base: the model, for messages.
        output: of its `forward` with output_hidden_states=True.
        layers: indices of layers; -1: the input embeddings.

    Raises:
        ValueError: it does not return the outputs of these layers.
    """
    if not layers:
        return None
    states = getattr(output, "hidden_states", None)
    if states is None or max(layers) + 1 >= len(states) or min(layers) < -1:
        returned = "no hidden states" if states is None else f"those of {len(states) - 1} layers"
        raise ValueError(
            f"decode: the heads read layers {tuple(layers)}, and {type(base).__name__} returns "
            f"{returned}; expected indices from 0; use heads that were trained on this target"
        )
    return torch.cat([states[layer + 1] for layer in layers], dim=-1)


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
