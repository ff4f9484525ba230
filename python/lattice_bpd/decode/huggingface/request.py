"""Converts a request of `generate` into prompts and options of the decoding loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase, StopStringCriteria
from transformers.modeling_outputs import BaseModelOutput

from lattice_bpd.decode.huggingface.checks import refuse_cache, refuse_settings, visible_tokens
from lattice_bpd.decode.huggingface.prefill import shift_positions
from lattice_bpd.decode.huggingface.sampling_settings import sampling_rule
from lattice_bpd.decode.huggingface.text_inputs import TextInput
from lattice_bpd.decode.loop.arguments import MAX_NEW_TOKENS
from lattice_bpd.decode.loop.decode import check_rule
from lattice_bpd.decode.loop.loop import Options
from lattice_bpd.decode.loop.prompts import Prompts, check_prompts
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.text_rules import (
    TextRules,
    find_setting,
    merge_settings,
    prepare_rules,
)
from lattice_bpd.verify.acceptance.rule import Acceptance


@dataclass
class Request:
    """The arguments of one `generate` call.

    Attributes:
        model: target and heads.
        texts: the prompts.
        config: the caller's generation config; None: the model's own.
        max_new_tokens: most tokens of each text; None: the generation config's.
        stop_token_ids: end a text; None: those of the generation config.
        acceptance: acceptance rule; None: Exact, or sampling if the config has do_sample=True.
        tokenizer: for stop strings.
    """

    model: DraftingModel
    texts: list[TextInput]
    config: GenerationConfig | None
    max_new_tokens: int | None
    stop_token_ids: frozenset[int] | None
    acceptance: Acceptance | None
    tokenizer: Any

    def __post_init__(self) -> None:
        """Check the type of the generation config.

        Raises:
            TypeError: it is not a GenerationConfig.
        """
        if self.config is not None and not isinstance(self.config, GenerationConfig):
            raise TypeError(
                f"generate: generation_config is a {type(self.config).__name__}; expected a "
                "GenerationConfig of transformers, such as GenerationConfig(repetition_penalty=1.2)"
            )

    def prepare(self, options: dict[str, Any]) -> tuple[Prompts, Options]:
        """Prompts and options of one run, with new processors and criteria.

        Raises:
            ValueError: prompts or settings that cannot be decoded.
        """
        prompts = check_prompts(
            self.model, [text.visible() for text in self.texts], beyond_positions=True
        )
        rule = self._rule()
        base: Any = self.model.target.base
        settings = Options([], [], self.stop_token_ids or frozenset(), acceptance=rule, **options)
        if not callable(getattr(base, "generate", None)):  # not a model of transformers
            settings.limits = [self._limit(length) for length in prompts.lengths]
            return check_prompts(self.model, [text.visible() for text in self.texts]), settings
        given = getattr(self.config, "cache_implementation", None)
        own = getattr(base.generation_config, "cache_implementation", None)
        # A checkpoint's own names where keys are kept, which changes tokens only if quantized.
        refuse_cache("quantized" if given is None and own == "quantized" else given, "generate")
        settings.static_cache = given == "static" and len(self.texts) == 1
        settings.rules = rules = [self._rules(text) for text in self.texts]
        settings.limits = [text_rules.max_new_tokens for text_rules in rules]
        settings.stop_token_ids = rules[0].end_token_ids
        for text_rules in rules:
            refuse_settings(text_rules.config, "generate")
        visible = [
            visible_tokens(self.model.target, text.token_ids, _mask_of(text_rules), "generate")
            for text, text_rules in zip(self.texts, rules, strict=True)
        ]
        if self.model.target.decoder_prompt is None:
            shift_positions(self.model, rules)
        return check_prompts(self.model, visible), settings

    def _rule(self) -> Acceptance:
        if self.acceptance is None and self.config is not None and self.config.do_sample:
            base = self.model.target.base
            return sampling_rule(
                lambda name: find_setting(name, base, self.config), len(self.texts)
            )
        return check_rule(self.acceptance)

    def _rules(self, text: TextInput) -> TextRules:
        target = self.model.target
        ends = self.stop_token_ids
        inputs: dict[str, Any] = {}
        length = len(text.token_ids)
        if target.decoder_prompt is not None:
            if ends is None and getattr(self.config, "eos_token_id", None) is None:
                ends = target.stop_token_ids
            states = torch.zeros(1, length, 1, device=target.device)
            prompt = torch.tensor([target.decoder_prompt], device=target.device)
            inputs = {
                "decoder_input_ids": prompt,
                "encoder_outputs": BaseModelOutput(last_hidden_state=states),
            }
            length = prompt.shape[1]
        do_sample = self.acceptance is None and bool(getattr(self.config, "do_sample", False))
        return prepare_rules(
            target.base,
            text.token_ids,
            text.mask,
            merge_settings(self.config, ends, do_sample=do_sample),
            self._limit(length),
            inputs,
            self._stop_strings(),
        )

    def _limit(self, length: int) -> int:
        """Most new tokens of a prompt of `length` tokens."""
        if self.max_new_tokens is not None:
            return int(self.max_new_tokens)
        base = self.model.target.base
        new = find_setting("max_new_tokens", base, self.config)
        if new is not None:
            return int(new)
        total = find_setting("max_length", base, self.config)
        if total is None:
            return MAX_NEW_TOKENS
        if total <= length:
            raise ValueError(
                f"generate: max_length of the generation config is {total}, the prompt has "
                f"{length} tokens; expected a longer max_length; give max_new_tokens="
            )
        return int(total) - length

    def _stop_strings(self) -> list[StopStringCriteria]:
        strings = find_setting("stop_strings", self.model.target.base, self.config)
        if strings is None:
            return []
        if not isinstance(self.tokenizer, PreTrainedTokenizerBase):
            raise ValueError(
                f"generate: stop_strings={strings!r} of the generation config cannot be honored "
                "without a tokenizer; give tokenizer=, one of transformers"
            )
        return [StopStringCriteria(stop_strings=strings, tokenizer=self.tokenizer)]


def _mask_of(rules: TextRules) -> Tensor | None:
    """The mask of a text that `model.generate` prepared; None: nothing is masked."""
    mask = rules.inputs.get("attention_mask")
    if mask is None or not bool(mask.any()):
        return None
    row: Tensor = mask[0].cpu()
    return row
