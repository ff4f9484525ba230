"""`generate`: decodes like `model.generate`, with drafts of any strategy."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase, StopStringCriteria
from transformers.modeling_outputs import BaseModelOutput

from lattice_bpd.arguments import check_int, errors_named
from lattice_bpd.decode.drafters.call_costs import costs_of
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.huggingface.checks import refuse_cache, refuse_settings, visible_tokens
from lattice_bpd.decode.huggingface.prefill import shift_positions
from lattice_bpd.decode.huggingface.sampling_settings import sampling_rule
from lattice_bpd.decode.huggingface.text_inputs import (
    TextInput,
    check_token_types,
    read_prompts,
)
from lattice_bpd.decode.loop.arguments import (
    MAX_NEW_TOKENS,
    Options,
    check_stop_tokens,
    ending_stream,
)
from lattice_bpd.decode.loop.decode import check_rule, decode_prompts
from lattice_bpd.decode.loop.prompts import Prompts, check_prompts
from lattice_bpd.decode.loop.text_cache import TextCaches
from lattice_bpd.decode.state.model import DraftingModel, HeadsOrCallable
from lattice_bpd.decode.state.text_rules import (
    TextRules,
    TokenRecords,
    find_setting,
    merge_settings,
    prepare_rules,
)
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import STRATEGIES, DraftConfig, check_used
from lattice_bpd.models.model_facts import described_once
from lattice_bpd.verify.acceptance.rules import Acceptance


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

    def prepare(self, options: dict[str, Any]) -> tuple[Prompts, Options]:
        """Prompts and options of one run, with new processors and criteria.

        Raises:
            ValueError: prompts or settings that cannot be decoded.
            TypeError: prompts that are not integers, or a model without `generate`.
        """
        base: Any = self.model.target.base
        if not callable(getattr(base, "generate", None)):
            raise TypeError(
                f"generate: {type(base).__name__} has no method `generate`, which prepares "
                "settings and logits processors; expected a GenerationMixin; use "
                "lattice_bpd.decode.decode"
            )
        check_prompts(self.model, [text.visible() for text in self.texts], beyond_positions=True)
        settings = Options([], [], acceptance=self._rule(), **options)
        given = getattr(self.config, "cache_implementation", None)
        own = getattr(base.generation_config, "cache_implementation", None)
        # A checkpoint's own names where keys are kept, which changes tokens only if quantized.
        refuse_cache("quantized" if given is None and own == "quantized" else given, "generate")
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
        if target.decoder_prompt is not None:
            if ends is None and getattr(self.config, "eos_token_id", None) is None:
                ends = target.stop_token_ids
            states = torch.zeros(1, len(text.token_ids), 1, device=target.device)
            prompt = torch.tensor([target.decoder_prompt], device=target.device)
            inputs = {
                "decoder_input_ids": prompt,
                "encoder_outputs": BaseModelOutput(last_hidden_state=states),
            }
        do_sample = self.acceptance is None and bool(getattr(self.config, "do_sample", False))
        return prepare_rules(
            target.base,
            text.token_ids,
            text.mask,
            merge_settings(self.config, ends, do_sample=do_sample) | self._length(),
            inputs,
            self._stop_strings(),
        )

    def _length(self) -> dict[str, int]:
        """The setting of the length: that of the call, of the generation config, or the default."""
        base, new = self.model.target.base, self.max_new_tokens
        if new is None:
            new = find_setting("max_new_tokens", base, self.config)
        total = find_setting("max_length", base, self.config)
        if new is None and total is not None:
            return {"max_length": total}
        return {"max_new_tokens": MAX_NEW_TOKENS if new is None else new}

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


def generate(
    model: Any,
    input_ids: Any = None,
    drafter: str | DraftConfig | Drafter | Sequence[Drafter] = "mixture",
    *,
    lm: Any = None,
    heads: HeadsOrCallable | None = None,
    tokenizer: Any = None,
    attention_mask: Any = None,
    token_type_ids: Any = None,
    generation_config: GenerationConfig | None = None,
    max_new_tokens: int | None = None,
    stop_token_ids: Collection[int] | int | None = None,
    acceptance: Acceptance | None = None,
    constraint: Any = None,
    certificate: bool | str = False,
    logprobs: int | None = None,
    cache: Any = None,
    layout: str = "auto",
    streamer: Any = None,
    cpu_kernels: bool = True,
    **options: Any,
) -> Any:
    """Decode one text or several; with a lossless rule the output is the target's own.

        lm = NGramLM.load("corpus.lm")
        result = generate(model, prompt_ids, heads=load_heads(folder), lm=lm)
        result = generate(model, prompt_ids, heads=any_callable, lm=lm, max_nodes=18)
        result = generate(model, text, tokenizer=tokenizer, heads=heads, lm=lm)
        results = generate(model, **tokenizer(texts, return_tensors="pt", padding=True), lm=lm)

    The output is that of `model.generate(input_ids, do_sample=False)`: the model's generation
    config is honored, with its end tokens, penalties, suppressed and forced tokens. Settings that
    cannot be honored, such as beam search, raise a ValueError.

    Args:
        model: a causal LM or an encoder-decoder of `transformers`, or a target of either.
        input_ids: one prompt: (T,) ints, or text with a tokenizer; or several: (B, T) ints, or a
            list of prompts of any lengths. For an encoder-decoder the source.
        drafter: the name of a strategy (see `DraftConfig`), a DraftConfig, or a drafter object (a
            list has one for each prompt).
        lm: n-gram LM over the target's token ids; "mixture" takes several. "neural" also
            takes a small causal LM of `transformers` with the target's tokenizer, or any
            TransitionScorer; "draft_model" needs such a causal LM.
        heads: callable, hidden states (B, D) -> logits (B, H, V) of the tokens after the next;
            BlockwiseHeads, or DraftHeads; `load_heads` reads them. None: no heads.
        tokenizer: of `transformers` or `tokenizers`; encodes prompts and decodes the output into
            `result.text`. Stop strings need one of `transformers`.
        attention_mask: of the shape of input_ids, 0 for masked tokens; None: `model.generate`
            infers it.
        token_type_ids: accepted if they are zeros and the model has token types.
        generation_config: settings that override the model's own unless they are None. With
            do_sample=True the text is sampled, with seeds from torch's default generator.
        max_new_tokens: most tokens to decode; None: max_new_tokens or max_length of the generation
            config, else 64.
        stop_token_ids: a text ends after the first of these, which is kept; an empty list: no
            token does; None: the eos_token_id of the generation config.
        acceptance: acceptance rule, applied to processed logits, see
            `lattice_bpd.verify.Acceptance`; None: Exact, even if the model's own generation config
            has do_sample=True. For a lossy rule, `lossless` of the result is False and its
            statistics report the regret.
        constraint: constraint on the new tokens, one of lattice-bpd-constraints. The output is
            greedy among the allowed tokens.
        certificate: record every token's margin, and check tokens that rounding could have changed
            by plain calls; see `Certificate`. For the exact rule only.
        logprobs: k; `result.logprobs` has {token id: log probability} for each decoded token: the
            k most likely tokens, best first, and the decoded token. The distribution is that which
            the token was selected from: after a constraint, processors, and temperature, top-k,
            .. of a sampling rule. None: not recorded.
        cache: the `result.cache` of the previous turn, or a list of them for several prompts; only
            the tokens after their common prefix are read. It is updated in place. True, or an
            empty DynamicCache, for the first turn. None: `result.cache` is None.
        layout: verification layout: "auto", "tree", "rows", or "chain" for one draft in each step;
            see docs/exactness.md.
        streamer: of `transformers`, for one prompt; receives the prompt, then each token, then the
            end, also after an error.
        cpu_kernels: whether calls of this decoding use the core's attention and linear layers where
            the model is on a CPU and fits them, see `use_cpu_kernels`; draft models too. The model
            is afterwards as it was. False: the model as it is.
        options: fields of `DraftConfig` by name, such as max_nodes, top_k, alpha or temperature;
            they override the config. Fields of a DraftConfig that its strategy does not use are
            ignored; options by name are not.

    Returns:
        A DecodeResult for one prompt; for several a list of them, in order.

    Raises:
        ValueError: an unknown strategy; heads or an LM that is missing; an option or, with a
            strategy by name, an LM that the strategy does not use; options out of range; an LM,
            heads or a constraint of another vocabulary; a model in training mode with dropout; or
            see `decode`.
        TypeError: not a supported model, an LM of another type, heads that are not callable, or an
            unknown option.
        MemoryError: a call did not fit into memory.
    """
    named = errors_named("generate", "decode", "make_drafter")
    with ending_stream(streamer), named, described_once():
        texts, several = read_prompts(input_ids, attention_mask, tokenizer)
        target = DraftingModel(model, heads)
        if max_new_tokens is not None:
            check_int("decode: max_new_tokens", max_new_tokens, 1)
        if logprobs is not None:
            logprobs = check_int("generate: logprobs", logprobs, 0, target.vocab_size)
        if stop_token_ids is not None:
            stop_token_ids = check_stop_tokens(stop_token_ids, target.vocab_size)
        if generation_config is not None and not isinstance(generation_config, GenerationConfig):
            raise TypeError(
                f"generate: generation_config is a {type(generation_config).__name__}; expected a "
                "GenerationConfig of transformers, such as GenerationConfig(repetition_penalty=1.2)"
            )
        request = Request(
            target, texts, generation_config, max_new_tokens, stop_token_ids, acceptance, tokenizer
        )
        check_token_types(token_type_ids, target.target.base)
        decoding = {
            "layout": layout, "streamer": streamer, "certificate": certificate,
            "constraint": constraint, "cpu_kernels": cpu_kernels,
            "caches": None if cache is None else TextCaches(cache, len(texts)),
            "records": logprobs if logprobs is None else [
                TokenRecords(logprobs=logprobs) for _ in texts
            ],
        }  # fmt: skip
        config = read_config("generate", drafter, options, lm)
        if config is None:
            chosen: Any = drafter
        else:
            costs = costs_of(target.target.base, cpu_kernels=cpu_kernels)
            sources = DraftSources(lm, target.heads is not None, costs=costs)
            chosen = make_drafter(config, sources)
        prompts, settings = request.prepare(decoding)
        results = decode_prompts(target, prompts, chosen, settings)
        for result in results:
            if tokenizer is not None:
                result.text = str(tokenizer.decode(result.token_ids, skip_special_tokens=True))
        return results if several else results[0]


def read_config(
    where: str, drafter: Any, options: dict[str, Any], lm: Any = None
) -> DraftConfig | None:
    """The config for a strategy's name or a config; None for a drafter object.

    Raises:
        TypeError: another type, or options or an LM given with a drafter object.
        ValueError: an unknown strategy, options out of range, an option that the strategy does not
            use, or an LM that a strategy given by its name does not use.
    """
    if "strategy" in options:
        raise TypeError(
            f"{where}: strategy={options['strategy']!r}; expected the strategy as the argument "
            "`drafter`, by its name or in a DraftConfig"
        )
    if isinstance(drafter, str) and drafter not in STRATEGIES and Path(drafter).exists():
        raise ValueError(f"{where}: drafter is a path; expected load_drafter({drafter!r})")
    if isinstance(drafter, (str, DraftConfig)):
        _check_names(where, options)
        config = DraftConfig.make(where, drafter, options)
        check_used(where, config.strategy, options)
        is_lm_unused = lm is not None and not STRATEGIES[config.strategy].uses("lm")
        if isinstance(drafter, str) and is_lm_unused:
            raise ValueError(
                f"{where}: strategy {drafter!r} does not use an LM; leave lm out, or use 'mixture'"
            )
        return config
    each = drafter if isinstance(drafter, (list, tuple)) else [drafter]
    if not all(callable(getattr(one, "propose", None)) for one in each):
        raise TypeError(
            f"{where}: drafter is {drafter!r}; expected the name of a strategy, a DraftConfig, or "
            "a drafter with a method `propose`"
        )
    given = [*options, *(() if lm is None else ("lm",))]
    if given:
        raise TypeError(
            f"{where}: {', '.join(given)} given with a drafter; expected them at its construction; "
            "leave them out"
        )
    return None


def _check_names(where: str, options: dict[str, Any]) -> None:
    """Raise TypeError for a generation setting or argument among the drafting options."""
    for name in (one for one in options if not hasattr(DraftConfig, one)):
        settings = GenerationConfig().to_dict()  # type: ignore[no-untyped-call]
        own = () if where == "CustomGenerate" else inspect.signature(generate).parameters
        near = difflib.get_close_matches(name, (*own, *vars(DraftConfig)), n=1, cutoff=0.5)
        if name not in settings and near and near[0] in own:
            raise TypeError(f"{where}: unknown option {name!r}; did you mean {near[0]}=?")
        if name in settings:
            given = (
                f"model.generate(.., {name}=..)"
                if where == "CustomGenerate"
                else f"generation_config=GenerationConfig({name}=..)"
            )
            sample = "; or, to sample, acceptance=Sampled(..)" if name == "do_sample" else ""
            raise TypeError(
                f"{where}: {name} is a generation setting, no drafting option; pass it as "
                f"{given}{sample}"
            )
