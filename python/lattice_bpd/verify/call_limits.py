"""Limits of one call of a target, beyond which its tokens change each other's logits.

Rotary frequencies may depend on the largest position of a call: LongRoPE has two sets of them, and
dynamic NTK scaling another one at every position beyond the limit. Plain `generate` reads one token
at a time, so a draft must not reach beyond such a *boundary*: no token at or after it is read in
one call with a token before it. The keys of earlier tokens keep their frequencies in the cache.

Mixture-of-experts layers with a capacity drop the tokens of a call that exceed it. With no more
tokens in a call than the capacity none is dropped, as in calls of single tokens.

Recognized by the modules' attributes and by the config. At any other boundary that a config names,
a probe compares a call across it with calls of single tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.memory import is_lack_of_memory
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.rounding import read_parts, read_tokens, texts_match

_DROPPING = ("drop_tokens", "moe_drop_tokens", "moe_token_dropping", "drop_tks")
_NAMES = ("original_max_position_embeddings", "max_position_embeddings")


class Windows(NamedTuple):
    """Attention windows, from a decoder's config.

    Attributes:
        sliding: tokens in the window of a sliding layer, the current one included; None without
            one. Masks can express it, so trees and padded batches work.
        mixed: whether other layers have full attention.
        by_cache_position: window or chunk of layers that count cache positions instead of
            tokens: padding, holes and siblings of a tree change what it contains; None without one.
        selected: tokens that a layer of sparse attention selects by score. Scores often tie, and a
            call of another shape then selects others; None without one.
    """

    sliding: int | None
    mixed: bool
    by_cache_position: int | None
    selected: int | None = None


def find_windows(config: Any) -> Windows:
    """The windows that a decoder's config names."""
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    by_cache_position = None
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and (not kinds or "chunked_attention" in kinds):
        by_cache_position = int(chunk)
    if "local" in (getattr(config, "attention_layers", None) or ()):  # GPT-Neo
        by_cache_position = int(config.window_size)
    selected = getattr(config, "keep_window_size", None)  # Doge
    if "indexed_attention" in kinds:
        names = ("index_topk", "indexer_budget")  # DeepSeek-V3.2 and relatives, Qwen4-exp
        selected = next((int(vars(config)[name]) for name in names if name in vars(config)), 0)
    window = getattr(config, "sliding_window", None)
    if window is None or (kinds and not any("sliding" in kind for kind in kinds)):
        return Windows(None, False, by_cache_position, selected)
    mixed = any("sliding" not in kind for kind in kinds)
    return Windows(int(window), mixed, by_cache_position, selected)


def find_unmasked_window(base: Any) -> int | None:
    """The window of layers that a config names and the masks of the model's class do not have."""
    config = base.config.get_text_config(decoder=True)
    windows, chunk = find_windows(config), getattr(config, "attention_chunk_size", None)
    is_chunked = chunk is not None and windows.by_cache_position == chunk
    module = inspect.getmodule(type(base.get_decoder())) if is_chunked or windows.mixed else None
    if module is None or not module.__name__.startswith("transformers.models."):
        return None
    is_masked = ("chunked" if is_chunked else "sliding") in inspect.getsource(module)
    return None if is_masked else windows.by_cache_position or windows.sliding


@dataclass(frozen=True)
class CallLimits:
    """What one call of a target may contain.

    Attributes:
        boundaries: positions, in ascending order, at which the frequencies of a call change.
        varies_from: position from which they differ at every position, so that nothing can be
            drafted; None: nowhere. It is one of the boundaries.
        capacity: tokens that a call can have without exceeding the capacity of an expert; None:
            experts have none.
    """

    boundaries: tuple[int, ...] = ()
    varies_from: int | None = None
    capacity: int | None = None

    def max_draft_length(self, position: int) -> int | None:
        """The longest draft after the exact token at `position`; None without a limit."""
        longest = None if self.capacity is None else self.capacity - 1
        if not self.boundaries:
            return longest
        if self.varies_from is not None and position >= self.varies_from:
            return 0
        for boundary in self.boundaries:
            if boundary > position:
                before = boundary - 1 - position
                return before if longest is None else min(before, longest)
        return longest

    def allows_parts(self, length: int) -> bool:
        """Whether a prompt of `length` tokens is read in parts as in one call."""
        return self.capacity is None and all(length <= boundary for boundary in self.boundaries)

    def cut(self, tree: PrefixTree) -> PrefixTree:
        """The tree, or its best chain if a call on all its paths could exceed the capacity."""
        if self.capacity is None:
            return tree
        size, depth, num_paths = _core.tree_extents([tree])
        return tree if max(size, num_paths * (1 + depth)) <= self.capacity else tree.best_chain()

    def refuses_batch(self, name: str, shortest: int, length: int) -> str | None:
        """Why texts cannot share calls, or None.

        Args:
            name: of the model.
            shortest: tokens of the shortest prompt.
            length: tokens of the longest text at its end.
        """
        if self.capacity is not None:
            return (
                f"{name} has experts with a capacity of {self.capacity} tokens of a call, so texts "
                "of one call could displace each other's tokens"
            )
        for boundary in self.boundaries:
            before, beyond = length - 1 <= boundary, shortest > boundary
            if not before and (not beyond or self.varies_from is not None):
                return (
                    f"{name} has rotary frequencies that change at position {boundary} for all "
                    f"texts of a call, and texts have from {shortest} to {length} tokens"
                )
        return None


def find_call_limits(base: Any, decoder: Any) -> CallLimits:
    """The limits that a model's modules and config name.

    Args:
        base: the model.
        decoder: the module whose positions count, such as the model itself.
    """
    config = base.config.get_text_config(decoder=True)
    boundaries, varying, capacities = set(), set(), _capacities(vars(config))
    for module in decoder.modules():
        capacities |= _capacities(vars(module))
    kinds = [kind for module in decoder.modules() for kind in _kinds_of(module)]
    if not kinds:  # rotary embeddings of its own
        ropes = _rope_parameters(config)
        kinds = [(str(rope.get("rope_type", rope.get("type", ""))), rope) for rope in ropes]
    for kind, parameters in kinds:
        original = parameters.get(_NAMES[0]) or getattr(config, _NAMES[0], None)
        if "dynamic" in kind:
            varying.add(int(config.max_position_embeddings))
        elif original is not None and (kind in ("longrope", "su") or "long_mscale" in parameters):
            boundaries.add(int(original))
    return CallLimits(
        tuple(sorted(boundaries | varying)),
        min(varying, default=None),
        min(capacities, default=None),
    )


def probe_boundaries(target: Any, limits: CallLimits, length: int) -> CallLimits:
    """Limits with the other boundaries that the config names before `length` tokens.

    Args:
        target: a CausalLMTarget.
        limits: of `find_call_limits`.
        length: tokens of the longest text at its end, drafts included.
    """
    if not target.takes_positions or target.is_recurrent:
        return limits
    for boundary in sorted(named_boundaries(target.base) - set(limits.boundaries)):
        if 4 <= boundary < length and not _reads_equally(target, boundary - 3):
            known = tuple(sorted({*limits.boundaries, boundary}))
            varies = limits.varies_from
            if varies is None and not _reads_equally(target, boundary + 1):
                varies = boundary
            limits = replace(limits, boundaries=known, varies_from=varies)
    return limits


def named_boundaries(base: Any) -> set[int]:
    """The positions at which a decoder's frequencies may change, from its config."""
    config = base.config.get_text_config(decoder=True)
    sources = [vars(config), *_rope_parameters(config)]
    return {int(source[name]) for source in sources for name in _NAMES if source.get(name)}


def _reads_equally(target: Any, start: int) -> bool:
    """Whether tokens after position `start` + 1 are read in one call as one after another."""
    facts, key = facts_of(target.base), ("reads equally", start)
    if key not in facts:
        facts[key] = _compare_calls(target, start)
    return bool(facts[key])


@torch.inference_mode()
def _compare_calls(target: Any, start: int) -> bool:
    def read(tokens: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        prompt, following = tokens[:2], tokens[2:]
        together = read_parts(target, prompt, [following], start)
        singly = read_parts(target, prompt, [[token] for token in following], start)
        return together, singly, read_tokens(target, following, target.new_cache(), start + 2)

    try:
        return texts_match(target, (1, 2, 6, 3), read)
    except Exception as error:  # positions beyond the last one
        if is_lack_of_memory(error):
            raise
        return True


def _capacities(attributes: Mapping[str, Any]) -> set[int]:
    """The tokens of a call that attributes of a module or config allow without dropping any.

    1 for a share of the tokens of a call, which plain `generate` applies to calls of one token.
    """
    named = {
        name: value
        for name, value in attributes.items()
        if "capacity" in name and "train" not in name
        and isinstance(value, (int, float)) and not isinstance(value, bool)
    }  # fmt: skip
    if any(attributes.get(name) is False for name in _DROPPING):
        return set()
    shares = [value for name, value in named.items() if "fraction" in name and value > 0]
    if shares:  # they replace numbers of tokens (NLLB-MoE)
        return {1} if min(shares) < 1 else set()
    return {value if isinstance(value, int) and value > 0 else 1 for value in named.values()}


def _kinds_of(module: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rope type of a rotary module, or one for each kind of layer, with its parameters."""
    kinds = vars(module).get("rope_type")
    if kinds is None:
        return
    parameters = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    if isinstance(kinds, str):
        yield kinds, parameters
    elif isinstance(kinds, dict):
        for layer, kind in kinds.items():
            yield str(kind), parameters.get(layer) or {}


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """The rope parameters of a config: one dict, or one for each kind of layer."""
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None)
        if isinstance(rope, dict):
            found += [rope, *(part for part in rope.values() if isinstance(part, dict))]
    return found
