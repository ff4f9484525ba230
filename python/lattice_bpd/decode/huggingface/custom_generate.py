"""`model.generate(..., custom_generate=CustomGenerate(heads, lm=lm))` of transformers 5.

The model's own `generate` prepares prompts, logits processors and stopping criteria; this class
decodes in place of its greedy loop and returns the same tokens. With `do_sample=True` it samples
from the same distribution. Processors are called once for each decoded token, in order, with the
true prefix, as the greedy loop calls them. What cannot be honored is refused by name.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lattice_bpd.decode.adaptive.experience import experience_of
from lattice_bpd.decode.constraint.protocol import Constraint, check_constraint
from lattice_bpd.decode.constraint.trees import MOST_EXPECTED
from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.huggingface.arguments import ending
from lattice_bpd.decode.huggingface.caller import find_arguments
from lattice_bpd.decode.huggingface.checks import (
    check_positions,
    refuse_for_batches,
    refuse_inputs,
    refuse_settings,
    refuse_sharded,
    visible_tokens,
)
from lattice_bpd.decode.huggingface.generate import make_drafter
from lattice_bpd.decode.huggingface.prefill import Prefill, needs_prefill
from lattice_bpd.decode.huggingface.sampling_settings import sampling_rule
from lattice_bpd.decode.loop.batch import check_rule, count_most_nodes
from lattice_bpd.decode.loop.loop import DecodeResult, Options, run_loop
from lattice_bpd.decode.loop.prompts import check_prompts
from lattice_bpd.decode.state.model import DraftHeads, DraftingModel
from lattice_bpd.decode.state.text_rules import TextRules
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.verify.acceptance.rule import Acceptance
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled


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
        streamer: of `transformers`, where `generate` is not given one.
        acceptance: which draft tokens are kept, judged by the processed logits; with a lossy rule
            the output is not that of plain `generate`, and `results` say so. None: Exact, or with
            `do_sample=True` Sampled, with seeds from torch's default generator.
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
        if acceptance is not None:
            check_rule(acceptance)
        self.acceptance, self.constraint = acceptance, constraint
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
            model_kwargs: attention_mask, pixel_values and the like.

        Returns:
            (B, T + new) int64, or a GenerateDecoderOnlyOutput with it.

        Raises:
            ValueError: a setting, input or processor that cannot be honored, by name.
        """
        caller = find_arguments(self)
        given = caller.get("streamer")
        streamer = self.streamer if given is None else given
        with ending(streamer):
            if caller.get("assistant_model") is not None:
                raise ValueError(
                    "CustomGenerate: assistant_model cannot be honored; give "
                    "CustomGenerate(strategy='draft_model', draft_model=...) instead"
                )
            drafting = DraftingModel(model, self.heads)  # a recurrent target is named as such
            drafting.require_causal("CustomGenerate")
            refuse_settings(generation_config)
            refuse_inputs(model, input_ids, model_kwargs)
            refuse_sharded(model)
            refuse_for_batches(len(input_ids), logits_processor, stopping_criteria)
            limit = _max_length(stopping_criteria, generation_config) - input_ids.shape[1]
            rules = [
                TextRules(row, limit, logits_processor, stopping_criteria, generation_config)
                for row in input_ids
            ]
            options = Options(
                limits=[limit] * len(rules),
                short_of_positions=[False] * len(rules),
                rules=rules,
                stop_token_ids=rules[0].end_token_ids,
                constraint=self.constraint,
                form=self.form,
                streamer=streamer,
                streams_prompt=given is None,
                acceptance=self._rule(generation_config, len(rules)),
                static_cache=generation_config.cache_implementation == "static" and len(rules) == 1,
            )
            self.results = self._decode(drafting, input_ids, model_kwargs, options)
        sequences = _append(
            input_ids, [result.token_ids for result in self.results], generation_config
        )
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)  # type: ignore[arg-type]
        return sequences

    def _decode(
        self,
        drafting: DraftingModel,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        options: Options,
    ) -> list[DecodeResult]:
        """Decode the rows of `generate`; see `__call__`."""
        drafter = self.drafter or make_drafter(
            self.strategy,
            drafting.vocab_size,
            **self._sizes,
            experience=experience_of(drafting.target.base),
        )
        rows = _visible_rows(drafting, input_ids, model_kwargs)
        prompts = check_prompts(drafting, rows, beyond_positions=True)
        options.most_nodes = count_most_nodes(drafter, drafting)
        if self.constraint is not None:
            check_constraint(self.constraint, drafting.vocab_size)
            options.stop_token_ids |= self.constraint.end_token_ids
            options.most_nodes += MOST_EXPECTED
        if needs_prefill(drafting.target.base, model_kwargs):
            options.prefill = Prefill(drafting, input_ids, model_kwargs, prompts.lengths)
        else:
            check_positions(rows, model_kwargs)
        return run_loop(drafting, prompts, [drafter] * len(rows), options)

    def _rule(self, config: GenerationConfig, count: int) -> Acceptance:
        """The acceptance rule of a call: what was given, else greedy or sampling."""
        if not config.do_sample:
            return check_rule(self.acceptance)
        if self.acceptance is None:
            return sampling_rule(config.temperature, count)
        if not isinstance(self.acceptance, (Sampled, Rejection)):
            raise ValueError(
                f"CustomGenerate: do_sample=True, but the rule {self.acceptance.name!r} does not "
                "sample; leave out do_sample or acceptance"
            )
        return self.acceptance


def _visible_rows(
    drafting: DraftingModel, input_ids: Tensor, model_kwargs: dict[str, Any]
) -> list[Tensor]:
    """The tokens of each row that its mask does not hide."""
    mask = model_kwargs.get("attention_mask")
    own = needs_prefill(drafting.target.base, model_kwargs)
    masks = [None] * len(input_ids) if mask is None else list(mask)
    rows = [
        visible_tokens(drafting.target, row, used, "CustomGenerate")
        for row, used in zip(input_ids, masks, strict=True)
    ]
    if (
        own
        and mask is not None
        and any(bool((used[-len(row) :] == 0).any()) for row, used in zip(rows, mask, strict=True))
    ):
        raise ValueError(
            "CustomGenerate: attention_mask hides tokens between others in a prompt that the model "
            "reads itself; expected padding on the left only; set padding_side='left'"
        )
    return rows


def _max_length(criteria: StoppingCriteriaList, config: GenerationConfig) -> int:
    limits = [int(c.max_length) for c in criteria if isinstance(c, MaxLengthCriteria)]
    return min(limits) if limits else int(config.max_length or 20)


def _append(input_ids: Tensor, decoded: list[list[int]], config: GenerationConfig) -> Tensor:
    """Prompts and decoded tokens, padded on the right."""
    longest = max(map(len, decoded))
    padding = getattr(config, "_pad_token_tensor", None)
    fill = 0 if padding is None else int(padding)
    rows = [tokens + [fill] * (longest - len(tokens)) for tokens in decoded]
    return torch.cat([input_ids, torch.tensor(rows).to(input_ids)], dim=1)
