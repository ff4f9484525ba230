"""`model.generate(..., custom_generate=CustomGenerate(heads, lm=lm))` of transformers 5.

The model's own `generate` prepares prompts, logits processors and stopping criteria; this class
decodes in place of its greedy loop and returns the same tokens. Processors are asked once for each
decoded token, in order, with the true prefix, just as the greedy loop asks them, so that even
those that keep notes work. What cannot be honoured is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lattice_bpd import NGramLM
from lattice_bpd.decode.batch import count_most_nodes
from lattice_bpd.decode.drafters import Drafter
from lattice_bpd.decode.loop import DecodeResult, Options, run_loop
from lattice_bpd.decode.model import DraftHeads, DraftingModel
from lattice_bpd.decode.prompts import check_prompts
from lattice_bpd.decode.strategies import make_drafter
from lattice_bpd.verify import greedy_tokens

# Settings of a GenerationConfig that change the output or what is returned beside it.
_REFUSED = {
    "do_sample": "sampling",
    "penalty_alpha": "contrastive search",
    "dola_layers": "DoLa decoding",
    "prompt_lookup_num_tokens": "prompt lookup (give a drafter instead)",
    "constraints": "constrained beam search",
    "force_words_ids": "constrained beam search",
    "output_scores": "scores of each step",
    "output_logits": "logits of each step",
    "output_attentions": "attentions of each step",
    "output_hidden_states": "hidden states of each step",
}
_CACHES = (None, "dynamic", "static")
_KNOWN_INPUTS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}
# These look at the number of a row, or at all rows together.
_SINGLE_ROW_ONLY = {
    "PrefixConstrainedLogitsProcessor",
    "SynthIDTextWatermarkLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
}


class CustomGenerate:
    """A decoding method for `model.generate`; see the module.

    Args:
        heads: callable, hidden states (B, D) -> logits (B, H, V); None where the drafter needs
            none.
        strategy: see `lattice_bpd.decode.generate`, as for all other arguments.
        drafter: your own instead of a strategy's, for a single sequence if it observes.
        lm: n-gram LM over the target's token ids.
        top_k: k.
        num_drafts: p of "p_best".
        max_nodes: N of "tree".
        alpha: weight of the LM.
        form: "auto", "tree" or "rows".
        streamer: of `transformers`. Give it here: `generate` keeps its own from callables.

    Attributes:
        results: the DecodeResult of each sequence of the last call, with statistics.
    """

    def __init__(
        self,
        heads: DraftHeads | None = None,
        strategy: str = "tree",
        *,
        drafter: Drafter | None = None,
        lm: NGramLM | None = None,
        top_k: int = 16,
        num_drafts: int = 16,
        max_nodes: int = 36,
        alpha: float = 0.5,
        form: str = "auto",
        streamer: Any = None,
    ) -> None:
        self.heads, self.strategy, self.drafter = heads, strategy, drafter
        self.form, self.streamer = form, streamer
        self._sizes: dict[str, Any] = {
            "lm": lm, "top_k": top_k, "num_drafts": num_drafts, "max_nodes": max_nodes,
            "alpha": alpha,
        }  # fmt: skip
        if strategy == "oracle":
            raise ValueError("CustomGenerate: strategy 'oracle' decodes twice; use decode.generate")
        self.results: list[DecodeResult] = []

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """What `generate` calls.

        Args:
            model: the target.
            input_ids: (B, T) int64, padded on the left.
            logits_processor: prepared by `generate`.
            stopping_criteria: prepared by `generate`.
            generation_config: settings.
            model_kwargs: attention_mask and the like.

        Returns:
            (B, T + new) int64, or a GenerateDecoderOnlyOutput with it.

        Raises:
            ValueError: a setting, input or processor that cannot be honoured, by name.
        """
        _refuse_settings(generation_config)
        _refuse_inputs(model_kwargs)
        _refuse_for_batches(len(input_ids), logits_processor, stopping_criteria)
        drafting = DraftingModel(model, self.heads)
        drafter = self.drafter or make_drafter(self.strategy, drafting.vocab_size, **self._sizes)
        rows = _strip_padding(input_ids, model_kwargs.get("attention_mask"))
        _check_positions(rows, model_kwargs)
        prompts = check_prompts(drafting, rows, beyond_positions=True)
        limit = _max_length(stopping_criteria, generation_config) - input_ids.shape[1]
        plain = _plain_stop_tokens(logits_processor, stopping_criteria)
        options = Options(
            limits=[limit] * len(rows),
            short_of_positions=[False] * len(rows),
            stop_token_ids=frozenset(plain or ()),
            form=self.form,
            streamer=self.streamer,
            static_cache=generation_config.cache_implementation == "static" and len(rows) == 1,
            most_nodes=count_most_nodes(drafter, drafting),
        )
        if plain is None:
            options.choosers = [
                _ProcessedChoice(row, limit, logits_processor, stopping_criteria)
                for row in input_ids
            ]
        self.results = run_loop(drafting, prompts, [drafter] * len(rows), options)
        if self.streamer is not None:
            self.streamer.end()
        sequences = _append(
            input_ids, [found.token_ids for found in self.results], generation_config
        )
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
        return sequences


class _ProcessedChoice:
    """Argmax behind logits processors, until the stopping criteria say so; for one sequence."""

    def __init__(
        self,
        prompt: Tensor,
        limit: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
    ) -> None:
        self.ids = prompt.new_zeros((1, len(prompt) + limit))
        self.ids[0, : len(prompt)] = prompt
        self.length, self.ended = len(prompt), False
        self.processors, self.criteria = processors, criteria

    def choose(self, logits: Tensor) -> int | None:
        """See `lattice_bpd.verify.Chooser`."""
        if self.ended:
            return None
        scores = logits.to(self.ids.device, torch.float32, copy=True)
        if bool(scores.isnan().any()):
            greedy_tokens(scores)  # says what is wrong
        before: Any = self.ids[:, : self.length].clone()
        token = int(self.processors(before, scores.unsqueeze(0)).argmax(dim=-1))  # type: ignore[arg-type]
        self.ids[0, self.length] = token
        self.length += 1
        after: Any = self.ids[:, : self.length].clone()
        self.ended = bool(self.criteria(after, None).all())
        return token


def _refuse_settings(config: GenerationConfig) -> None:
    for name, what in _REFUSED.items():
        returned = name.startswith("output_")
        if getattr(config, name, None) and (not returned or config.return_dict_in_generate):
            raise ValueError(
                f"CustomGenerate: {name}={getattr(config, name)!r} ({what}) cannot be honoured; "
                "leave it out, or use the model's own generate"
            )
    for name in ("num_beams", "num_return_sequences"):
        if (getattr(config, name, None) or 1) > 1:
            raise ValueError(
                f"CustomGenerate: {name}={getattr(config, name)} cannot be honoured; expected 1"
            )
    if config.cache_implementation not in _CACHES:
        raise ValueError(
            f"CustomGenerate: cache_implementation={config.cache_implementation!r} cannot be "
            f"rolled back; expected one of {', '.join(map(repr, _CACHES))}"
        )


def _refuse_inputs(model_kwargs: dict[str, Any]) -> None:
    unknown = sorted(
        name for name, value in model_kwargs.items()
        if value is not None and name not in _KNOWN_INPUTS
    )  # fmt: skip
    if unknown:
        raise ValueError(
            f"CustomGenerate: cannot hand {', '.join(unknown)} to the model; expected input_ids "
            "and attention_mask only; use the model's own generate"
        )
    cache = model_kwargs.get("past_key_values")
    if cache is not None and (
        getattr(cache, "_is_user_defined", False) or int(cache.get_seq_length()) > 0
    ):
        raise ValueError(
            "CustomGenerate: past_key_values cannot be honoured; it keeps a cache of its own; "
            "leave past_key_values out and give the whole text"
        )


def _refuse_for_batches(
    batch_size: int, processors: LogitsProcessorList, criteria: StoppingCriteriaList
) -> None:
    """In a batch every sequence is asked for by itself, at its own speed."""
    if batch_size == 1:
        return
    names = sorted({type(item).__name__ for item in processors} & _SINGLE_ROW_ONLY)
    if not any(isinstance(item, EosTokenCriteria) for item in criteria):
        # Without an end-of-text token, plain generate writes on until all rows are finished.
        names += [
            type(item).__name__ for item in criteria if not isinstance(item, MaxLengthCriteria)
        ]
    if names:
        raise ValueError(
            f"CustomGenerate: {', '.join(names)} cannot be honoured for {batch_size} sequences at "
            "once; generate them one at a time"
        )


def _strip_padding(input_ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The tokens of each row without the padding on its left."""
    if mask is None:
        return list(input_ids)
    rows = []
    for number, (row, used) in enumerate(zip(input_ids, mask.to(input_ids.device), strict=True)):
        length = int((used != 0).sum())
        if length == 0 or not bool((used[len(row) - length :] != 0).all()):
            raise ValueError(
                f"CustomGenerate: attention_mask of row {number} hides tokens behind others, or "
                "all; expected padding on the left only; set padding_side='left'"
            )
        rows.append(row[len(row) - length :])
    return rows


def _check_positions(rows: Sequence[Tensor], model_kwargs: dict[str, Any]) -> None:
    positions = model_kwargs.get("position_ids")
    if positions is None:
        return
    for number, row in enumerate(rows):
        found = positions[number if len(positions) > 1 else 0][-len(row) :].tolist()
        if found != list(range(len(row))):
            raise ValueError(
                "CustomGenerate: position_ids cannot be honoured; expected 0, 1, 2, .. from the "
                "first token on; leave position_ids out"
            )


def _max_length(criteria: StoppingCriteriaList, config: GenerationConfig) -> int:
    limits = [int(c.max_length) for c in criteria if isinstance(c, MaxLengthCriteria)]
    return min(limits) if limits else int(config.max_length or 20)


def _plain_stop_tokens(
    processors: LogitsProcessorList, criteria: StoppingCriteriaList
) -> list[int] | None:
    """The tokens that end a text, where nothing else can change or end it; else None."""
    plain = all(isinstance(c, (MaxLengthCriteria, EosTokenCriteria)) for c in criteria)
    if len(processors) > 0 or not plain:
        return None
    ends = [c.eos_token_id.tolist() for c in criteria if isinstance(c, EosTokenCriteria)]
    return [int(token) for tokens in ends for token in tokens]


def _append(input_ids: Tensor, decoded: list[list[int]], config: GenerationConfig) -> Tensor:
    """Prompts and decoded tokens, padded on the right."""
    longest = max(map(len, decoded))
    padding = getattr(config, "_pad_token_tensor", None)
    fill = 0 if padding is None else int(padding)
    rows = [tokens + [fill] * (longest - len(tokens)) for tokens in decoded]
    return torch.cat([input_ids, torch.tensor(rows).to(input_ids)], dim=1)
