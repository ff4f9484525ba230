"""Logits processors and stopping criteria of a text, prepared by `model.generate`; its records.

`CustomGenerate` receives them from `model.generate`. `decode.generate` calls the same `generate`
with a callable that records its arguments, so transformers builds them in both cases.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from lattice_bpd.models.hooks import device_of
from lattice_bpd.verify.greedy import DraftCandidates, TokenSelector, greedy_tokens

# Sampling settings; without sampling transformers only warns about them.
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
)  # fmt: skip
# Settings of extra outputs and of the KV cache, which do not change the tokens, and those of the
# length and of stop strings, which callers give.
_UNUSED = {
    "use_cache": False,  # so that no cache is allocated
    "cache_implementation": None,
    "return_dict_in_generate": False,
    "output_attentions": False,
    "output_hidden_states": False,
    "max_length": None,
    "max_new_tokens": None,
    "stop_strings": None,
}


class TokenRecords:
    """Records of one text, filled while it is decoded.

    Args:
        logits: whether to record the target's logits.
        scores: whether to record the logits after processors.
        logprobs: k, the most likely tokens whose log probabilities are recorded; None: none are.

    Attributes:
        logits: (V,) float32 for each token; None: not recorded.
        scores: the same.
        logprobs: for each token {token id: log probability}, the k most likely tokens, best first,
            and the decoded token; None: not recorded.
    """

    def __init__(
        self, *, logits: bool = False, scores: bool = False, logprobs: int | None = None
    ) -> None:
        self.logits: list[Tensor] | None = [] if logits else None
        self.scores: list[Tensor] | None = [] if scores else None
        self.logprobs: list[dict[int, float]] | None = None if logprobs is None else []
        self._count = logprobs or 0

    def cut(self, count: int) -> None:
        """Keep the records of the first `count` tokens."""
        for rows in (self.logits, self.scores, self.logprobs):
            if rows is not None:
                del rows[count:]

    def add(self, scores: Tensor, token: int, rule: Any = None) -> None:
        """Record what a token was selected from.

        Args:
            scores: (V,) float32, processed logits.
            token: the selected token.
            rule: selector of the acceptance rule, which may change their distribution.
        """
        if self.scores is not None:
            self.scores.append(scores)
        if self.logprobs is None:
            return
        distribution = getattr(rule, "distribution", None)
        if distribution is not None:
            scores = torch.from_numpy(distribution(scores))
        every = scores.float().log_softmax(dim=-1)
        best = every.topk(self._count)
        row = dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        row.setdefault(token, float(every[token]))
        self.logprobs.append(row)


class RecordingSelector:
    """Records the target's logits, before a constraint and processors, for each selected token.

    Args:
        inner: the selector.
        logits: the records of its text.

    Attributes:
        ended: whether the last selected token ended the text.
    """

    def __init__(self, inner: TokenSelector, logits: list[Tensor]) -> None:
        self._inner, self._logits, self.ended = inner, logits, inner.ended

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int | None:
        """See TokenSelector."""
        token = self._inner.choose(logits, candidates)
        self.ended = self._inner.ended
        if token is not None:
            self._logits.append(logits.to(torch.float32, copy=True))
        return token


@dataclass
class TextRules:
    """Logits processors, stopping criteria and settings of one text.

    Attributes:
        prompt: (T,) int64, the prompt that logits processors receive, including padding.
        processors: applied to the logits of every token, in order.
        criteria: end the text.
        config: all settings, including defaults.
        inputs: model inputs that `generate` prepared besides input_ids.
        batch: a `batch_rules.BatchSteps`, which takes each step on the whole batch too; None: not
            needed.
    """

    prompt: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    inputs: dict[str, Any] = field(default_factory=dict)
    batch: Any = None

    @property
    def max_new_tokens(self) -> int:
        """Most tokens to decode."""
        limits = [int(c.max_length) for c in self.criteria if isinstance(c, MaxLengthCriteria)]
        return int(min(limits, default=self.config.max_length)) - len(self.prompt)

    @property
    def end_token_ids(self) -> frozenset[int]:
        """The tokens that end the text."""
        ends = [c.eos_token_id.tolist() for c in self.criteria if isinstance(c, EosTokenCriteria)]
        return frozenset(int(token) for tokens in ends for token in tokens)

    @property
    def is_plain(self) -> bool:
        """Whether logits are not processed, and only length and end tokens end the text."""
        kinds = (MaxLengthCriteria, EosTokenCriteria)
        is_free = len(self.processors) == 0 and self.batch is None
        return is_free and all(isinstance(c, kinds) for c in self.criteria)


class ProcessedSelector:
    """Selects tokens from processed logits until a stopping criterion is met; for one text.

    Processors and criteria are called once for each token, in order and with the decoded prefix, as
    in the greedy loop of transformers, so that stateful ones work too.

    Args:
        rules: processors and criteria.
        selector: of the acceptance rule, called with processed logits; None: argmax.
        records: of the text, which are filled; None: nothing is recorded.

    Attributes:
        selector: see Args.
        ended: whether a criterion was met.
        count: tokens of the text.
    """

    def __init__(
        self,
        rules: TextRules,
        selector: TokenSelector | None,
        records: TokenRecords | None = None,
    ) -> None:
        self.selector, self.ended, self._records = selector, False, records
        self._processors, self._criteria = rules.processors, rules.criteria
        self._batch = rules.batch
        self._number = 0 if self._batch is None else self._batch.join(self)
        self._length, self.count = len(rules.prompt), 0
        self._ids = rules.prompt.new_zeros((1, self._length + rules.max_new_tokens))
        self._ids[0, : self._length] = rules.prompt

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int | None:
        """See `lattice_bpd.verify.greedy.TokenSelector`.

        Raises:
            ValueError: NaN among the processed logits.
        """
        if self.ended:
            return None
        processed = self._process(logits)
        if self.selector is None:
            token: int | None = int(greedy_tokens(processed))
        else:
            token = self.selector.choose(processed, candidates)
        if token is None:
            return None
        if self._records is not None:
            self._records.add(processed, token, self.selector)
        self._ids[0, self._length] = token
        self._length, self.count = self._length + 1, self.count + 1
        self.ended = bool(self._criteria(self._prefix(), self._recorded()).all())
        if self._batch is not None:
            self._batch.add(self._number, logits, processed, token)
        return token

    def cut(self, count: int) -> None:
        """End the text after `count` tokens, of which it may have more."""
        self.ended, self.count = True, count
        if self._records is not None:
            self._records.cut(count)

    def _process(self, logits: Tensor) -> Tensor:
        """(V,) float32, the processed logits."""
        scores = logits.to(self._ids.device, torch.float32, copy=True)
        try:
            processed: Tensor = self._processors(self._prefix(), scores.unsqueeze(0))[0]
        except Exception as error:
            if self._batch is None or not self._batch.names:
                raise
            what = f"they fail on one row ({type(error).__name__}: {error})"
            raise self._batch.refusal(what) from error
        return processed

    def _recorded(self) -> Any:
        """The scores of all steps, (1, V) each, as `generate` passes them to criteria, or None."""
        scores = None if self._records is None else self._records.scores
        return None if scores is None else tuple(row[None] for row in scores)

    def _prefix(self) -> Any:
        """(1, T) int64, prompt and decoded tokens, a copy."""
        return self._ids[:, : self._length].clone()


def prepare_rules(
    model: Any,
    prompt: Tensor,
    attention_mask: Tensor | None,
    settings: dict[str, Any],
    inputs: dict[str, Any] | None = None,
    criteria: Sequence[Any] = (),
) -> TextRules:
    """Have `model.generate` prepare the processors and criteria of a text.

    Args:
        model: has the `generate` of transformers.
        prompt: (T,) int64; the source of an encoder-decoder.
        attention_mask: (T,) int64, 0 for masked tokens; None: `generate` infers it.
        settings: see `merge_settings`; with max_new_tokens or max_length.
        inputs: further inputs of the model.
        criteria: additional stopping criteria.
    """
    recorded: dict[str, Any] = {}

    def record(_model: Any, input_ids: Tensor, **given: Any) -> Tensor:
        recorded.update(given, prompt=input_ids[0])
        return input_ids

    call_inputs, device = dict(inputs or {}), device_of(model)
    if attention_mask is not None:
        call_inputs["attention_mask"] = attention_mask[None].to(device)
    model.generate(
        input_ids=prompt[None].to(device),
        custom_generate=record,
        stopping_criteria=StoppingCriteriaList(criteria),
        **call_inputs,
        **settings,
    )
    names = ("prompt", "logits_processor", "stopping_criteria", "generation_config")
    ids, processors, rules, config = (recorded.pop(name) for name in names)
    return TextRules(ids, processors, rules, config, recorded)


def merge_settings(
    config: GenerationConfig | None, end_token_ids: Collection[int] | None, *, do_sample: bool
) -> dict[str, Any]:
    """Settings for `prepare_rules`, without the length; missing ones are taken from the model.

    Args:
        config: the caller's, or None.
        end_token_ids: end a text instead of those of the configs; None: those of the configs.
        do_sample: whether to include the processors of sampling.
    """
    defaults = GenerationConfig()  # type: ignore[no-untyped-call]
    known = vars(defaults).keys() - {"transformers_version", *(() if do_sample else _SAMPLING)}
    settings = {
        name: value
        for name, value in vars(config or defaults).items()
        if value is not None and name in known and not name.startswith("_")
    }
    settings |= {**_UNUSED, "do_sample": do_sample}
    if end_token_ids is not None:
        settings["eos_token_id"] = sorted(end_token_ids) or None
    return settings


def find_setting(name: str, model: Any, config: GenerationConfig | None) -> Any:
    """A setting of the caller's generation config, else of the model's, else None."""
    for source in (config, getattr(model, "generation_config", None)):
        value = getattr(source, name, None)
        if value is not None:
            return value
    return None
