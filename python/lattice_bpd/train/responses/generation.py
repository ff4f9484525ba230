"""Batched generation of a target's own responses, with continuous refill.

Drafters are trained on text that the target generates. The next prompt takes the row of a finished
response, so no sequence waits for the longest one, and the turns of a conversation continue.
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
from lattice_bpd.decode.loop.engine import Engine
from lattice_bpd.decode.loop.prompts import check_prompts
from lattice_bpd.decode.loop.request import Request, Start
from lattice_bpd.decode.state.model import DraftingModel
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.decode.state.statistics import DecodeStats
from lattice_bpd.decode.state.text_rules import (
    ProcessedSelector,
    TextRules,
    merge_settings,
    prepare_rules,
)
from lattice_bpd.token_ids import count_shared
from lattice_bpd.verify.acceptance.rules import Acceptance, Exact
from lattice_bpd.verify.memory import describe_lack_of_memory
from lattice_bpd.verify.probes import find_batch_refusal, find_cache_refusal
from lattice_bpd.verify.target import CausalLMTarget

_KEPT = 8_192  # cache positions of ended texts whose conversations continue
_BALANCE = 1_024  # tokens of a text whose attention takes as long as all else of its call


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
    while batch.find_prompts() or batch.single:
        yield from batch.run()
        if batch.single:
            number, text = batch.single.pop()
            result: Any = generate(
                model, text, "greedy", acceptance=acceptance, stop_token_ids=stop_token_ids,
                max_new_tokens=rules.end_of(text) - len(text),
            )  # fmt: skip
            yield Response(number, result.token_ids, result.finish != "length")


class _Batch:
    """The responses that an engine generates, and the prompts that share no calls with others."""

    def __init__(
        self, model: DraftingModel, rules: _Rules, prompts: Sequence[Sequence[int]], max_rows: int,
        *, keep_states: bool,
    ) -> None:  # fmt: skip
        self._model, self._rules, self._prompts = model, rules, prompts
        self._target, self._keep_states = model.target, keep_states
        options = Options([], [], rules.stop_token_ids, max_draft_nodes=0)
        self._engine = Engine(
            model, options, defaultdict(float), most_rows=max_rows, keep_hidden=keep_states
        )
        self._num_known = 0  # prompts that were added
        self.single: list[tuple[int, list[int]]] = []  # indices and tokens, the longest first
        self._work = self._left = 0.0  # of all prompts, and of those that have no response yet
        self._taken: set[int] = set()  # prompts that have their responses
        self._has_rows = max_rows > 1 and self._can_share()

    def find_prompts(self) -> list[Request]:
        """Add the prompts that are new; the requests of those that have a row."""
        requests = []
        if new := self._prompts[self._num_known :]:
            texts, target, rules = check_prompts(self._model, new).tokens, self._target, self._rules
            target.find_limits(max(map(rules.end_of, texts)))
            for number, text in enumerate(texts, self._num_known):
                end = rules.end_of(text)
                work = rules.work(len(text), end - len(text))
                self._work, self._left = self._work + work, self._left + work
                if end > len(text) and self._has_rows and target.limits.allows_parts(end):
                    requests.append(rules.start(self._model, number, text))
                    self._engine.waiting.add(requests[-1])
                elif end > len(text):
                    self.single.append((number, text))
            self._num_known += len(texts)
            self.single.sort(key=lambda one: (-len(one[1]), -one[0]))
        return requests

    @torch.inference_mode()
    def _can_share(self) -> bool:
        """Whether texts may share calls."""
        target = self._target
        refusal = find_batch_refusal(target) or find_cache_refusal(target)
        return not refusal and target.windows.selected is None

    @torch.inference_mode()
    def run(self) -> Iterator[Response]:
        """Generate responses to the prompts that have rows, from the shortest one on."""
        self._target.reset_frequencies()
        with describe_lack_of_memory("generate responses together", "lower the batch size"):
            for row, request in self._engine.run():
                yield self._finish(request)
                self._keep(row, request.state)

    def _finish(self, request: Request) -> Response:
        state = request.state
        states = torch.cat(request.hidden) if self._keep_states else None
        self._left -= self._rules.work(state.prompt_length, state.limit)
        self._taken.add(request.number)
        active = sum(
            self._rules.work(one.prompt_length, one.limit if one.finish else one.stats.tokens)
            for number, one in ((other.number, other.state) for other in self._engine.requests)
            if number not in self._taken
        )
        share = 1.0 - (self._left - active) / self._work
        return Response(request.number, state.new_tokens, state.finish != "length", states, share)

    def _keep(self, row: int, state: DecodeState) -> None:
        """Keep what new prompts continue of a text that has ended."""
        tokens, waiting = state.tokens, self._engine.waiting.requests
        for one in self.find_prompts():
            shared = min(count_shared(tokens, one.state.tokens), len(tokens) - 1)
            used = sum(len(other.start.tokens) for other in waiting if other.start is not None)
            is_whole = len(one.state.tokens) > (self._target.sliding_window or sys.maxsize)
            if state.prompt_length <= shared <= _KEPT - used and not is_whole:
                one.start = Start(tokens[:shared], saved=self._engine.cache.save(row, shared))


class _Rules:
    """What selects and ends the tokens of a response."""

    def __init__(
        self, target: CausalLMTarget, acceptance: Acceptance | None,
        stop_token_ids: Collection[int] | None, max_new_tokens: int,
    ) -> None:  # fmt: skip
        self._target, self._acceptance = target, acceptance or Exact()
        self._settings = merge_settings(None, stop_token_ids, do_sample=False)
        self._settings["max_new_tokens"] = max_new_tokens
        self.max_new_tokens = max_new_tokens
        rules = self._prepare([0])
        self.stop_token_ids = rules.end_token_ids
        self._is_plain = rules.is_plain

    def end_of(self, prompt: Sequence[int]) -> int:
        """Most tokens of a prompt and its response."""
        end, positions = len(prompt) + self.max_new_tokens, self._target.max_positions
        return end if positions is None else min(end, positions)

    def work(self, read: int, written: int) -> float:
        """Time of a text's tokens, if new ones take 1.5 times as long."""
        return (read + 1.5 * written) * (1 + read / _BALANCE)

    def start(self, model: DraftingModel, number: int, prompt: Sequence[int]) -> Request:
        """The request of a response."""
        selector = self._acceptance.start(number, prompt)
        if not self._is_plain:
            selector = ProcessedSelector(self._prepare(prompt), selector)
        limit = self.end_of(prompt) - len(prompt)
        state = DecodeState(model, list(prompt), len(prompt), None, limit, DecodeStats())
        is_less = limit < self.max_new_tokens
        return Request(state, NoDrafter(), selector, is_less, number)

    def _prepare(self, prompt: Sequence[int]) -> TextRules:
        """The processors and criteria of the model's own `generate`."""
        ids = torch.tensor(prompt, device="cpu")
        return prepare_rules(self._target.base, ids, None, self._settings)
