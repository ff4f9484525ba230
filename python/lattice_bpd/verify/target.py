"""The target as verification sees it: tokens and a cache in, logits and hidden states out."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from lattice_bpd.models import BlockwiseLM
from lattice_bpd.verify.memory import is_lack_of_memory
from lattice_bpd.verify.tree_probe import find_tree_refusal

Mask = Tensor | dict[str, Tensor]


class TargetOutput(NamedTuple):
    """One call of the target.

    Attributes:
        logits: (B, T, V) float.
        hidden: (B, T, D) float, the states that enter the output embedding.
    """

    logits: Tensor
    hidden: Tensor


class TargetModel(Protocol):
    """What verification needs of a model. `CausalLMTarget` makes one of any causal LM.

    Attributes:
        device: where inputs go.
        dtype: of the attention mask.
        sliding_window: how many tokens a sliding layer sees, itself among them; None without one.
    """

    device: torch.device
    dtype: torch.dtype
    sliding_window: int | None

    def __call__(
        self,
        input_ids: Tensor,
        cache: Any,
        *,
        attention_mask: Tensor | None = None,
        windowed_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> TargetOutput:
        """Run the target over (B, T) new tokens behind those of the cache, which grows by them.

        attention_mask is (B, slots + T) int64 or (B, 1, T, slots + T) float to be added to the
        attention scores; windowed_mask is the same for layers with a sliding window.
        """
        ...

    def refuses_tree(self) -> str | None:
        """Why the target cannot take four-dimensional masks; None where it can."""
        ...


class CausalLMTarget:
    """Any decoder-only LM of `transformers` as a target; encoder-decoders: see Seq2SeqTarget.

    Args:
        model: the model, or a BlockwiseLM around it.

    Raises:
        TypeError: no decoder-only causal LM with an output embedding.
    """

    decoder_prompt: list[int] | None = None  # prompts begin as they are given
    stop_token_ids: frozenset[int] = frozenset()  # the caller names them

    def __init__(self, model: PreTrainedModel | BlockwiseLM) -> None:
        base = model.base if isinstance(model, BlockwiseLM) else model
        self.base = _check_causal(base)
        self.embedding: Any = base.get_output_embeddings()  # type: ignore[no-untyped-call]
        weight: Tensor = self.embedding.weight
        self.vocab_size, self.device = int(weight.shape[0]), weight.device
        self.dtype: torch.dtype = base.dtype
        config = base.config.get_text_config(decoder=True)
        limit = getattr(config, "max_position_embeddings", None)
        self.max_positions = None if limit is None else int(limit)
        self.sliding_window, self._mixed = _find_window(config)
        parameters = inspect.signature(base.base_model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self.source_vocab_size = self.vocab_size
        self._refusal: tuple[str | None] | None = None  # of the tree form, once it was asked for
        self._plain: bool | None = None  # logits are the embedding of the hidden state, no more

    def __call__(
        self,
        input_ids: Tensor,
        cache: Any,
        *,
        attention_mask: Tensor | None = None,
        windowed_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> TargetOutput:
        """See TargetModel."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "past_key_values": cache}
        inputs["use_cache"] = True
        if attention_mask is not None:
            inputs["attention_mask"] = self._for_layers(attention_mask, windowed_mask)
        if position_ids is not None and self.takes_positions:
            inputs["position_ids"] = position_ids
        if self._plain:
            hidden: Tensor = self.base.base_model(**inputs).last_hidden_state
            return TargetOutput(self.embedding(hidden), hidden)
        return call_whole(self.base, self.embedding, inputs)

    def read_prompts(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[TargetOutput, Cache]:
        """The first call.

        Args:
            input_ids: (B, T) int64, padded on the left.
            attention_mask: (B, T) int64, 0 on padding; None where nothing is padded.
            position_ids: (B, T) int64, or None.
            cache: an empty one to fill; a DynamicCache is made where None is given.

        Returns:
            Output of the last position, logits (B, 1, V) and hidden (B, 1, D), and the cache, which
            keeps everything, even where the model has a sliding window.

        Raises:
            MemoryError: the prompts did not fit.
        """
        inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": True}
        inputs["past_key_values"] = cache = DynamicCache() if cache is None else cache
        if attention_mask is not None:
            inputs["attention_mask"] = attention_mask
            if self.takes_positions:
                inputs["position_ids"] = position_ids
        supports = getattr(self.base, "_supports_logits_to_keep", None)
        if supports is not None and supports():
            inputs["logits_to_keep"] = 1
        try:
            output = call_whole(self.base, self.embedding, inputs)
        except (RuntimeError, MemoryError) as error:
            if not is_lack_of_memory(error):
                raise
            rows, size = input_ids.shape
            raise MemoryError(
                f"decode: no memory to read {rows} prompts of {size} tokens "
                f"({str(error).strip().splitlines()[:1]}); decode fewer at once, or shorter ones"
            ) from error
        last = TargetOutput(output.logits[:, -1:], output.hidden[:, -1:])
        # Some models scale or cap their logits; those are called as a whole ever after.
        again = self.embedding(last.hidden)
        self._plain = again.shape == last.logits.shape and bool(
            torch.allclose(again.float(), last.logits.float(), rtol=1e-3, atol=1e-5, equal_nan=True)
        )
        return last, cache

    def refuses_tree(self) -> str | None:
        """See TargetModel; found out by trying, once for each model."""
        if self._refusal is None:
            self._refusal = (find_tree_refusal(self),)
        return self._refusal[0]

    def new_cache(self) -> Cache:
        """A cache that covers no token."""
        return DynamicCache()

    def _for_layers(self, mask: Tensor, windowed: Tensor | None) -> Mask:
        if windowed is None or mask.ndim == 2:
            return mask
        if self._mixed:
            return {"full_attention": mask, "sliding_attention": windowed}
        return windowed


def call_whole(base: Any, embedding: nn.Module, inputs: dict[str, Any]) -> TargetOutput:
    """The LM's own forward pass; the hidden state is what its output embedding gets.

    Args:
        base: LM of `transformers`.
        embedding: its output embedding.
        inputs: by name.

    Raises:
        TypeError: it does not call its output embedding.
    """
    seen: list[Tensor] = []

    def remember(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        seen.append(arguments[0])

    handle = embedding.register_forward_pre_hook(remember)
    try:
        logits: Tensor = base(**inputs).logits
    finally:
        handle.remove()
    if not seen:
        raise TypeError(
            f"decode: {type(base).__name__} does not call its output embedding, so the "
            "hidden state that heads start from is not known; expected a causal LM that does"
        )
    return TargetOutput(logits, seen[-1])


def _check_causal(base: Any) -> PreTrainedModel:
    if not isinstance(base, PreTrainedModel):
        raise TypeError(
            f"decode: model is a {type(base).__name__}; expected a causal LM of transformers or a "
            "BlockwiseLM; load one with AutoModelForCausalLM.from_pretrained"
        )
    embedding = base.get_output_embeddings()  # type: ignore[no-untyped-call]
    encoder_decoder = getattr(base.config, "is_encoder_decoder", False)
    if encoder_decoder or embedding is None or base.base_model is base:
        what = "an encoder-decoder" if encoder_decoder else "no decoder with an output embedding"
        raise TypeError(
            f"decode: {type(base).__name__} is {what}; expected a decoder-only causal LM; load it "
            "with AutoModelForCausalLM"
        )
    if getattr(base, "_is_stateful", False):
        raise ValueError(
            f"decode: {type(base).__name__} keeps a recurrent state, which cannot be rolled back; "
            "expected attention in every layer; use the model's own generate, or another target"
        )
    return base


def _find_window(config: Any) -> tuple[int | None, bool]:
    """The sliding window, and whether other layers see everything."""
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    window = getattr(config, "sliding_window", None)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return None, False
    return int(window), any(kind != "sliding_attention" for kind in kinds)
