"""Calls of causal LMs that return logits and the hidden states they come from.

The logits of a target are always those of its own `forward`. Its *hidden states* are what
`forward` passes to the output embedding (`get_output_embeddings()`):

    ids -> decoder -> (transform, scale) -> hidden -> output embedding -> (scale, cap) -> logits

so they include every layer and scale before the output embedding (the transform of BERT-like heads,
the division of MiniCPM3), and exclude every scale or cap of the logits (Granite, Cohere, Gemma 2).
Heads are trained on these states and receive them in every call.

Most LMs compute nothing between `base_model` and the output embedding, and nothing after it. For
those, `call_inner` returns the same tensors with less overhead; `inner_call_is_exact` of
`lattice_bpd.models.lm_call` decides whether it may be used, by comparing both on the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as globals_of_modules

from lattice_bpd.models.hooks import in_this_thread


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


def has_own_call(model: nn.Module) -> bool:
    """Whether calling a model runs more than the `forward` of its class: hooks, or another one."""
    own = vars(model)
    return bool(
        "forward" in own
        or own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or globals_of_modules._global_forward_hooks
        or globals_of_modules._global_forward_pre_hooks
    )


def call_inner(
    base: Any, embedding: nn.Module, inputs: dict[str, Any], layers: Sequence[int] = ()
) -> LMOutput:
    """`base_model` and then the output embedding; only if `inner_call_is_exact`."""
    output = base.base_model(**(_with_layers(inputs, layers) if layers else inputs))
    hidden: Tensor = output.last_hidden_state
    features = read_features(base, output, layers) if layers else None
    return LMOutput(embedding(hidden), hidden, features)


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
    return LMOutput(logits, seen[-1].to(logits.device), read_features(base, output, layers))


def check_hidden(base: Any, hidden: Tensor) -> None:
    """Raise TypeError if the hidden states of a call are not known."""
    if hidden.shape[-1] == 0:
        raise TypeError(
            f"decode: {type(base).__name__} does not call its output embedding, so the hidden "
            "state that heads start from is not known; expected a causal LM that computes its "
            "logits by its output embedding; decode without heads, such as by 'mixture'"
        )


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
