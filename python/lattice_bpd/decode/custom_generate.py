"""`model.generate(..., custom_generate=CustomGenerate(heads, lm=lm))` of transformers 5.

The model's own `generate` prepares prompts, logits processors and stopping criteria; this class
decodes in place of its greedy loop and returns the same tokens. Processors are asked once for each
decoded token, in order, with the true prefix, just as the greedy loop asks them, so that even
those that keep notes work. What cannot be honoured is refused by name.
"""

from __future__ import annotations

from typing import Any, cast

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
from lattice_bpd.decode.batch import check_rule, count_most_nodes
from lattice_bpd.decode.constraint import Constraint
from lattice_bpd.decode.constraint.protocol import check_constraint
from lattice_bpd.decode.constraint.trees import MOST_EXPECTED
from lattice_bpd.decode.drafters import Drafter
from lattice_bpd.decode.experience import experience_of
from lattice_bpd.decode.generate_checks import (
    check_positions,
    refuse_for_batches,
    refuse_inputs,
    refuse_settings,
    refuse_sharded,
    strip_padding,
)
from lattice_bpd.decode.loop import DecodeResult, Options, run_loop
from lattice_bpd.decode.model import DraftHeads, DraftingModel
from lattice_bpd.decode.prompts import Prompts, check_prompts
from lattice_bpd.decode.strategies import make_drafter
from lattice_bpd.verify import Acceptance, Chooser, Offer, greedy_tokens


class CustomGenerate:
    """A decoding method for `model.generate`; see the module.

    Args:
        heads: callable, hidden states (B, D) -> logits (B, H, V); None where the drafter needs
            none.
        strategy: see `lattice_bpd.decode.generate`, as for all other arguments.
        drafter: your own instead of a strategy's, for a single sequence if it observes.
        lm: n-gram LM over the target's token ids.
        scorer: a small causal LM or a TransitionScorer, of "neural" and "p_best".
        top_k: k.
        num_drafts: p of "p_best".
        max_nodes: N of "tree".
        alpha: weight of the LM.
        temperature: of "tree"; it shapes drafts, never the output.
        cache: mixes n-grams of prompt and output so far into the LM, of each sequence its own.
        draft_model: of "draft_model" and "combined".
        num_slots: longest draft of "draft_model" and "lookup".
        form: "auto", "tree" or "rows".
        streamer: of `transformers`. Give it here: `generate` keeps its own from callables.
        acceptance: which draft tokens are kept, judged by the logits behind all processors; with
            a lossy rule the output is not that of plain `generate`, and `results` say so.
        constraint: what each sequence's new tokens must obey; the output is that of plain
            `generate` with a logits processor that forbids what the constraint does.

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
        scorer: Any = None,
        top_k: int = 16,
        num_drafts: int = 16,
        max_nodes: int = 36,
        alpha: float = 0.5,
        temperature: float = 1.0,
        cache: bool | int = False,
        draft_model: Any = None,
        num_slots: int | None = None,
        form: str = "auto",
        streamer: Any = None,
        acceptance: Acceptance | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.acceptance, self.constraint = check_rule(acceptance), constraint
        self.heads, self.strategy, self.drafter = heads, strategy, drafter
        self.form, self.streamer = form, streamer
        self._sizes: dict[str, Any] = {
            "lm": lm, "scorer": scorer, "top_k": top_k, "num_drafts": num_drafts,
            "max_nodes": max_nodes, "alpha": alpha, "temperature": temperature, "cache": cache,
            "draft_model": draft_model, "num_slots": num_slots, "has_heads": heads is not None,
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
        drafting = DraftingModel(model, self.heads)  # a recurrent target is named as such
        drafting.require_causal("CustomGenerate")
        refuse_settings(generation_config)
        refuse_inputs(model_kwargs)
        refuse_sharded(model)
        refuse_for_batches(len(input_ids), logits_processor, stopping_criteria)
        drafter = self.drafter or make_drafter(
            self.strategy, drafting.vocab_size, **self._sizes, experience=experience_of(model)
        )
        rows = strip_padding(input_ids, model_kwargs.get("attention_mask"))
        check_positions(rows, model_kwargs)
        prompts = check_prompts(drafting, rows, beyond_positions=True)
        limit = _max_length(stopping_criteria, generation_config) - input_ids.shape[1]
        plain = _are_plain(logits_processor, stopping_criteria)
        ends = _end_tokens(stopping_criteria) if plain or self.constraint is not None else set()
        expected = 0
        if self.constraint is not None:
            check_constraint(self.constraint, drafting.vocab_size)
            ends, expected = ends | self.constraint.end_token_ids, MOST_EXPECTED
        options = Options(
            limits=[limit] * len(rows),
            short_of_positions=[False] * len(rows),
            stop_token_ids=frozenset(ends),
            constraint=self.constraint,
            form=self.form,
            streamer=self.streamer,
            acceptance=self.acceptance,
            static_cache=generation_config.cache_implementation == "static" and len(rows) == 1,
            most_nodes=count_most_nodes(drafter, drafting) + expected,
        )
        if not plain:
            options.choosers = [
                _ProcessedChoice(row, limit, logits_processor, stopping_criteria, chooser)
                for row, chooser in zip(input_ids, self._start_choosers(prompts), strict=True)
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

    def _start_choosers(self, prompts: Prompts) -> list[Chooser | None]:
        """Those of the acceptance rule, which are asked with processed logits."""
        return [self.acceptance.start(n, tokens) for n, tokens in enumerate(prompts.tokens)]


class _ProcessedChoice:
    """Choices behind logits processors, until the stopping criteria say so; for one sequence."""

    def __init__(
        self,
        prompt: Tensor,
        limit: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        chooser: Chooser | None,
    ) -> None:
        self.chooser = chooser
        self.ids = prompt.new_zeros((1, len(prompt) + limit))
        self.ids[0, : len(prompt)] = prompt
        self.length, self.ended = len(prompt), False
        self.processors, self.criteria = processors, criteria

    @property
    def regrets(self) -> Any:
        """Of the rule's chooser, where it counts any."""
        return getattr(self.chooser, "regrets", ())

    def choose(self, logits: Tensor, offer: Offer) -> int | None:
        """See `lattice_bpd.verify.Chooser`."""
        if self.ended:
            return None
        scores = logits.to(self.ids.device, torch.float32, copy=True)
        if bool(scores.isnan().any()):
            greedy_tokens(scores)  # says what is wrong
        before: Any = self.ids[:, : self.length].clone()
        processed: Tensor = self.processors(before, scores.unsqueeze(0))[0]  # type: ignore[arg-type]
        if self.chooser is None:
            token = int(processed.argmax())
        else:
            token = cast("int", self.chooser.choose(processed, offer))
        self.ids[0, self.length] = token
        self.length += 1
        after: Any = self.ids[:, : self.length].clone()
        self.ended = bool(self.criteria(after, None).all())
        return token


def _max_length(criteria: StoppingCriteriaList, config: GenerationConfig) -> int:
    limits = [int(c.max_length) for c in criteria if isinstance(c, MaxLengthCriteria)]
    return min(limits) if limits else int(config.max_length or 20)


def _are_plain(processors: LogitsProcessorList, criteria: StoppingCriteriaList) -> bool:
    """Whether nothing but its length and its tokens can end a text, and nothing change it."""
    kinds = (MaxLengthCriteria, EosTokenCriteria)
    return len(processors) == 0 and all(isinstance(c, kinds) for c in criteria)


def _end_tokens(criteria: StoppingCriteriaList) -> set[int]:
    """The tokens that end a text."""
    ends = [c.eos_token_id.tolist() for c in criteria if isinstance(c, EosTokenCriteria)]
    return {int(token) for tokens in ends for token in tokens}


def _append(input_ids: Tensor, decoded: list[list[int]], config: GenerationConfig) -> Tensor:
    """Prompts and decoded tokens, padded on the right."""
    longest = max(map(len, decoded))
    padding = getattr(config, "_pad_token_tensor", None)
    fill = 0 if padding is None else int(padding)
    rows = [tokens + [fill] * (longest - len(tokens)) for tokens in decoded]
    return torch.cat([input_ids, torch.tensor(rows).to(input_ids)], dim=1)
