"""`CustomGenerate`: a decoding method for `model.generate` of transformers 5.

    model.generate(**inputs, custom_generate=CustomGenerate(heads, lm=lm))

The model's own `generate` prepares prompts, logits processors and stopping criteria. This class
replaces its greedy loop and returns the same tokens; with `do_sample=True` it samples from the same
distribution. Processors are called once for each decoded token, in order, with the decoded prefix,
as in the greedy loop. Settings that cannot be honored raise a ValueError that names them.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from lattice_bpd.arguments import errors_named
from lattice_bpd.decode.drafters.call_costs import costs_of
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.huggingface.checks import (
    check_positions,
    refuse_inputs,
    refuse_settings,
    refuse_sharded,
    visible_tokens,
)
from lattice_bpd.decode.huggingface.generate import read_config
from lattice_bpd.decode.huggingface.prefill import needs_prefill, prefill
from lattice_bpd.decode.huggingface.sampling_settings import sampling_rule
from lattice_bpd.decode.loop.arguments import Options, ending_stream
from lattice_bpd.decode.loop.decode import DecodeResult, check_rule, count_draft_nodes, run_loop
from lattice_bpd.decode.loop.prompts import check_prompts
from lattice_bpd.decode.loop.text_cache import TextCaches
from lattice_bpd.decode.state.batch_rules import rules_of_rows
from lattice_bpd.decode.state.model import DraftingModel, HeadsOrCallable
from lattice_bpd.decode.state.text_rules import TokenRecords
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import STRATEGIES, DraftConfig
from lattice_bpd.models.lm_call import CACHE_NAMES
from lattice_bpd.models.model_facts import described_once
from lattice_bpd.verify.acceptance.rules import Acceptance
from lattice_bpd.verify.acceptance.sampling import Rejection, Sampled

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_WHERE = "CustomGenerate"
_FIELDS = GenerateDecoderOnlyOutput.__annotations__
_CACHE_OUTPUT = next(name for name in CACHE_NAMES if name in _FIELDS)
_RECORDED = ("scores", "logits")  # outputs of each step that `generate` may return


def find_arguments(method: Any) -> dict[str, Any]:
    """The arguments of the `generate` call that calls `method`, else empty.

    transformers 5.20 puts the prompt into `streamer`, but passes neither it nor `assistant_model`
    to the callable, so they are read from the frame of the call.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _GENERATE and frame.f_locals.get("custom_generate") is method:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


class CustomGenerate:
    """A decoding method for `model.generate`; see the module.

    Args:
        heads: see `lattice_bpd.decode.generate`; None if the drafter needs none.
        drafter: see `lattice_bpd.decode.generate`, also for lm, layout and options.
        lm: n-gram LM over the target's token ids, or the small causal LM of "draft_model".
        layout: verification layout: "auto", "tree", "rows", or "chain" for one draft in each step.
        acceptance: acceptance rule, applied to processed logits. With a lossy rule the output
            differs from plain `generate`, and `lossless` of the results is False. None: Exact, or
            with `do_sample=True` Sampled, with seeds from torch's default generator.
        constraint: constraint on the new tokens of each sequence; the output is that of plain
            `generate` with a logits processor that masks the tokens that are not allowed.
        cpu_kernels: see `lattice_bpd.decode.generate`.
        options: fields of `DraftConfig` by name that the strategy uses.

    Attributes:
        results: the DecodeResult of each sequence of the last call, with statistics.

    Raises:
        ValueError: see `generate`.
        TypeError: an unknown option, or acceptance is not an acceptance rule.
    """

    def __init__(
        self,
        heads: HeadsOrCallable | None = None,
        drafter: str | DraftConfig | Drafter = "mixture",
        *,
        lm: Any = None,
        layout: str = "auto",
        acceptance: Acceptance | None = None,
        constraint: Any = None,
        cpu_kernels: bool = True,
        **options: Any,
    ) -> None:
        given: Any = heads
        if isinstance(given, str) and given in STRATEGIES:
            raise TypeError(
                f"CustomGenerate: heads is {heads!r}, the name of a strategy; give "
                f"CustomGenerate(drafter={heads!r})"
            )
        if acceptance is not None:
            with errors_named(_WHERE, "decode"):
                check_rule(acceptance)
        self.acceptance, self.constraint = acceptance, constraint
        self.heads, self.layout, self.cpu_kernels = heads, layout, cpu_kernels
        self.config = read_config(_WHERE, drafter, options, lm)
        self.drafter: Any = drafter if self.config is None else None
        self.sources = DraftSources(lm, heads is not None)
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
        """Decode; called by `generate`.

        Args:
            model: the target.
            input_ids: (B, T) int64, padded on the left.
            logits_processor: prepared by `generate`.
            stopping_criteria: prepared by `generate`.
            generation_config: settings.
            model_kwargs: attention_mask, pixel_values and other model inputs.

        Returns:
            (B, T + new) int64; with return_dict_in_generate a GenerateDecoderOnlyOutput with it,
            and with (B, V) float32 of each step for output_scores and output_logits.

        Raises:
            ValueError: a setting, input or processor that cannot be honored.
        """
        caller = find_arguments(self)
        streamer = caller.get("streamer")
        with (
            ending_stream(streamer),
            errors_named(_WHERE, "decode", "generate", "make_drafter"),
            described_once(),
        ):
            if caller.get("assistant_model") is not None:
                raise ValueError(
                    "CustomGenerate: assistant_model cannot be honored; give "
                    "CustomGenerate(drafter='draft_model', lm=...) instead"
                )
            drafting = DraftingModel(model, self.heads)
            drafting.require_causal("CustomGenerate")
            refuse_settings(generation_config)
            refuse_inputs(model, input_ids, model_kwargs)
            refuse_sharded(model)
            rules = rules_of_rows(
                input_ids, logits_processor, stopping_criteria, generation_config, streamer
            )
            has_outputs = generation_config.return_dict_in_generate
            wanted = [
                name for name in _RECORDED
                if has_outputs and getattr(generation_config, f"output_{name}")
            ]  # fmt: skip
            records = [TokenRecords(**dict.fromkeys(wanted, True)) for _ in rules]
            options = Options(
                limits=[row.max_new_tokens for row in rules],
                limited_by_positions=[False] * len(rules),
                rules=rules,
                records=records if wanted else None,
                caches=_text_caches(generation_config, model_kwargs, len(rules)),
                stop_token_ids=rules[0].end_token_ids,
                constraint=self.constraint,
                cpu_kernels=self.cpu_kernels,
                layout=self.layout,
                streamer=streamer if len(rules) == 1 else None,
                acceptance=self._rule(generation_config, len(rules)),
            )
            self.results = self._decode(drafting, input_ids, model_kwargs, options)
        sequences = _append(
            input_ids, [result.token_ids for result in self.results], generation_config
        )
        if not generation_config.return_dict_in_generate:
            return sequences
        outputs: dict[str, Any] = {
            name: _by_step([getattr(row, name) for row in records]) for name in wanted
        }
        if options.caches is not None and options.caches.refusal is None:
            outputs[_CACHE_OUTPUT] = options.caches.caches[0]
        return GenerateDecoderOnlyOutput(sequences=sequences, **outputs)  # type: ignore[arg-type]

    def _decode(
        self,
        drafting: DraftingModel,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        options: Options,
    ) -> list[DecodeResult]:
        """Decode the rows of input_ids; see `__call__`."""
        drafter = self.drafter
        if self.config is not None:
            base = drafting.target.base
            sources = replace(
                self.sources, costs=costs_of(base, cpu_kernels=self.cpu_kernels),
                has_heads=drafting.heads is not None,
            )  # fmt: skip
            drafter = make_drafter(self.config, sources)
        rows = _visible_rows(drafting, input_ids, model_kwargs)
        prompts = check_prompts(drafting, rows, beyond_positions=True)
        options.max_draft_nodes = count_draft_nodes(drafter, drafting)
        if needs_prefill(drafting.target.base, model_kwargs):
            options.prefill = partial(prefill, drafting, input_ids, model_kwargs, prompts.lengths)
        else:
            check_positions(rows, model_kwargs)
        return run_loop(drafting, prompts, [drafter] * len(rows), options)

    def _rule(self, config: GenerationConfig, count: int) -> Acceptance:
        """The given acceptance rule, else greedy or sampling."""
        if not config.do_sample:
            return check_rule(self.acceptance)
        if self.acceptance is None:
            return sampling_rule(lambda name: getattr(config, name, None), count)
        if not isinstance(self.acceptance, (Sampled, Rejection)):
            raise ValueError(
                f"CustomGenerate: do_sample=True, but the rule {self.acceptance.name!r} does not "
                "sample; leave out do_sample or acceptance"
            )
        return self.acceptance


def _visible_rows(
    drafting: DraftingModel, input_ids: Tensor, model_kwargs: dict[str, Any]
) -> list[Tensor]:
    """The tokens of each row that are not masked."""
    mask = model_kwargs.get("attention_mask")
    has_prefill = needs_prefill(drafting.target.base, model_kwargs)
    masks = [None] * len(input_ids) if mask is None else list(mask)
    rows = [
        visible_tokens(drafting.target, row, used, "CustomGenerate")
        for row, used in zip(input_ids, masks, strict=True)
    ]
    if (
        has_prefill
        and mask is not None
        and any(bool((used[-len(row) :] == 0).any()) for row, used in zip(rows, mask, strict=True))
    ):
        raise ValueError(
            "CustomGenerate: attention_mask hides tokens between others in a prompt that the model "
            "prepares itself; expected padding on the left only; set padding_side='left'"
        )
    return rows


def _text_caches(
    config: GenerationConfig, model_kwargs: dict[str, Any], count: int
) -> TextCaches | None:
    """The caller's cache, or that of an output that has one."""
    cache = next((model_kwargs[name] for name in CACHE_NAMES if name in model_kwargs), None)
    is_given = getattr(cache, "_is_user_defined", False) or (
        isinstance(cache, DynamicCache) and any(map(_has_keys, cache.layers))
    )
    if is_given:
        return TextCaches(cache, count)
    has_output = config.return_dict_in_generate and config.use_cache is not False
    return TextCaches(DynamicCache(), count) if has_output else None


def _has_keys(layer: Any) -> bool:
    """Whether a layer of a KV cache covers tokens; layers of a recurrent state have no keys."""
    keys = getattr(layer, "keys", None)
    return keys is not None and keys.numel() > 0


def _by_step(records: list[list[Tensor]]) -> tuple[Tensor, ...]:
    """(B, V) of each step, from the (V,) of the steps of each of B texts; NaN after its end."""
    longest = max(records, key=len)
    if not longest:
        return ()
    padding = torch.full_like(longest[0], torch.nan)
    return tuple(torch.stack(rows) for rows in zip_longest(*records, fillvalue=padding))


def _append(input_ids: Tensor, decoded: list[list[int]], config: GenerationConfig) -> Tensor:
    """Prompts and decoded tokens, padded on the right."""
    longest = max(map(len, decoded))
    padding = getattr(config, "_pad_token_tensor", None)
    fill = 0 if padding is None else int(padding)
    rows = [tokens + [fill] * (longest - len(tokens)) for tokens in decoded]
    return torch.cat([input_ids, torch.tensor(rows, device="cpu").to(input_ids)], dim=1)
