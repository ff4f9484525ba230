"""Batched generation of a target's own responses, with continuous refill.

Drafters are trained on text that the target generates. Here the next prompt takes the row of a
finished response, so no sequence waits for the longest one. Prompts are read from the longest to
the shortest: the rows of a batch have similar lengths and little padding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.loop.arguments import check_evaluation_mode
from lattice_bpd.decode.loop.prompts import check_prompts
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.text_rules import TextRules, merge_settings, prepare_rules
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact
from lattice_bpd.verify.batch_cache import StackedCache
from lattice_bpd.verify.greedy import NO_CANDIDATES, greedy_tokens
from lattice_bpd.verify.probes import find_batch_refusal
from lattice_bpd.verify.target import CausalLMTarget

_POSITIONS = 32_768  # cache positions of a batch: rows x longest text
_FREE = 64  # cache positions between two rearrangements of the rows
_READ_AT_ONCE = 4  # prompts of a call, unless rows would stay free


class Response(NamedTuple):
    """What the target generated for one prompt.

    Attributes:
        prompt: index of the prompt.
        token_ids: new tokens, the stop token included.
        ended: whether a longer limit would give the same, since a stop token or the target's
            positions ended it.
    """

    prompt: int
    token_ids: list[int]
    ended: bool


def generate_responses(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    acceptance: Acceptance | None = None,
    stop_token_ids: Collection[int] | None = None,
    batch_size: int = 64,
) -> Iterator[Response]:
    """Generates a response to each prompt, and yields it as soon as it is finished.

    Args:
        model: the target, a causal LM of transformers in evaluation mode. One that cannot decode
            batches of padded texts generates the responses one by one.
        prompts: (T_i,) ints each.
        max_new_tokens: most tokens of a response; fewer where the target's positions end.
        acceptance: Exact() or None for greedy responses, `Sampled(..)` for samples, which do not
            depend on the batch.
        stop_token_ids: end a response; None: those of the model's generation config.
        batch_size: most rows of a batch; changes greedy responses only by rounding.

    Yields:
        Responses in the order in which they end. A prompt without remaining positions gets none.

    Raises:
        ValueError: a prompt that is empty, too long or has ids outside the vocabulary, sizes below
            1, or a model in training mode.
        TypeError: not a causal LM.
        MemoryError: a batch did not fit.
    """
    if max_new_tokens < 1 or batch_size < 1:
        raise ValueError(
            f"generate_responses: max_new_tokens is {max_new_tokens}, batch_size {batch_size}; "
            "expected 1 or more of each"
        )
    if not prompts:
        return
    drafting = DraftingModel(model)
    drafting.require_causal("generate_responses")
    target = drafting.target
    check_evaluation_mode(target.base)
    texts = check_prompts(drafting, prompts).tokens
    rules = _Rules(target, acceptance, stop_token_ids, max_new_tokens)
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
    queue = [(number, texts[number]) for number in order if rules.limit_of(texts[number]) > 0]
    batch = _Batch(target, rules, max_new_tokens, batch_size)
    if batch_size > 1 and _takes_batches(target) and batch.can_start():
        yield from batch.run(queue)
        return
    for number, text in queue:
        result: Any = generate(
            model, text, "greedy", acceptance=acceptance, stop_token_ids=stop_token_ids,
            max_new_tokens=rules.limit_of(text),
        )  # fmt: skip
        yield Response(number, result.token_ids, result.finish != "length")


def _takes_batches(target: CausalLMTarget) -> bool:
    """Whether padded texts of different lengths can be decoded together."""
    return target.windows.by_cache_position is None and find_batch_refusal(target) is None


class _Text(NamedTuple):
    """A response in the making."""

    number: int
    new: list[int]
    limit: int
    selector: Any


class _Batch:
    """Rows of a KV cache whose texts all end at the same position, with padding on the left."""

    def __init__(
        self, target: CausalLMTarget, rules: _Rules, max_new_tokens: int, max_rows: int
    ) -> None:
        self._target, self._rules = target, rules
        self._max_new_tokens, self._max_rows = max_new_tokens, max_rows
        self._cache: StackedCache
        self._rows: list[_Text | None] = []
        self._lengths: list[int] = []  # tokens of each row in the cache
        self._waiting: list[tuple[int, list[int]]] = []

    @torch.inference_mode()
    def can_start(self) -> bool:
        """Whether the target's keys and values fit into a StackedCache."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self._target.device)
        cache = StackedCache.from_cache(self._target.read_prompts(ids)[1], 0)
        if cache is not None:
            self._cache = cache
        return cache is not None

    @torch.inference_mode()
    def run(self, queue: Sequence[tuple[int, list[int]]]) -> Iterator[Response]:
        """Generate responses to prompts in this order, the longest first."""
        self._waiting = list(reversed(queue))
        while self._waiting or any(self._rows):
            yield from self._refill()
            if any(self._rows):
                yield from self._step()

    def _refill(self) -> Iterator[Response]:
        """Give free rows to the next prompts, and the cache a free position."""
        while True:
            waiting, active = self._waiting, sum(text is not None for text in self._rows)
            longest = len(waiting[-1][1]) if waiting else 0
            width, capacity = self._cache.width, self._cache.keys.shape[3]
            is_sparse = not waiting and active and 4 * active <= 3 * len(self._rows)
            if longest > width or width == capacity or is_sparse:
                self._rearrange(longest)
            free = [row for row, text in enumerate(self._rows) if text is None]
            count = min(_READ_AT_ONCE, len(waiting), len(self._rows))
            if not waiting or len(free) < count:
                return
            yield from self._read([waiting.pop() for _ in range(count)], free[:count])

    def _rearrange(self, longest: int) -> None:
        """Move the active rows to a new cache, as wide as they and a prompt of this length."""
        cache = self._cache
        keep = [row for row, text in enumerate(self._rows) if text is not None]
        lengths = [self._lengths[row] for row in keep]
        width, count = max([longest, *lengths]), len(keep)
        if self._waiting:
            fitting = _POSITIONS // (width + self._max_new_tokens)
            count = max(count, min(fitting, self._max_rows, count + len(self._waiting)), 1)
        copied = min(width, cache.width)
        index = torch.tensor(keep, dtype=torch.long, device=cache.keys.device)
        buffers = []
        for old in (cache.keys, cache.values):
            layers, _, heads, _, size = old.shape
            new = old.new_zeros(layers, count, heads, width + _FREE, size)  # no NaN in padding
            kept = old.narrow(3, cache.width - copied, copied).index_select(1, index)
            new[:, : len(keep), :, width - copied : width] = kept
            buffers.append(new)
        self._cache = StackedCache(buffers[0], buffers[1], width)
        free = count - len(keep)
        self._rows = [*(self._rows[row] for row in keep), *[None] * free]
        self._lengths = [*lengths, *[0] * free]

    def _read(self, prompts: list[tuple[int, list[int]]], rows: list[int]) -> Iterator[Response]:
        """Read prompts into free rows."""
        longest = max(len(text) for _, text in prompts)
        padding = torch.tensor([[longest - len(text)] for _, text in prompts])
        ids = torch.tensor([[0] * (longest - len(text)) + text for _, text in prompts])
        steps, device = torch.arange(longest), self._target.device
        mask = (steps >= padding).long().to(device) if int(padding.max()) else None
        output, cache = self._target.read_prompts(
            ids.to(device), mask, (steps - padding).clamp(min=0).to(device)
        )
        source = cast("StackedCache", StackedCache.from_cache(cache, 0))  # see can_start
        index, end = torch.tensor(rows, device=device), self._cache.width
        for new, old in ((self._cache.keys, source.keys), (self._cache.values, source.values)):
            new[:, index, :, end - longest : end] = old[:, :, :, :longest]
        for row, (number, text) in zip(rows, prompts, strict=True):
            limit, selector = self._rules.limit_of(text), self._rules.start(number, text)
            self._rows[row], self._lengths[row] = _Text(number, [], limit, selector), len(text)
        yield from self._append(rows, output.logits[:, -1])

    def _step(self) -> Iterator[Response]:
        """One call of the target for all rows."""
        cache, device = self._cache, self._target.device
        ids = torch.tensor([[text.new[-1] if text else 0] for text in self._rows], device=device)
        lengths = torch.tensor(self._lengths)[:, None]
        mask, windowed = self._masks(lengths)
        output = self._target(
            ids, cache, attention_mask=mask, windowed_mask=windowed,
            position_ids=lengths.to(device),
        )  # fmt: skip
        cache.set_width(cache.width + 1)
        rows = [row for row, text in enumerate(self._rows) if text is not None]
        for row in rows:
            self._lengths[row] += 1
        yield from self._append(rows, output.logits[rows, -1])

    def _masks(self, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """The padding mask (R, P) of a step; additive (R, 1, 1, P) and windowed beyond a window."""
        width, window, device = self._cache.width, self._target.sliding_window, self._target.device
        steps = torch.arange(width + 1)
        seen = steps >= width - lengths
        if window is None or width < window:
            return seen.long().to(device), None
        dtype = self._target.dtype
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, torch.finfo(dtype).min)
        windowed = mask.masked_fill(width - steps >= window, torch.finfo(dtype).min)
        return mask[:, None, None].to(device), windowed[:, None, None].to(device)

    def _append(self, rows: list[int], logits: Tensor) -> Iterator[Response]:
        """Select the next token of rows from logits (R, V), and free the rows that end."""
        texts: list[Any] = [self._rows[row] for row in rows]
        if texts[0].selector is None:
            tokens = greedy_tokens(logits.float()).tolist()
        else:
            tokens = [
                text.selector.choose(row, NO_CANDIDATES)
                for text, row in zip(texts, logits, strict=True)
            ]
        for row, text, token in zip(rows, texts, tokens, strict=True):
            text.new.append(token)
            ended = token in self._rules.stop_token_ids or getattr(text.selector, "ended", False)
            if ended or len(text.new) == text.limit:
                self._rows[row], self._lengths[row] = None, 0
                is_whole = ended or text.limit < self._max_new_tokens
                yield Response(text.number, text.new, is_whole)


class _Rules:
    """What selects and ends the tokens of a response."""

    def __init__(
        self,
        target: CausalLMTarget,
        acceptance: Acceptance | None,
        stop_token_ids: Collection[int] | None,
        max_new_tokens: int,
    ) -> None:
        self._target, self._acceptance = target, acceptance or Exact()
        self._settings = merge_settings(None, stop_token_ids, do_sample=False)
        self._max_new_tokens = max_new_tokens
        rules = self._prepare([0])
        self.stop_token_ids = rules.end_token_ids
        self._is_plain = rules.is_plain

    def limit_of(self, prompt: Sequence[int]) -> int:
        """Most new tokens after a prompt."""
        positions = self._target.max_positions
        most = self._max_new_tokens
        return most if positions is None else min(most, positions - len(prompt))

    def start(self, number: int, prompt: Sequence[int]) -> Any:
        """The token selector of a response; None for argmax."""
        selector = self._acceptance.start(number, prompt)
        return selector if self._is_plain else self._prepare(prompt).start(selector)

    def _prepare(self, prompt: Sequence[int]) -> TextRules:
        """The processors and criteria of the model's own `generate`."""
        ids = torch.tensor(prompt)
        most = self._max_new_tokens
        return prepare_rules(self._target.base, ids, None, self._settings, most)
