"""The target's responses to all turns of conversations, generated or from a store, and prompts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.responses.prompts import (
    PROBE,
    Skipped,
    encode_prompt,
    encode_text,
    format_prompt,
    format_response,
)
from lattice_bpd.train.responses.server import ServerResponses
from lattice_bpd.train.responses.store import ResponseStore
from lattice_bpd.verify.acceptance.sampling import Sampled
from lattice_bpd.watcher import Watcher

_LONGEST = 128  # tokens of a prompt that the target writes
_FIRST, _TRIED = 64, 10  # prompts that are tried at least, and for each that can be used


class Exchange(NamedTuple):
    """A prompt and the target's response.

    Attributes:
        chat: index of the conversation.
        prompt: token ids, earlier turns included.
        response: token ids, the stop token included.
    """

    chat: int
    prompt: list[int]
    response: list[int]


def read_responses(
    tokenizer: Any,
    chats: Sequence[Chat],
    *,
    chat: bool = True,
    stop_token_ids: Collection[int] = (),
    max_positions: int | None = None,
    skipped: list[Skipped] | None = None,
) -> list[Exchange]:
    """The responses that conversations have already, such as those of a server's log.

    Args:
        tokenizer: of the target, of transformers.
        chats: the conversations; turns without a response are left out.
        chat: see `encode_prompt`.
        stop_token_ids: the smallest one ends each response; none: nothing is added.
        max_positions: longer exchanges are left out; None: none are.
        skipped: receives turns that the chat template refuses. None: each is an error.

    Raises:
        ValueError: such a turn.
    """
    end = sorted(stop_token_ids)[:1]
    exchanges = []
    for number, one in enumerate(chats):
        for turn in one.prompt_ends():
            if [message["role"] for message in one.messages[turn : turn + 1]] != ["assistant"]:
                continue
            try:
                made = format_prompt(tokenizer, one.up_to(turn), chat=chat)
                text, has_end = format_response(tokenizer, one.up_to(turn + 1), made)
            except ValueError as error:
                if skipped is None:
                    raise
                skipped.append(Skipped.of(one.location, error))
                continue
            if not text:
                continue
            prompt = encode_text(tokenizer, made.text, made.adds_special_tokens)
            response = encode_text(tokenizer, text)
            ends = [n for n, token in enumerate(response, 1) if has_end and token in stop_token_ids]
            response = response[: ends[-1]] if ends else [*response, *end]
            if max_positions is None or len(prompt) + len(response) <= max_positions:
                exchanges.append(Exchange(number, prompt, response))
    return exchanges


def collect_responses(
    model: PreTrainedModel,
    tokenizer: Any,
    chats: Sequence[Chat],
    max_new_tokens: int,
    store: ResponseStore,
    *,
    chat: bool = True,
    stop_token_ids: Collection[int] | None = None,
    batch_size: int = 64,
    server: ServerResponses | None = None,
    keep: Callable[[list[int], list[int], Tensor], None] | None = None,
    watcher: Watcher | None = None,
) -> list[Exchange]:
    """The target's response at every turn of conversations.

    What the store lacks is generated, and written to it at once. Where a conversation has no
    response between two turns of the user, the target's own is put there.

    Args:
        model: the target.
        tokenizer: its tokenizer, of transformers.
        chats: the conversations.
        max_new_tokens: most tokens of a response.
        store: of this target and these settings.
        chat: see `encode_prompt`.
        stop_token_ids: see `generate_responses`.
        batch_size: see there.
        server: generates what the store lacks, instead of `model`; None: `model` does.
        keep: receives prompt, response and the hidden states (T, D) that predicted the response, of
            those that a batch generated.
        watcher: receives progress: stage "responses", a step for each.

    Returns:
        The exchanges, by conversation and turn. Prompts that fill the target's positions, or whose
        response of the server cannot be used, are left out, with all later turns of their
        conversation.

    Raises:
        ValueError: no prompt that fits, or one that the chat template or the target refuses.
        OSError: the store cannot be written, or the server died.
    """
    watcher = watcher or Watcher()
    most = find_max_positions(model.config.get_text_config())
    exchanges: list[list[Exchange]] = [[] for _ in chats]
    prompts: list[list[int]] = []  # that the store lacks
    requests: list[tuple[Chat, int]] = []  # the same for a server
    owners: list[Iterator[None]] = []  # of `answers`
    watcher.begin("responses", sum(len(one.prompt_ends()) for one in chats))
    start, count, share = time.perf_counter(), 0, 0.0

    def answer(number: int) -> Iterator[None]:
        """Takes the exchanges of a conversation; after each yield the store has the response."""
        nonlocal count
        own: list[str] = []
        for one in chats[number].prompts(own):
            try:
                prompt = encode_prompt(tokenizer, one, chat=chat)
            except ValueError:
                if own:  # one of the target's, which the template refuses
                    return
                raise
            if most is not None and len(prompt) >= most:
                return
            note = ""
            if (ids := store.get(prompt, max_new_tokens)) is None:
                prompts.append(prompt)
                limit = min(max_new_tokens, (most or sys.maxsize) - len(prompt))
                requests.append((one, limit))
                owners.append(answers[number])
                yield
                ids = store.get(prompt, max_new_tokens) or []
                count += len(ids)
                note = f"{count / (time.perf_counter() - start):,.0f} tokens/s"
            exchanges[number].append(Exchange(number, prompt, ids))
            watcher.advance(note=note, share=share)
            own.append(tokenizer.decode(ids, skip_special_tokens=True))

    answers = [answer(number) for number in range(len(chats))]
    for one in answers:
        next(one, None)
    responses = generate_responses(
        model, prompts, max_new_tokens, stop_token_ids=stop_token_ids, batch_size=batch_size,
        keep_states=keep is not None,
    ) if server is None else server.generate(requests, max_new_tokens)  # fmt: skip
    for number, ids, ended, states, share in responses:  # noqa: B007
        if keep is not None and states is not None:
            keep(prompts[number], ids, states)
        store.add(prompts[number], ids, ended=ended, limit=max_new_tokens)
        next(owners[number], None)
    watcher.end()
    found = [exchange for one in exchanges for exchange in one]
    if not found and server is not None and server.skipped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in server.skipped.items())
        raise ValueError(f"no response of the server can be used: {reasons}; is it this model?")
    if not found:
        raise ValueError(
            f"all {len(chats)} prompts fill the {most} positions of the target; expected shorter "
            "ones"
        )
    return found


def write_prompts(
    model: PreTrainedModel,
    tokenizer: Any,
    count: int,
    store: ResponseStore,
    *,
    stop_token_ids: Collection[int] = (),
    batch_size: int = 64,
    watcher: Watcher | None = None,
) -> list[Chat]:
    """Prompts that the target itself writes.

    The target samples a user's message, at temperature 1, from the chat template's text before it
    (Magpie, Xu et al. 2024, arXiv:2406.08464). Empty ones, those seen before and those without an
    end in 128 tokens are left out.

    Args:
        model: the target.
        tokenizer: its tokenizer, of transformers, with a chat template.
        count: how many; fewer where the target repeats itself.
        store: of this target; keeps what it wrote, by seed.
        stop_token_ids: end a message, as does what the chat template puts after one.
        batch_size: see `generate_responses`.
        watcher: receives progress: stage "prompts", a step for each.

    Raises:
        ValueError: no chat template, one that refuses a message of the user, or no prompt that can
            be used.
        OSError: the store cannot be written.
    """
    watcher = watcher or Watcher()
    prompt = format_prompt(tokenizer, Chat([{"role": "user", "content": PROBE}], "own prompts"))
    before, _, after = prompt.text.partition(PROBE)
    if not (prompt.uses_template and before.strip() and after.strip()):
        raise ValueError(
            "the model has no chat template that marks the user's messages, so it cannot write "
            "prompts; give some (build: --prompts FILE)"
        )
    mark = after.split()[0]
    start, end = (  # the space before a word is a part of its token
        list(tokenizer(part, add_special_tokens=False)["input_ids"])
        for part in (before.rstrip(" "), mark)
    )
    stops = {*stop_token_ids, *(end if len(end) == 1 else ())}
    special = set(tokenizer.all_special_ids)
    seeds: dict[str, int] = {}  # the first one of each prompt
    watcher.begin("prompts", count)

    def take(seed: int, ids: list[int]) -> None:
        ids, ended = (ids[:-1], True) if ids[-1] in stops else (ids, False)
        content, found, _ = tokenizer.decode(ids).partition(mark)
        content = content.strip()
        if (ended or found) and content and special.isdisjoint(ids):
            if content not in seeds:
                watcher.advance()
            seeds[content] = min(seed, seeds.get(content, seed))

    new: list[int] = []  # seeds that the store lacks
    prompts: list[list[int]] = []
    tried = answered = 0

    def ask() -> None:
        """Tries as many seeds as prompts are missing; those that the store has are taken."""
        nonlocal tried
        while len(seeds) + len(new) - answered < count and tried < max(_FIRST, _TRIED * len(seeds)):
            if (known := store.get([*start, tried], _LONGEST)) is None:
                new.append(tried)
                prompts.append(start)
            else:
                take(tried, known)
            tried += 1

    ask()
    responses = generate_responses(
        model, prompts, _LONGEST, acceptance=Sampled(seed=new), stop_token_ids=stops or None,
        batch_size=batch_size,
    )  # fmt: skip
    for answered, one in enumerate(responses, 1):  # noqa: B007
        seed, ids = new[one.prompt], one.token_ids
        store.add([*start, seed], ids, ended=one.ended, limit=_LONGEST)
        take(seed, ids)
        ask()
    watcher.end()
    if not seeds:
        raise ValueError(
            f"none of {tried} prompts that the model wrote can be used; give some (build: "
            "--prompts FILE)"
        )
    return [
        Chat([{"role": "user", "content": content}], f"own prompt {seed}")
        for content, seed in sorted(seeds.items(), key=lambda one: one[1])
    ]
