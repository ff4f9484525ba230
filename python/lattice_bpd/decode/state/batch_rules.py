"""Logits processors and stopping criteria of a batch whose rows progress at different speeds.

`generate` calls processors and criteria on the whole batch, once for each step. Here each row has
its own and calls them at its own steps. Those in `_ROW_WISE` do the same to a row alone. The others
belong to the `BatchSteps`, which takes a step when every row has: processors of a row that do
something else than those of `generate` on the whole batch are refused, and criteria are called as
by `generate`. What a row has decoded beyond its end is cut.
"""

from __future__ import annotations

import copy
from collections import deque
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

from lattice_bpd.decode.state.text_rules import ProcessedSelector, TextRules

# Functions of a row's own tokens and scores, without state; `_own` has what depends on rows.
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
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    streamer: Any = None,
) -> list[TextRules]:
    """The rules of each row of a batch; those of several rows may share a BatchSteps.

    Args:
        input_ids: (B, T) int64, padded on the left.
        processors: of the batch, prepared by `generate`.
        criteria: the same.
        config: settings.
        streamer: receives the tokens (B,) of each step of a batch; None: nothing does.

    Raises:
        ValueError: a processor that cannot be copied for each row.
    """
    count = len(input_ids)
    if count == 1:
        return [TextRules(input_ids[0], processors, criteria, config)]
    own_criteria, of_batch = StoppingCriteriaList(), StoppingCriteriaList()
    ends_rows = any(hasattr(item, "eos_token_id") for item in criteria)  # as `generate` asks
    for item in criteria:  # where none ends a row, the rows end together
        is_own = type(item) in _ROW_WISE and (ends_rows or isinstance(item, MaxLengthCriteria))
        (own_criteria if is_own else of_batch).append(item)
    batch = None
    if of_batch or streamer is not None or any(type(one) not in _ROW_WISE for one in processors):
        batch = BatchSteps(input_ids, processors, of_batch, config, streamer, ends_rows=ends_rows)
    return [
        TextRules(
            row,
            LogitsProcessorList(_own(item, number, count) for item in processors),
            own_criteria,
            config,
            batch=batch,
        )
        for number, row in enumerate(input_ids)
    ]


class _Step(NamedTuple):
    """What a row did in one step, and where they are needed its logits and scores."""

    token: int
    logits: Tensor | None = None
    scores: Tensor | None = None


class BatchSteps:
    """Takes each step of `generate` on the whole batch, once all rows have taken it or have ended.

    Args:
        input_ids: (B, T) int64, the prompts.
        processors: of `generate`, called once for each step if one is not known to be row-wise.
        criteria: of the whole batch, called once for each step.
        config: settings, with the token that pads rows that have ended.
        streamer: receives the tokens (B,) of each step; None: nothing does.
        ends_rows: whether rows end one by one, as with an end-of-text token; else all together.

    Attributes:
        names: of the processors that are not known to be row-wise, for error messages.
    """

    def __init__(
        self,
        input_ids: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: Any,
        *,
        ends_rows: bool,
    ) -> None:
        self._ids, self._processors, self._criteria = input_ids, processors, criteria
        self._streamer, self._ends_rows = streamer, ends_rows
        self.names = sorted({_name(item) for item in processors if type(item) not in _ROW_WISE})
        padding = getattr(config, "_pad_token_tensor", None)
        self._fill = 0 if padding is None else int(padding)
        self._rows: list[ProcessedSelector] = []
        self._steps: list[deque[_Step]] = [deque() for _ in input_ids]
        self._last: list[_Step | None] = [None] * len(input_ids)
        self._flagged = torch.zeros(len(input_ids), dtype=torch.bool, device="cpu")
        self._count = 0  # steps taken
        records = bool(config.return_dict_in_generate and config.output_scores)
        self._scores: Any = () if records else None  # what `generate` passes to criteria

    def join(self, row: ProcessedSelector) -> int:
        """Add the selector of the next row; returns its number."""
        self._rows.append(row)
        return len(self._rows) - 1

    def add(self, number: int, logits: Tensor, scores: Tensor, token: int) -> None:
        """Add a step of a row, which may end it or others.

        Args:
            number: of the row.
            logits: (V,) float, the target's.
            scores: (V,) float32, after its processors.
            token: that it selected.

        Raises:
            ValueError: processors do something else to the whole batch.
        """
        step = _Step(token, scores=None if self._scores is None else scores)
        if self.names:
            raw = logits.to(scores.device, torch.float32, copy=True)
            step = step._replace(logits=raw, scores=scores)
        self._steps[number].append(step)
        self._take_complete()

    def finish(self) -> None:
        """Take the remaining steps, after all rows have ended.

        Raises:
            ValueError: see `add`.
        """
        for row in self._rows:
            row.ended = True
        self._take_complete()

    def refusal(self, what: str) -> ValueError:
        """The error for processors that do not do the same to a row alone."""
        return ValueError(
            f"CustomGenerate: {', '.join(self.names)} cannot be honored for {len(self._steps)} "
            f"sequences at once: {what}; expected the same for each row alone, because rows "
            "progress at different speeds; generate them one at a time"
        )

    def _take_complete(self) -> None:
        while any(self._steps) and all(
            steps or row.ended for steps, row in zip(self._steps, self._rows, strict=True)
        ):
            self._take([steps.popleft() if steps else None for steps in self._steps])

    def _take(self, steps: list[_Step | None]) -> None:
        """Take one step; None for rows that have ended."""
        pairs = zip(steps, self._last, strict=True)
        self._last = [last if step is None else step for step, last in pairs]
        scores = self._process(steps)
        if self._scores is not None:
            self._scores += (scores,)
        tokens = self._ids.new_tensor([self._fill if one is None else one.token for one in steps])
        self._ids, self._count = torch.cat([self._ids, tokens[:, None]], dim=1), self._count + 1
        if self._criteria:
            self._flagged |= self._criteria(self._ids.clone(), self._scores).cpu()
        if self._streamer is not None:
            self._streamer.put(tokens.cpu())
        if not bool(self._flagged.any() if self._ends_rows else self._flagged.all()):
            return
        for number, step in enumerate(steps):
            if step is not None and bool(self._flagged[number]):
                self._rows[number].cut(self._count)
                self._steps[number].clear()

    def _process(self, steps: list[_Step | None]) -> Tensor | None:
        """(B, V) processed scores; rows that have ended repeat their last logits.

        None where nothing needs them.
        """
        if not self.names:
            return None if self._scores is None else self._stack("scores")
        ids: Any = self._ids.clone()
        scores: Tensor = self._processors(ids, self._stack("logits"))
        for number, step in enumerate(steps):
            own = scores[number] if step is None or step.scores is None else step.scores
            if not torch.allclose(scores[number], own, rtol=_TOLERANCE, atol=_TOLERANCE):
                raise self.refusal(f"they change the scores of row {number} by other rows")
        return scores

    def _stack(self, name: str) -> Tensor:
        """(B, V) logits or scores of the last step of each row; zeros where it took none."""
        rows = [None if step is None else getattr(step, name) for step in self._last]
        some = next(row for row in rows if row is not None)
        return torch.stack([torch.zeros_like(some) if row is None else row for row in rows])


def _own(item: Any, row: int, count: int) -> Any:
    """A processor for one row of a batch, with its entry of what has one for each row."""
    own: Any = (copy.copy if type(item) in _ROW_WISE else _copy)(item)
    lengths = getattr(own, "prompt_ignore_length", None)
    if isinstance(lengths, Tensor):  # since transformers 5.23 the padding of each row
        own.prompt_ignore_length = lengths[row : row + 1]
    if isinstance(own, logits_process.EncoderRepetitionPenaltyLogitsProcessor):
        source = row * len(own.encoder_input_ids) // count
        own.encoder_input_ids = own.encoder_input_ids[source : source + 1]  # type: ignore[assignment]
    elif isinstance(own, logits_process.EncoderNoRepeatNGramLogitsProcessor):
        source = row * own.batch_size // count
        own.generated_ngrams, own.batch_size = [own.generated_ngrams[source]], 1
    elif isinstance(own, logits_process.PrefixConstrainedLogitsProcessor):
        allowed = _copy(own._prefix_allowed_tokens_fn)
        batch_id, own._num_beams = row // own._num_beams, 1
        own._prefix_allowed_tokens_fn = lambda _row, token_ids: allowed(batch_id, token_ids)
    return own


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
