"""Batched generation of a target's own responses, with continuous refill.

Drafters are trained on text that the target generates. Here the next prompt takes the row of a
finished response, so no sequence waits for the longest one. Prompts are read from the shortest to
the longest: the rows of a batch have similar lengths and little padding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
from lattice_bpd.verify.batch_cache import StackedCache, StackedLayer
from lattice_bpd.verify.greedy import NO_CANDIDATES, greedy_tokens
from lattice_bpd.verify.probes import find_batch_refusal
from lattice_bpd.verify.target import CausalLMTarget

_POSITIONS = 32_768  # cache positions of a batch: rows x longest text
_READ = 512  # tokens of the prompts of a call, unless one is longer
_GROWTH = 1.25  # of cache positions beyond those that the next prompt needs
_Queue = list[tuple[int, list[int]]]  # indices of prompts and their tokens


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
        prompts: (T_i,) ints each. More may be appended while responses are read, such as the next
            turn of a conversation: they join the batch at once.
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
    rules = _Rules(target, acceptance, stop_token_ids, max_new_tokens)
    queue: _Queue = []
    num_known = 0

    def update_queue() -> _Queue:
        """The waiting prompts and their indices, the longest first."""
        nonlocal num_known
        if num_known < len(prompts):
            texts = check_prompts(drafting, prompts[num_known:]).tokens
            queue.extend(one for one in enumerate(texts, num_known) if rules.limit_of(one[1]) > 0)
            queue.sort(key=lambda one: (-len(one[1]), -one[0]))
            num_known = len(prompts)
        return queue

    update_queue()
    batch = _Batch(target, rules, update_queue, max_new_tokens, batch_size)
    in_batches = target.windows.by_cache_position is None and find_batch_refusal(target) is None
    if batch_size > 1 and in_batches and batch.can_start():
        yield from batch.run()
        return
    while update_queue():
        number, text = queue.pop()
        result: Any = generate(
            model, text, "greedy", acceptance=acceptance, stop_token_ids=stop_token_ids,
            max_new_tokens=rules.limit_of(text),
        )  # fmt: skip
        yield Response(number, result.token_ids, result.finish != "length")


class _Text(NamedTuple):
    """A response in the making."""

    number: int
    new: list[int]
    limit: int
    selector: Any


class _RowLayer(StackedLayer):  # type: ignore[no-untyped-call]
    """One layer of a cache whose texts begin at position 0 and end anywhere: none ever moves."""

    ends: tuple[Any, ...]  # the index of the next keys: rows, heads, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (R, heads, 1, D) keys and values after those of their rows; return all of them."""
        self.width += 1
        keys, values = (
            buffer[self.number, : len(key_states)]
            for buffer in (self.stack.keys, self.stack.values)
        )
        keys[self.ends], values[self.ends] = key_states[:, :, 0], value_states[:, :, 0]
        return keys[:, :, : self.width], values[:, :, : self.width]


class _Batch:
    """Texts in the first rows of a KV cache, all but their last token."""

    def __init__(
        self, target: CausalLMTarget, rules: _Rules, update_queue: Callable[[], _Queue],
        max_new_tokens: int, max_rows: int,
    ) -> None:  # fmt: skip
        self._target, self._rules, self._update_queue = target, rules, update_queue
        self._max_new_tokens, self._max_rows = max_new_tokens, max_rows
        self._cache: StackedCache
        self._texts: list[_Text] = []
        self._lengths: list[int] = []  # tokens of each in the cache
        self._longest = 0  # prompt read so far

    @torch.inference_mode()
    def can_start(self) -> bool:
        """Whether the target's keys and values fit into a StackedCache."""
        ids = torch.zeros(1, 1, dtype=torch.long, device=self._target.device)
        cache = StackedCache.from_cache(self._target.read_prompts(ids)[1], 0)
        if cache is not None:
            self._cache = cache
            cache.layers = [_RowLayer(cache, number) for number in range(len(cache.layers))]
        return cache is not None

    @torch.inference_mode()
    def run(self) -> Iterator[Response]:
        """Generate responses to the prompts of the queue, the last one first."""
        while self._texts or self._update_queue():
            yield from self._refill()
            if self._texts:
                yield from self._step()

    def _refill(self) -> Iterator[Response]:
        """Read the next prompts into free rows, several of one length at once."""
        cache = self._cache
        while waiting := self._update_queue():
            length = len(waiting[-1][1])
            self._longest = max(self._longest, length)
            capacity = self._longest + self._max_new_tokens + 1
            rows = max(1, min(self._max_rows, _POSITIONS // capacity))
            count, active = min(len(waiting), rows, max(1, _READ // length)), len(self._texts)
            while len(waiting[-count][1]) > length:
                count -= 1
            if active + count > rows:
                return
            if capacity > cache.keys.shape[3] or rows > cache.keys.shape[1]:
                used = max(self._lengths, default=0)
                for name in ("keys", "values"):
                    old = getattr(cache, name)
                    layers, _, heads, _, size = old.shape
                    new = old.new_zeros((layers, rows, heads, int(_GROWTH * capacity), size))
                    new[:, :active, :, :used] = old[:, :active, :, :used]  # zeros, not NaN, beyond
                    setattr(cache, name, new)
            yield from self._read([waiting.pop() for _ in range(count)])

    def _read(self, prompts: _Queue) -> Iterator[Response]:
        """Read prompts of one length, which need no mask."""
        length, first = len(prompts[0][1]), len(self._texts)
        ids = torch.tensor([text for _, text in prompts], device=self._target.device)
        output, cache = self._target.read_prompts(ids)
        source = cast("StackedCache", StackedCache.from_cache(cache, 0))  # see can_start
        for new, old in ((self._cache.keys, source.keys), (self._cache.values, source.values)):
            new[:, first : first + len(prompts), :, :length] = old[:, :, :, :length]
        for number, text in prompts:
            selector = self._rules.start(number, text)
            self._texts.append(_Text(number, [], self._rules.limit_of(text), selector))
            self._lengths.append(length)
        yield from self._append(first, output.logits[:, -1])

    def _step(self) -> Iterator[Response]:
        """One call of the target for all texts."""
        cache, device = self._cache, self._target.device
        # A position that no text sees: without a mask some kernels are ten times slower.
        cache.set_width(max(self._lengths) + 1)
        lengths = torch.tensor(self._lengths, device=device)
        for layer in cast("list[Any]", cache.layers):
            layer.ends = torch.arange(len(lengths), device=device), slice(None), lengths
        mask, windowed = self._masks(lengths[:, None])
        output = self._target(
            torch.tensor([text.new[-1:] for text in self._texts], device=device), cache,
            attention_mask=mask, windowed_mask=windowed, position_ids=lengths[:, None],
        )  # fmt: skip
        self._lengths = [length + 1 for length in self._lengths]
        yield from self._append(0, output.logits[:, -1])

    def _masks(self, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """The mask (R, P) of a step; additive (R, 1, 1, P) and windowed beyond a window."""
        width, window = self._cache.width, self._target.sliding_window
        steps = torch.arange(width + 1, device=lengths.device)
        seen = steps <= lengths
        if window is None or width < window:
            return seen.long(), None
        dtype = self._target.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=lengths.device)
        mask.masked_fill_(~seen, torch.finfo(dtype).min)
        windowed = mask.masked_fill(lengths - steps >= window, torch.finfo(dtype).min)
        return mask[:, None, None], windowed[:, None, None]

    def _append(self, first: int, logits: Tensor) -> Iterator[Response]:
        """Select the next token of the texts from row `first` on, and free the rows that end."""
        texts = self._texts[first:]
        if texts[0].selector is None:
            tokens = greedy_tokens(logits.float()).tolist()
        else:
            tokens = [
                text.selector.choose(row, NO_CANDIDATES)
                for text, row in zip(texts, logits, strict=True)
            ]
        for row in reversed(range(len(texts))):  # the last row may take that of one that ends
            text, token = texts[row], tokens[row]
            text.new.append(token)
            ended = token in self._rules.stop_token_ids or getattr(text.selector, "ended", False)
            if ended or len(text.new) == text.limit:
                self._free(first + row)
                is_whole = ended or text.limit < self._max_new_tokens
                yield Response(text.number, text.new, is_whole)

    def _free(self, row: int) -> None:
        """Remove a text; the last one takes its row."""
        last = len(self._texts) - 1
        if row < last:
            for buffer in (self._cache.keys, self._cache.values):
                buffer[:, row, :, : self._lengths[last]] = buffer[:, last, :, : self._lengths[last]]
        self._texts[row], self._lengths[row] = self._texts[last], self._lengths[last]
        del self._texts[last], self._lengths[last]


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
