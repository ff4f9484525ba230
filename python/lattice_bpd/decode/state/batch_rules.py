"""Logits processors and stopping criteria of a batch whose rows progress at different speeds.

`generate` calls processors and criteria on the whole batch, once for each step. Here each row has
its own and calls them at its own steps. Those in `_ROW_WISE` do the same to a row alone. With any
other, a `BatchCheck` also calls those of `generate` on the whole batch, and refuses a difference.
"""

from __future__ import annotations

import copy
from collections import deque
from functools import partial
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import logits_process

from lattice_bpd.decode.state.text_rules import TextRules

# Functions of a row's own tokens and scores, without state; `_own_parts` has what depends on rows.
_ROW_WISE = frozenset(
    getattr(logits_process, name, None)
    for name in (
        "EncoderNoRepeatNGramLogitsProcessor", "EncoderRepetitionPenaltyLogitsProcessor",
        "EpsilonLogitsWarper", "EtaLogitsWarper", "ExponentialDecayLengthPenalty",
        "ForcedBOSTokenLogitsProcessor", "ForcedEOSTokenLogitsProcessor",
        "InfNanRemoveLogitsProcessor", "LogitNormalization", "MinLengthLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor", "MinPLogitsWarper", "NoBadWordsLogitsProcessor",
        "NoRepeatNGramLogitsProcessor", "RepetitionPenaltyLogitsProcessor",
        "SequenceBiasLogitsProcessor", "SuppressTokensAtBeginLogitsProcessor",
        "SuppressTokensLogitsProcessor", "TemperatureLogitsWarper", "TopHLogitsWarper",
        "TopKLogitsWarper", "TopPLogitsWarper", "TypicalLogitsWarper", "WatermarkLogitsProcessor",
    )
) | {EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria, StopStringCriteria}  # fmt: skip
_TOLERANCE = 1e-5  # of scores; kernels may sum a batch and a row in different orders


def rules_of_rows(
    input_ids: Tensor,
    limit: int,
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
) -> list[TextRules]:
    """The rules of each row of a batch; those of several rows may share a BatchCheck.

    Args:
        input_ids: (B, T) int64, padded on the left.
        limit: most tokens to decode.
        processors: of the batch, prepared by `generate`.
        criteria: the same.
        config: settings.

    Raises:
        ValueError: custom criteria without an end-of-text token, or an object that cannot be
            copied for each row.
    """
    count = len(input_ids)
    if count == 1:
        return [TextRules(input_ids[0], limit, processors, criteria, config)]
    _refuse_endless(criteria, count)
    other = [item for item in (*processors, *criteria) if type(item) not in _ROW_WISE]
    check = BatchCheck(input_ids, processors, criteria, config, other) if other else None
    return [
        TextRules(
            row,
            limit,
            LogitsProcessorList(_own(item, number, count) for item in processors),
            StoppingCriteriaList(_own(item, number, count) for item in criteria),
            config,
            check=None if check is None else RowCheck(check, number),
        )
        for number, row in enumerate(input_ids)
    ]


class _Step(NamedTuple):
    """What a row did in one step."""

    logits: Tensor
    scores: Tensor
    token: int
    ended: bool


class BatchCheck:
    """Compares what processors and criteria do to the whole batch with what they did to each row.

    A step is compared as soon as every row has taken it or has ended. Rows that have ended repeat
    their last logits.

    Args:
        input_ids: (B, T) int64, the prompts.
        processors: of `generate`, called once for each step.
        criteria: the same.
        config: settings, with the token that pads rows that have ended.
        checked: those that are not known to be row-wise, for error messages.
    """

    def __init__(
        self,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        checked: list[Any],
    ) -> None:
        self._ids, self._processors, self._criteria = input_ids, processors, criteria
        self._names = ", ".join(sorted({_name(item) for item in checked}))
        padding = getattr(config, "_pad_token_tensor", None)
        self._fill = 0 if padding is None else int(padding)
        self._steps: list[deque[_Step]] = [deque() for _ in input_ids]
        self._last: list[Tensor | None] = [None] * len(input_ids)
        self._ended = [False] * len(input_ids)
        records = config.return_dict_in_generate and config.output_scores
        self._scores: Any = () if records else None  # what `generate` passes to criteria

    def add(self, number: int, step: _Step) -> None:
        """Add a step of a row.

        Raises:
            ValueError: a step differs on the whole batch.
        """
        self._steps[number].append(step)
        self._ended[number] = step.ended
        self._compare_complete()

    def finish(self) -> None:
        """Compare the remaining steps, after all rows have ended.

        Raises:
            ValueError: a step differs on the whole batch.
        """
        self._ended = [True] * len(self._ended)
        self._compare_complete()

    def refusal(self, what: str) -> ValueError:
        """The error that reports a difference."""
        return ValueError(
            f"CustomGenerate: {self._names} cannot be honored for {len(self._steps)} sequences at "
            f"once: {what}; expected the same for each row alone, because rows progress at "
            "different speeds; generate them one at a time"
        )

    def _compare_complete(self) -> None:
        while any(self._steps) and all(
            steps or ended for steps, ended in zip(self._steps, self._ended, strict=True)
        ):
            self._compare([steps.popleft() if steps else None for steps in self._steps])

    def _compare(self, steps: list[_Step | None]) -> None:
        """Compare one step; None for rows that have ended."""
        self._last = [
            last if step is None else step.logits
            for step, last in zip(steps, self._last, strict=True)
        ]
        some = next(logits for logits in self._last if logits is not None)
        logits = torch.stack([torch.zeros_like(some) if row is None else row for row in self._last])
        ids: Any = self._ids.clone()
        scores = self._processors(ids, logits)
        if self._scores is not None:
            self._scores += (scores,)
        tokens = [self._fill if step is None else step.token for step in steps]
        self._ids = torch.cat([self._ids, self._ids.new_tensor(tokens)[:, None]], dim=1)
        ids = self._ids.clone()
        ended = self._criteria(ids, self._scores)
        for number, step in enumerate(steps):
            if step is None:
                continue
            if not torch.allclose(scores[number], step.scores, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise self.refusal(f"they change the scores of row {number} by other rows")
            if bool(ended[number]) != step.ended:
                raise self.refusal(f"they end row {number} by other rows")


class RowCheck:
    """A BatchCheck for the steps of one row.

    Args:
        batch: of all rows.
        number: index of the row.
    """

    def __init__(self, batch: BatchCheck, number: int) -> None:
        self.batch, self._number = batch, number

    def add(self, logits: Tensor, scores: Tensor, token: int, *, ended: bool) -> None:
        """See `BatchCheck.add`."""
        self.batch.add(self._number, _Step(logits, scores, token, ended))

    def refusal(self, error: Exception) -> ValueError:
        """The error for an exception of a processor or criterion that was called on the row."""
        return self.batch.refusal(f"they fail on one row ({type(error).__name__}: {error})")


def _refuse_endless(criteria: StoppingCriteriaList, count: int) -> None:
    """Raise ValueError if plain `generate` would continue rows until all of them are finished."""
    if any(isinstance(item, EosTokenCriteria) for item in criteria):
        return
    names = [_name(item) for item in criteria if not isinstance(item, MaxLengthCriteria)]
    if names:
        raise ValueError(
            f"CustomGenerate: {', '.join(names)} cannot be honored for {count} sequences at once "
            "without an end-of-text token; set eos_token_id, or generate them one at a time"
        )


def _own(item: Any, row: int, count: int) -> Any:
    """A processor or criterion for one row of a batch."""
    if type(item) not in _ROW_WISE:
        item = _copy(item)
    parts = _own_parts(item, row, count)
    if parts:
        item = copy.copy(item)
        vars(item).update(parts)
    return item


def _own_parts(item: Any, row: int, count: int) -> dict[str, Any]:
    """The attributes of a processor that have an entry for each row, for one row of `count`."""
    parts: dict[str, Any] = {}
    lengths = getattr(item, "prompt_ignore_length", None)
    if isinstance(lengths, Tensor):  # since transformers 5.23 the padding of each row
        parts["prompt_ignore_length"] = lengths[row : row + 1]
    if isinstance(item, logits_process.EncoderRepetitionPenaltyLogitsProcessor):
        source = row * len(item.encoder_input_ids) // count
        parts["encoder_input_ids"] = item.encoder_input_ids[source : source + 1]
    elif isinstance(item, logits_process.EncoderNoRepeatNGramLogitsProcessor):
        source = row * item.batch_size // count
        parts |= {"generated_ngrams": [item.generated_ngrams[source]], "batch_size": 1}
    elif isinstance(item, logits_process.PrefixConstrainedLogitsProcessor):
        allowed = partial(_call_for, _copy(item._prefix_allowed_tokens_fn), row // item._num_beams)
        parts |= {"_prefix_allowed_tokens_fn": allowed, "_num_beams": 1}
    return parts


def _call_for(function: Any, batch_id: int, _row: int, token_ids: Tensor) -> Any:
    """The tokens that a `prefix_allowed_tokens_fn` allows in the batch's row `batch_id`."""
    return function(batch_id, token_ids)


def _copy(item: Any) -> Any:
    """A copy with a state of its own; modules, such as a model, are shared.

    Raises:
        ValueError: it cannot be copied.
    """
    cells = (item.__closure__ or ()) if isinstance(item, FunctionType) else ()
    parts = [*getattr(item, "__dict__", {}).values(), *(cell.cell_contents for cell in cells)]
    shared: dict[int, Any] = {id(part): part for part in parts if isinstance(part, nn.Module)}
    try:
        if not isinstance(item, FunctionType):
            return copy.deepcopy(item, shared)
        closure = tuple(CellType(copy.deepcopy(cell.cell_contents, shared)) for cell in cells)
        own = FunctionType(
            item.__code__, item.__globals__, item.__name__, item.__defaults__, closure or None
        )
        own.__kwdefaults__ = item.__kwdefaults__
        return own
    except Exception as error:
        raise ValueError(
            f"CustomGenerate: {_name(item)} cannot be copied for each row of a batch "
            f"({type(error).__name__}: {error}); expected an object that copy.deepcopy copies; "
            "generate the texts one at a time"
        ) from error


def _name(item: Any) -> str:
    return str(getattr(item, "__name__", type(item).__name__))
