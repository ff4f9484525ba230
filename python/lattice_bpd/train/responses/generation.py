"""Batched generation of a target's own responses, with continuous refill.

Drafters are trained on text that the target generates. Here the next prompt takes the row of a
finished response, so no sequence waits for the longest one. Prompts are read from the shortest to
the longest: the rows of a batch have similar lengths and little padding. What a prompt shares with
a text of the batch, such as a system message or earlier turns, is copied.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.decode.drafters.drafter import NoDrafter
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.loop.arguments import Options, check_evaluation_mode
from lattice_bpd.decode.loop.engine import Engine, Request
from lattice_bpd.decode.loop.prompts import check_prompts, first_tokens
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.state.text_rules import TextRules, merge_settings, prepare_rules
from lattice_bpd.token_ids import count_shared
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact
from lattice_bpd.verify.cudnn import WITHOUT_CUDNN_ATTENTION
from lattice_bpd.verify.greedy import Verification
from lattice_bpd.verify.memory import describe_lack_of_memory, free_memory
from lattice_bpd.verify.probes import find_batch_refusal, find_cache_refusal
from lattice_bpd.verify.rows import Rows
from lattice_bpd.verify.target import CausalLMTarget

_POSITIONS = 32_768  # cache positions of a batch, rows x longest text, on a CPU
_SHARE = 0.3  # of the free memory of a GPU; growing takes nearly twice as much for a while
_READ = 512  # tokens of the prompts of a call, padding included, unless one is longer
_KEPT = 8_192  # cache positions of ended texts whose conversations continue
_BALANCE = 1_024  # tokens of a text whose attention takes as long as all else of its call
_GROWTH = 1.25  # of cache positions beyond those that the next prompt needs
_Prompts = list[tuple[int, list[int]]]  # indices of prompts and their tokens


class Response(NamedTuple):
    """What the target generated for one prompt.

    Attributes:
        prompt: index of the prompt.
        token_ids: new tokens, the stop token included.
        ended: whether a longer limit would give the same, since a stop token or the target's
            positions ended it.
        states: (T, D) the hidden states that predicted its tokens, where the batch kept them.
        share: of the time that all prompts so far take, which is over; 0: unknown.
    """

    prompt: int
    token_ids: list[int]
    ended: bool
    states: Tensor | None = None
    share: float = 0.0


def count_rows(capacity: int, positions: int | None = None) -> int:
    """How many texts of a length a batch has at most; on a CPU if `positions` are not given."""
    return max(1, (_POSITIONS if positions is None else positions) // capacity)


def generate_responses(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    acceptance: Acceptance | None = None,
    stop_token_ids: Collection[int] | None = None,
    batch_size: int = 64,
    keep_states: bool = False,
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
        keep_states: whether responses of batches have their hidden states.

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
    check_evaluation_mode(drafting.target.base)
    rules = _Rules(drafting.target, acceptance, stop_token_ids, max_new_tokens)
    batch = _Batch(drafting, rules, prompts, batch_size, keep_states=keep_states)
    while batch.find_prompts():
        yield from batch.run()
        if batch.single:
            number, text = batch.pop(batch.single)
            result: Any = generate(
                model, text, "greedy", acceptance=acceptance, stop_token_ids=stop_token_ids,
                max_new_tokens=rules.end_of(text) - len(text),
            )  # fmt: skip
            yield Response(number, result.token_ids, result.finish != "length")


class _Source(NamedTuple):
    """Tokens, and the row of the cache or the copy of one that has their keys and values."""

    tokens: list[int]
    row: int = 0
    saved: list[Tensor] | None = None


class _Batch:
    """Which prompts are read when and where; an engine generates their responses."""

    def __init__(
        self, model: DraftingModel, rules: _Rules, prompts: Sequence[Sequence[int]], max_rows: int,
        *, keep_states: bool,
    ) -> None:  # fmt: skip
        self._model, self._rules, self._prompts = model, rules, prompts
        self._keep_states = keep_states
        self._target, self._max_rows = model.target, max_rows
        # Longer prompts are read in one call, since not all models mask what is beyond a window.
        self._window = model.target.sliding_window or sys.maxsize
        self._engine: Engine
        self._ended = _Source([])  # the last text, whose row it still has if there are no others
        self._kept: dict[int, _Source] = {}  # for prompts that continue an ended text
        self._longest = self._num_known = 0  # prompt read so far; prompts in the queues
        self._waiting: _Prompts = []  # the longest first
        self.single: _Prompts = []  # likewise, that share no calls with others
        self._work = self._unread = 0.0  # of all prompts, and of those in the queues
        self._has_rows = max_rows > 1 and self._can_start()

    def find_prompts(self) -> bool:
        """Queue the prompts that are new; whether any wait."""
        if new := self._prompts[self._num_known :]:
            texts = check_prompts(self._model, new).tokens
            self._target.find_limits(max(map(self._rules.end_of, texts)))
            for number, text in enumerate(texts, self._num_known):
                end = self._rules.end_of(text)
                shares = self._has_rows and self._target.limits.allows_parts(end)
                if end > len(text):
                    (self._waiting if shares else self.single).append((number, text))
                    self._unread += self._rules.work(len(text))
                self._work += self._rules.work(len(text))
            self._num_known += len(texts)
            for queue in (self._waiting, self.single):
                queue.sort(key=lambda one: (-len(one[1]), -one[0]))
        return bool(self._waiting or self.single)

    @torch.inference_mode()
    def _can_start(self) -> bool:
        """Whether texts may share calls."""
        target, windows = self._target, self._target.windows
        refusal = find_batch_refusal(target) or find_cache_refusal(target)
        if refusal or windows.by_cache_position is not None or windows.selected is not None:
            return False
        ids = torch.zeros(1, 1, dtype=torch.long, device=target.device)
        cache = Rows.from_cache(target.read_prompts(ids)[1])
        self._positions = _count_positions(cache, target.device)
        options = Options([], [], self._rules.stop_token_ids)
        seconds: dict[str, float] = defaultdict(float)
        self._engine = Engine(self._model, options, cache, seconds, keep_hidden=self._keep_states)
        return True

    @torch.inference_mode()
    def run(self) -> Iterator[Response]:
        """Generate responses to the prompts of the queue, the last one first."""
        if not self._has_rows:
            return
        self._target.reset_frequencies()
        with describe_lack_of_memory("generate responses together", "lower the batch size"):
            while self._waiting or self._engine.requests:
                yield from self._refill()
                if self._engine.requests:
                    with WITHOUT_CUDNN_ATTENTION:
                        self._engine.step()
                    yield from self._take_ended()

    def _refill(self) -> Iterator[Response]:
        """Read the next prompts into free rows, several at once."""
        engine, waiting, cache = self._engine, self._waiting, self._engine.cache
        assert isinstance(cache, Rows)
        while waiting and len(engine.requests) < self._max_rows:
            needed = max(self._longest, len(waiting[-1][1])) + self._rules.max_new_tokens + 1
            if len(engine.requests) >= count_rows(needed, self._positions):
                return
            source, start = self._find_start(waiting[-1][1])
            count, shared = 0, start
            for _, prompt in waiting[: -self._max_rows - 1 : -1]:
                common = min(shared, count_shared(source.tokens, prompt))
                size = (count + 1) * (len(prompt) - 1 - common)
                joins = size <= _READ and common >= start // 2 and len(prompt) <= self._window
                if count and not joins:
                    break
                count, shared = count + 1, common
            longest = max(self._longest, len(waiting[-count][1]))
            capacity = longest + self._rules.max_new_tokens + 1
            rows = min(self._max_rows, count_rows(capacity, self._positions))
            active = len(engine.requests)
            count = min(count, rows)
            if 2 * (rows - active) < count:
                return
            count, self._longest = min(count, rows - active), longest
            known_rows, known_positions = cache.shape
            if capacity > known_positions or rows > known_rows:
                cache.reserve(rows, int(_GROWTH * capacity))
            prompts = [self.pop(waiting) for _ in range(count)]
            with WITHOUT_CUDNN_ATTENTION:
                self._read(prompts, cache, source, shared)
            yield from self._take_ended()

    def _find_start(self, prompt: list[int]) -> tuple[_Source, int]:
        """The text that shares most tokens with a prompt, and how many are worth a copy."""
        sources = [_Source([]), *self._kept.values()]
        if not self._engine.requests:
            sources.append(self._ended)
        for row, one in enumerate(self._engine.requests):
            sources.append(_Source(one.state.tokens[:-1], row))
        shared, number = max((count_shared(s.tokens, prompt), n) for n, s in enumerate(sources))
        shared = min(shared, len(prompt) - 1)
        # After a start attention needs a mask, and takes twice the time.
        is_worth = shared * (shared + _BALANCE) >= (len(prompt) - 1 - shared) ** 2
        return sources[number], shared if is_worth and len(prompt) <= self._window else 0

    def _read(self, prompts: _Prompts, cache: Rows, source: _Source, start: int) -> None:
        """Read prompts but for their last token, and for `start` ones that the source has.

        Padding follows the tokens, which do not see it; the tokens of the response replace it.
        """
        requests = self._engine.requests
        first, is_whole = len(requests), len(prompts[0][1]) > self._window
        rows = range(first, first + len(prompts)) if start else ()
        if source.saved is None:
            cache.copy([(source.row, row, 0, start) for row in rows])
        else:
            for row in rows:
                cache.load(source.saved, row, start)
        texts = [prompt[start:] if is_whole else prompt[start:-1] for _, prompt in prompts]
        for number, prompt in prompts:
            self._kept.pop(number, None)
            requests.append(self._rules.start(self._model, number, prompt))
        if longest := max(map(len, texts)):
            padded = [text + [0] * (longest - len(text)) for text in texts]
            ids = torch.tensor(padded, device=self._target.device)
            output, _ = self._target.read_prompts(ids, cache=cache.part(first, len(prompts), start))
            if is_whole:
                (request,), hidden = requests[first:], output.hidden[0, -1:].clone()
                (tokens,) = first_tokens(output.logits[:, -1], [request.selector])
                verified = Verification(tokens, 0, hidden[0])
                verified.states = hidden if self._keep_states else None
                self._engine.append(request, verified, is_prompt=True)
        cache.set_texts([len(one.state.tokens) - 1 for one in requests])

    def _take_ended(self) -> Iterator[Response]:
        """Yield the responses that have ended, and free their rows."""
        engine = self._engine
        for row in engine.ended:
            request = engine.requests[row]
            state = request.state
            states = torch.cat(request.hidden) if self._keep_states else None
            is_whole = state.finish != "length"
            yield Response(request.number, state.new_tokens, is_whole, states, self._share())
            self._keep(row, state)
        engine.drop_ended()

    def _keep(self, row: int, state: DecodeState) -> None:
        """Keep what new prompts continue of a text that has ended."""
        known, tokens, cache = self._num_known, state.tokens, self._engine.cache
        assert isinstance(cache, Rows)
        self._ended = _Source(tokens[:-1], row)
        self.find_prompts()
        for number, prompt in [one for one in self._waiting if one[0] >= known]:
            shared = min(count_shared(tokens, prompt), len(tokens) - 1)
            used = sum(len(source.tokens) for source in self._kept.values())
            if state.prompt_length <= shared <= _KEPT - used:
                saved = cache.save(row, shared)
                self._kept[number] = _Source(tokens[:shared], saved=saved)

    def pop(self, queue: _Prompts) -> tuple[int, list[int]]:
        """The next prompt of a queue, which leaves it."""
        self._unread -= self._rules.work(len(queue[-1][1]))
        return queue.pop()

    def _share(self) -> float:
        """The share of the time that is over."""
        states = (one.state for one in self._engine.requests)
        left = (
            self._rules.work(0, one.limit - one.stats.tokens, one.prompt_length)
            for one in states
            if one.finish is None
        )
        return 1.0 - (self._unread + sum(left)) / self._work


def _count_positions(cache: Rows, device: torch.device) -> int:
    """The most cache positions of a batch."""
    if device.type != "cuda":
        return _POSITIONS
    return int(_SHARE * free_memory(device) / cache.position_bytes)


class _Rules:
    """What selects and ends the tokens of a response."""

    def __init__(
        self, target: CausalLMTarget, acceptance: Acceptance | None,
        stop_token_ids: Collection[int] | None, max_new_tokens: int,
    ) -> None:  # fmt: skip
        self._target, self._acceptance = target, acceptance or Exact()
        self._settings = merge_settings(None, stop_token_ids, do_sample=False)
        self.max_new_tokens = max_new_tokens
        rules = self._prepare([0])
        self.stop_token_ids = rules.end_token_ids
        self._is_plain = rules.is_plain

    def end_of(self, prompt: Sequence[int]) -> int:
        """Most tokens of a prompt and its response."""
        end, positions = len(prompt) + self.max_new_tokens, self._target.max_positions
        return end if positions is None else min(end, positions)

    def work(self, read: int, written: int | None = None, length: int | None = None) -> float:
        """Time of a text's tokens, if new ones take 1.5 times as long; by default of a prompt."""
        new = self.max_new_tokens if written is None else written
        return (read + 1.5 * new) * (1 + (length or read) / _BALANCE)

    def start(self, model: DraftingModel, number: int, prompt: Sequence[int]) -> Request:
        """The request of a response."""
        selector = self._acceptance.start(number, prompt)
        if not self._is_plain:
            selector = self._prepare(prompt).start(selector)
        limit = self.end_of(prompt) - len(prompt)
        state = DecodeState(model, list(prompt), len(prompt), None, limit, DecodeStats())
        is_less = limit < self.max_new_tokens
        return Request(state, NoDrafter(), selector, is_less, number)

    def _prepare(self, prompt: Sequence[int]) -> TextRules:
        """The processors and criteria of the model's own `generate`."""
        ids = torch.tensor(prompt, device="cpu")
        return prepare_rules(self._target.base, ids, None, self._settings, self.max_new_tokens)
