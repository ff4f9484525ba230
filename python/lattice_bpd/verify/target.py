"""Causal LMs as targets.

`lattice_bpd.models.lm_call` defines a target's logits and hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from lattice_bpd.extensions import TARGETS, load_extension
from lattice_bpd.models.forward import LMOutput, call_forward, call_inner, has_own_call
from lattice_bpd.models.lm_call import (
    cache_argument,
    check_causal,
    find_max_positions,
    find_sizes,
    inner_call_is_exact,
    takes_position_ids,
    unwrap_model,
)
from lattice_bpd.models.model_facts import facts_of
from lattice_bpd.verify.cache import build_cache, is_empty
from lattice_bpd.verify.call_limits import (
    find_call_limits,
    find_unmasked_window,
    find_windows,
    probe_boundaries,
)
from lattice_bpd.verify.memory import describe_lack_of_memory, try_once
from lattice_bpd.verify.probes import find_parts_refusal, find_tree_refusal
from lattice_bpd.verify.recurrent_cache import Mixers, States, find_mixers, keeps_states


class CausalLMTarget:
    """Any decoder-only LM of `transformers` as a target.

    Args:
        model: the model, or a wrapper such as `torch.compile(model)`; see
            `lattice_bpd.models.lm_call.unwrap_model`.

    Attributes:
        base: the model itself.
        embedding: its output embedding, which maps hidden states to logits, also a quantized or
            wrapped one; None: unknown, then there are no hidden states.
        vocab_size: V.
        max_positions: the longest text, in tokens; None without a limit, or if rotary frequencies
            adapt to longer ones.
        limits: of one call.
        dtype: of the attention mask.
        sliding_window: tokens in the window of sliding layers, the current one included; None
            without one.
        takes_positions: whether the model takes position ids.
        feature_layers: decoder layers whose outputs every call returns as features.
        decoder_prompt: what outputs of a target with an encoder begin with: its prompts are sources
            for `encode`, and `read_prompts` takes what that returns. None without an encoder.
        is_recurrent: whether layers keep a recurrent or convolution state; see
            `lattice_bpd.verify.cache`.
        is_recorded: whether calls are replayed, with the widths of `graphs`.
        shift: added to every position: the difference between a prompt's next position and its
            number of tokens (M-RoPE, PaliGemma).

    Raises:
        TypeError: not a decoder-only causal LM with an output embedding.
        ValueError: a model whose state cannot be rolled back, or with adapters that do not act on
            every token alike.
    """

    decoder_prompt: list[int] | None = None
    stop_token_ids: frozenset[int] = frozenset()  # given by the caller
    is_recorded = False
    shift = 0

    def __init__(self, model: PreTrainedModel) -> None:
        base = unwrap_model(model)
        self.base = check_causal(base)
        self._facts: Any = None
        self._cache_name = str(cache_argument(base))
        self.feature_layers: tuple[int, ...] = ()
        self.check_again()
        self.is_recurrent = keeps_states(base, self.new_cache())

    def check_again(self) -> None:
        """Measure the model again if it has changed since the last text."""
        base: Any = self.base
        known, self._facts = self._facts, facts_of(base)
        if known is self._facts:
            return
        self.embedding: Any = base.get_output_embeddings()
        self.vocab_size, self.device, self.dtype = find_sizes(base, self.embedding)
        self.source_vocab_size = self.vocab_size
        config = base.config.get_text_config(decoder=True)
        self.limits = limits = find_call_limits(base, base)
        self.max_positions = find_max_positions(config) if limits.varies_from is None else None
        self.windows = find_windows(config)
        self.sliding_window = self.windows.sliding
        self.takes_positions = takes_position_ids(base)
        self._refusals: dict[str, str | None] = {}  # of tree attention, once it is known
        self._inner_is_exact: bool | None = None  # of this text, once it is known
        self._mixers: Mixers | None = None  # likewise

    def __call__(
        self,
        input_ids: Tensor,
        cache: Any,
        *,
        attention_mask: Tensor | None = None,
        windowed_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> LMOutput:
        """Run the model over (B, T) new tokens after the P of the cache, and append them to it.

        attention_mask is (B, P + T) int64, or (B, 1, T, P + T) float that is added to the attention
        scores; windowed_mask is the same for layers with a sliding window.
        """
        if self.is_recurrent and input_ids.shape[1] > 1:
            return self.read_segments(input_ids, cache, position_ids, 0)[0]
        inputs = self._inputs(input_ids, cache, position_ids)
        if attention_mask is not None:
            mask: Any = attention_mask
            if windowed_mask is not None and attention_mask.ndim > 2:
                both = {"full_attention": attention_mask, "sliding_attention": windowed_mask}
                mask = both if self.windows.mixed else windowed_mask
            inputs["attention_mask"] = mask
        return self._call(inputs)

    def _inputs(self, input_ids: Tensor, cache: Any, position_ids: Tensor | None) -> dict[str, Any]:
        """The arguments of `forward`, as `build_inputs` makes them."""
        inputs = {"input_ids": input_ids, "use_cache": True, self._cache_name: cache}
        if self.takes_positions:
            if position_ids is None:
                start, (rows, size) = cache.get_seq_length(), input_ids.shape
                steps = torch.arange(start, start + size, device=input_ids.device)
                position_ids = steps.expand(rows, -1)
            inputs["position_ids"] = position_ids + self.shift if self.shift else position_ids
        return inputs

    def _call(self, inputs: dict[str, Any]) -> LMOutput:
        if self._inner_is_exact is None:
            self._inner_is_exact = inner_call_is_exact(self.base, self.embedding)
        if self._inner_is_exact and not has_own_call(self.base):
            return call_inner(self.base, self.embedding, inputs, self.feature_layers)
        return self._call_forward(inputs)

    def _call_forward(self, inputs: dict[str, Any]) -> LMOutput:
        layers = self.feature_layers
        return call_forward(self.base, self.embedding, inputs, layers, needs_hidden=False)

    def find_limits(self, length: int) -> None:
        """Find the limits of calls in texts of up to `length` tokens, drafts included.

        Raises:
            ValueError: `generate` forgets tokens of such texts that the model's calls see.
        """
        window = find_unmasked_window(self.base)
        if window is not None and length > window:
            raise ValueError(
                f"decode: the config has windows of {window} tokens, the masks of "
                f"{type(self.base).__name__} do not; expected texts of up to {window} tokens with "
                "drafts, or a config without attention_chunk_size and layer_types"
            )
        self.limits = probe_boundaries(self, self.limits, length)

    def allows_parts(self, length: int) -> bool:
        """Whether a text of `length` tokens is read in parts as in one call."""
        return find_parts_refusal(self) is None and self.limits.allows_parts(length)

    def reset_frequencies(self) -> None:
        """Return dynamic rotary frequencies to those of a model that has not read a long text.

        They keep the longest length since the last call within the limit, so the output of a long
        prompt would depend on earlier texts. A call of one token resets them.
        """
        if self.limits.varies_from is not None:
            ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            with torch.inference_mode():
                self.base(input_ids=ids, use_cache=False)

    def provide_features(self, layers: Sequence[int]) -> None:
        """Make every call return the outputs of these decoder layers; see `LMOutput.features`.

        Args:
            layers: indices from 0; -1: the input embeddings.

        Raises:
            ValueError: the target has no such layers.
        """
        count = self.base.config.get_text_config(decoder=True).num_hidden_layers
        if not all(-1 <= layer < count for layer in layers):
            raise ValueError(
                f"decode: the heads read layers {tuple(layers)} of {type(self.base).__name__}, "
                f"which has {count}; expected -1..{count - 1}; use heads that were trained on this "
                "target"
            )
        self.feature_layers = tuple(layers)

    def read_prompts(
        self,
        input_ids: Tensor,
        cache: Cache | None = None,
        *,
        ends: Sequence[int] | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[LMOutput, Cache]:
        """The first call, always the model's own forward.

        Args:
            input_ids: (B, T) int64; padding follows the tokens.
            cache: the one to fill; None: `new_cache()`.
            ends: index of the last token of each row; None: T - 1.
            position_ids: (B, T) int64; None: those after the cache.

        Returns:
            Output of the last tokens, logits (B, 1, V) and hidden (B, 1, D), with the features of
            all T; and the cache, which keeps all tokens, even if the model has a sliding window.

        Raises:
            ValueError: the model did not fill the cache.
            MemoryError: the prompts did not fit.
        """
        count, size = input_ids.shape
        cache = self.new_cache() if cache is None else cache
        inputs = self._inputs(input_ids, cache, position_ids)
        last, kept = list(ends or [size - 1] * count), list(range(size))
        supports = getattr(self.base, "_supports_logits_to_keep", None)
        if supports is not None and supports():
            kept = sorted(set(last))
            inputs["logits_to_keep"] = 1 if kept == [size - 1] else torch.tensor(kept, device="cpu")
        action = f"read {count} prompts of {size} tokens"
        with describe_lack_of_memory(action, "decode fewer at once, or shorter ones"):
            output = self._call_forward(inputs)
        if all(map(is_empty, cache.layers)):
            raise ValueError(
                f"decode: {type(self.base).__name__} left its KV cache empty, so each call would "
                "read the whole text again; expected a decoder; set is_decoder=True and "
                "use_cache=True in its config where it has them"
            )
        if len(kept) > 1:
            at = [kept.index(end) for end in last]
            logits, hidden = (part[range(count), at][:, None] for part in output[:2])
        else:
            logits, hidden = output.logits, output.hidden
        return LMOutput(logits, hidden, output.features), cache

    def read_segments(
        self, input_ids: Tensor, cache: Any, position_ids: Tensor | None, certain: int
    ) -> tuple[LMOutput, States]:
        """One call of a recurrent target over tokens of one text, in two segments.

        Args:
            input_ids: (1, T) int64.
            cache: what the call extends.
            position_ids: (1, T) int64.
            certain: tokens of the first segment.

        Returns:
            The output, and the states after the first segment; no states if that segment is empty
            or the whole call.
        """
        inputs = self._inputs(input_ids, cache, position_ids)
        if input_ids.shape[1] == 1:
            return self._call(inputs), {}
        if self._mixers is None:
            self._mixers = find_mixers(self)
        with self._mixers.split(cache, certain, input_ids.shape[1]) as snapshot:
            return self._call(inputs), snapshot

    def refuses_tree(self) -> str | None:
        """Why tree attention (four-dimensional masks) is not possible, or None; probed once."""
        if "tree" in self._refusals:
            return self._refusals["tree"]
        return try_once(self._refusals, "tree", lambda: find_tree_refusal(self))

    def new_cache(self) -> Cache:
        """A cache that covers no token, built with the model's config.

        Raises:
            ValueError: see `lattice_bpd.verify.cache.build_cache`.
        """
        return build_cache(self.base)


def build_target(model: Any) -> Any:
    """The target of a model; a target is returned as it is.

    Raises:
        ImportError: an encoder-decoder, whose target is in a distribution that is not installed.
        TypeError, ValueError: see the target's class.
    """
    if callable(getattr(model, "refuses_tree", None)):
        return model
    if not isinstance(model, PreTrainedModel) or not model.config.is_encoder_decoder:
        return CausalLMTarget(model)
    return load_extension(TARGETS, "encoder-decoder")(model)
