"""Encoder-decoders as targets: one encoder call, then verification with the decoder.

    source ids -> encoder -> Source          once per text
    start token, exact tokens, drafts -> decoder over SourceRows -> logits      every call

Stern et al. 2018 and Xia et al. 2022 (SpecDec) draft and verify with such models.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from lattice_bpd.models.forward import LMOutput, call_forward, has_own_call
from lattice_bpd.models.hooks import check_weights, device_of, in_this_thread, refuse_adapters
from lattice_bpd.models.lm_call import find_max_positions, pass_cache, plain_weight
from lattice_bpd.verify.call_limits import CallLimits, Windows, find_call_limits
from lattice_bpd.verify.memory import describe_lack_of_memory, try_once
from lattice_bpd.verify.probes import find_tree_refusal
from lattice_bpd_translation.source_cache import Source, SourceRows


class Seq2SeqTarget:
    """Any encoder-decoder LM of `transformers` (T5, BART, Marian, ..) as a target.

    A decoder with a position embedding that takes position ids (BART, Marian, mBART, Pegasus)
    supports tree attention and batches; relative positions (T5) allow batched verification of one
    text only.

    Args:
        model: the model.
        decoder_prompt: ids that every output begins with, the start token first; None: the model's
            start token, then the forced first token of its generation config, if any.
        stop_token_ids: used if the caller passes none; None: those of the model's generation
            config.

    Attributes:
        base: the model.
        embedding: its output embedding, which maps hidden states to logits.
        vocab_size: V, of the outputs.
        source_vocab_size: of the sources.
        max_positions: of decoder and encoder; None where the config names no limit.
        limits: of one call of the decoder.
        takes_positions: whether the position of a token may differ from its cache position.

    Raises:
        TypeError: not an encoder-decoder with an output embedding.
        ValueError: no start token, or ids outside the vocabulary.
    """

    sliding_window: int | None = None
    is_recurrent = False
    shift = 0
    windows = Windows(None, mixed=False, by_cache_position=None)

    def __init__(
        self,
        model: PreTrainedModel,
        decoder_prompt: Sequence[int] | None = None,
        *,
        stop_token_ids: Sequence[int] | None = None,
    ) -> None:
        base: Any = _check_encoder_decoder(model)
        self.base = base
        self.encoder, self.decoder = base.get_encoder(), base.get_decoder()
        self.embedding: Any = base.get_output_embeddings()
        self.vocab_size, self.device = _count_target_ids(base, self.embedding)
        self.dtype: torch.dtype = self.base.dtype
        self.source_vocab_size = _count_source_ids(base)
        self.max_positions = find_max_positions(self.base.config)
        self.limits: CallLimits = find_call_limits(base, self.decoder)
        self._position_embedding = _find_position_embedding(self.decoder)
        self.takes_positions = self._position_embedding is not None
        self.decoder_prompt = _read_decoder_prompt(self.base, decoder_prompt, self.vocab_size)
        self.stop_token_ids = _read_stop_tokens(self.base, stop_token_ids)
        self._refusals: dict[str, str | None] = {}  # of tree attention, once it is known
        self._encoder_output: Any = BaseModelOutput  # the class that the encoder returns
        self._plain: bool | None = None  # logits are the embedding of the decoder's output itself

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> Source:
        """Run the encoder.

        Args:
            sources: B sequences of token ids, one or more each, checked.

        Raises:
            MemoryError: they did not fit.
        """
        longest = max(map(len, sources))
        rows = [[*source, *[0] * (longest - len(source))] for source in sources]
        ids = torch.tensor(rows, device=self.device)
        mask = None
        if min(map(len, sources)) < longest:
            sizes = torch.tensor([len(source) for source in sources], device="cpu")
            mask = (torch.arange(longest, device="cpu") < sizes[:, None]).long().to(self.device)
        with _describe_lack_of_memory("encode", ids):
            output = self.encoder(input_ids=ids, attention_mask=mask)
        states: Tensor = output.last_hidden_state
        self._encoder_output = type(output)
        return Source([list(source) for source in sources], states, mask)

    def read_prompts(
        self,
        input_ids: Tensor,
        source: Source | None = None,
    ) -> tuple[LMOutput, SourceRows]:
        """The decoder's first call.

        Args:
            input_ids: (B, T) int64, the first tokens of the outputs, all of one length.
            source: the output of `encode`, B rows.

        Returns:
            Output of the last position, logits (B, 1, V) and hidden (B, 1, D), and the cache.

        Raises:
            ValueError: no source.
            MemoryError: the call did not fit.
        """
        if source is None:
            raise ValueError(
                "Seq2SeqTarget: read_prompts needs the encoded source; give "
                "source=target.encode(sources)"
            )
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        seen: list[Tensor | None] = []

        def remember(_module: nn.Module, _arguments: Any, output: Any) -> None:
            seen.append(getattr(output, "last_hidden_state", None))  # an LM returns logits only

        handle = self.decoder.register_forward_hook(in_this_thread(remember))
        try:
            with _describe_lack_of_memory("read", input_ids):
                output = self._call_whole(input_ids, cache, source, None)
        finally:
            handle.remove()
        last = LMOutput(output.logits[:, -1:], output.hidden[:, -1:])
        self._plain = False
        is_plain = type(self.base).forward.__module__.startswith("transformers.")
        if is_plain and seen and seen[-1] is not None:
            again = self.embedding(seen[-1])  # bit for bit: a scale, bias or cap makes a difference
            self._plain = again.dtype == output.logits.dtype and torch.equal(again, output.logits)
        return last, SourceRows.of_first_call(cache, source)

    def __call__(
        self,
        input_ids: Tensor,
        cache: Any,
        *,
        attention_mask: Tensor | None = None,
        windowed_mask: Tensor | None = None,  # noqa: ARG002
        position_ids: Tensor | None = None,
    ) -> LMOutput:
        """See CausalLMTarget; the cache is a SourceRows."""
        with self._at(position_ids):
            if not self._plain or has_own_call(self.base):
                return self._call_whole(input_ids, cache.paired, cache.source, attention_mask)
            hidden: Tensor = self.decoder(
                input_ids=input_ids,
                attention_mask=attention_mask,
                encoder_hidden_states=cache.source.states,
                encoder_attention_mask=cache.source.mask,
                **pass_cache(self.decoder, cache.paired),
                use_cache=True,
            ).last_hidden_state
        return LMOutput(self.embedding(hidden), hidden)

    def allows_parts(self, length: int) -> bool:  # noqa: ARG002
        """See CausalLMTarget."""
        return False

    def check_again(self) -> None:
        """See CausalLMTarget."""
        self._refusals = {}

    def reset_frequencies(self) -> None:
        """See CausalLMTarget; a no-op, since every output starts at position 0."""

    def provide_features(self, layers: Sequence[int]) -> None:
        """Raise ValueError: heads that read several layers are for causal LMs."""
        raise ValueError(
            f"decode: the heads read layers {tuple(layers)} of the target, and "
            f"{type(self.base).__name__} is an encoder-decoder; expected a decoder-only causal LM"
        )

    def refuses_tree(self) -> str | None:
        """See CausalLMTarget; probed once per model."""
        return try_once(self._refusals, "tree", lambda: find_tree_refusal(self))

    def new_cache(self) -> Any:
        """A cache that covers no token, over a source of one token."""
        source = self.encode([[0]])
        _, cache = self.read_prompts(torch.tensor([self.decoder_prompt[:1]], device=self.device),
                                     source=source)  # fmt: skip
        cache.roll_back([0])
        return cache

    def _call_whole(
        self, input_ids: Tensor, cache: Any, source: Source, mask: Tensor | None
    ) -> LMOutput:
        inputs = {
            "encoder_outputs": self._encoder_output(last_hidden_state=source.states),
            "attention_mask": source.mask,
            "decoder_input_ids": input_ids,
            "decoder_attention_mask": mask,
            **pass_cache(self.base, cache),
            "use_cache": True,
        }
        return call_forward(self.base, self.embedding, inputs)

    @contextmanager
    def _at(self, position_ids: Tensor | None) -> Iterator[None]:
        """Pass (B, T) positions to the decoder instead of cache positions."""
        embedding = self._position_embedding
        if position_ids is None or embedding is None:
            yield
            return
        shape = position_ids.shape

        def set_positions(module: nn.Module, arguments: Any, named: dict[str, Any]) -> Any:
            index = list(inspect.signature(module.forward).parameters).index("position_ids")
            return arguments[:index], {**named, "position_ids": position_ids.flatten()}

        def unflatten(_module: nn.Module, _arguments: Any, embedded: Tensor) -> Tensor:
            return embedded.reshape(*shape, -1)

        hooks = (
            embedding.register_forward_pre_hook(in_this_thread(set_positions), with_kwargs=True),
            embedding.register_forward_hook(in_this_thread(unflatten)),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _describe_lack_of_memory(verb: str, ids: Tensor) -> AbstractContextManager[None]:
    action = f"{verb} {ids.shape[0]} sequences of {ids.shape[1]} tokens"
    return describe_lack_of_memory(action, "decode fewer at once, or shorter ones")


def _check_encoder_decoder(model: Any) -> Any:
    """The model itself; TypeError unless it is an encoder-decoder with an output embedding.

    ValueError for adapters, see `refuse_adapters`.
    """
    embedding = None
    if isinstance(model, PreTrainedModel) and getattr(model.config, "is_encoder_decoder", False):
        embedding = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if embedding is None:
        raise TypeError(
            f"Seq2SeqTarget: model is a {type(model).__name__}; expected an encoder-decoder of "
            "transformers with an output embedding; load one with AutoModelForSeq2SeqLM"
        )
    refuse_adapters(model)
    check_weights(model)
    return model


def _count_source_ids(base: Any) -> int:
    """The number of rows of the encoder's input embedding.

    Raises:
        TypeError: neither encoder nor model names an input embedding.
    """
    for module in (base.get_encoder(), base):
        try:
            return int(module.get_input_embeddings().weight.shape[0])
        except (AttributeError, NotImplementedError):
            continue
    raise TypeError(
        f"Seq2SeqTarget: {type(base).__name__} has no input embedding of source tokens; expected "
        "an encoder-decoder that reads text"
    )


def _find_position_embedding(decoder: nn.Module) -> nn.Module | None:
    """The decoder's position embedding if it takes position ids, else None."""
    embedding: nn.Module | None = getattr(decoder, "embed_positions", None)
    if not isinstance(embedding, nn.Embedding):
        return None
    takes_ids = "position_ids" in inspect.signature(embedding.forward).parameters
    return embedding if takes_ids else None


def _read_decoder_prompt(base: Any, given: Sequence[int] | None, vocab_size: int) -> list[int]:
    """The first tokens of outputs: as given, or the model's start and forced first token."""
    settings = base.generation_config
    if given is None:
        start = settings.decoder_start_token_id
        start = base.config.decoder_start_token_id if start is None else start
        forced = settings.forced_bos_token_id
        given = [token for token in (start, forced) if token is not None]
        if start is None:
            raise ValueError(
                f"Seq2SeqTarget: {type(base).__name__} names no decoder_start_token_id; give "
                "decoder_prompt=[start token id]"
            )
    prompt = [int(token) for token in given]
    if not prompt or min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ValueError(
            f"Seq2SeqTarget: decoder_prompt is {prompt}; expected one token id or more of "
            f"0..{vocab_size - 1}, the start token first"
        )
    return prompt


def _read_stop_tokens(base: Any, given: Sequence[int] | None) -> frozenset[int]:
    """The stop tokens: as given, or those of the model's generation config."""
    if given is None:
        ends = base.generation_config.eos_token_id
        given = [] if ends is None else ends if isinstance(ends, list) else [ends]
    return frozenset(int(token) for token in given)


@torch.inference_mode()
def _count_target_ids(base: Any, embedding: Any) -> tuple[int, torch.device]:
    """The number of the decoder's token ids, and the device of the logits.

    Quantized and wrapped output embeddings have no weight of floats; the model is called instead.
    """
    weight = plain_weight(base, embedding)
    if weight is not None:
        return int(weight.shape[0]), weight.device
    ids = torch.zeros(1, 1, dtype=torch.long, device=device_of(base))
    logits = base(input_ids=ids, decoder_input_ids=ids).logits
    return int(logits.shape[-1]), logits.device
