"""What a build will take, from a probe of the model."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from lattice_bpd.build.bootstrap import FEWEST_TEXTS
from lattice_bpd.build.choice import COST_ROUNDS, COST_SIZES, FITTING, HELD_OUT
from lattice_bpd.build.job import BuildJob, split_chats
from lattice_bpd.build.live import LIVE_PROMPTS, LIVE_SHARE, generate_plainly
from lattice_bpd.decode.loop.waiting import count_rows
from lattice_bpd.models.checkpoint import find_stop_tokens
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.openai_server import OpenAIServer
from lattice_bpd.train.responses.collect import write_prompts
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.responses.prompts import encode_prompt
from lattice_bpd.train.responses.server import ServerResponses
from lattice_bpd.train.responses.store import ResponseStore
from lattice_bpd.train.vocabulary_heads import (
    Positions,
    VocabularyHeadsOptions,
    train_vocabulary_heads,
)

_FIRST_PROBED, _PROBED = 4, 28  # prompts that are answered to predict times and lengths
_PROBE_SECONDS = 30.0  # that the second ones may take
_READ = 512  # tokens of a text that is read
_CALLS = 16  # that are timed
_NARROW = 400  # cache positions of a row whose attention takes as long as all else
_BYTES = 24  # of an n-gram LM for each token of its text
_HEAD_STEPS = 4  # of the heads' training that are timed
_TRAINING = 0.8  # of the responses
_DRAFTED = 0.5  # time of decoding with drafts, in that of decoding without
_REPLAY = 4.5e-5  # seconds to replay a token of all responses, for each choice of sources
_START = 1.0  # seconds of first calls


@dataclass
class Plan:
    """Expected work of a build.

    Attributes:
        prompts: turns that get a response.
        prompt_tokens: of all turns; a later turn has those before it.
        new_tokens: expected tokens of responses.
        seconds: of each stage.
        lm_bytes: size of the n-gram LM.
    """

    prompts: int
    prompt_tokens: int
    new_tokens: int
    seconds: dict[str, float]
    lm_bytes: int

    def count_fitting(self, seconds: float) -> float:
        """The share of the prompts whose build takes this time."""
        fixed = sum(self.seconds.get(name, 0.0) for name in ("costs", "live decoding"))
        return max(0.0, seconds - fixed) / max(sum(self.seconds.values()) - fixed, 1e-9)


def make_plan(model: PreTrainedModel, tokenizer: Any, chats: Sequence[Chat], job: BuildJob) -> Plan:
    """Times and sizes of a build, from responses to some of the prompts.

    Args:
        model: the target.
        tokenizer: its tokenizer.
        chats: the conversations.
        job: the options.
    """
    seconds: dict[str, float] = {}
    stops = find_stop_tokens(model, tokenizer)
    num_own, written = job.num_own_prompts, list[int]()
    if num_own:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "own.jsonl"
            own = write_prompts(
                model, tokenizer, min(_PROBED, num_own), ResponseStore(path, model),
                stop_token_ids=stops,
            )  # fmt: skip
            written = [len(json.loads(line)["response"]) for line in path.read_text().splitlines()]
        share = num_own / len(own)
        seconds["prompts"] = share * (time.perf_counter() - start)
        chats = [*chats, *(own * math.ceil(share))[:num_own]]
    turns = [turn for chat in chats for turn in chat.prompts()]
    encoded = [(encode_prompt(tokenizer, turn, chat=job.chat), turn) for turn in turns]
    limit = find_max_positions(model.config.get_text_config())
    fitting = [one for one in encoded if limit is None or len(one[0]) < limit]
    if not fitting:
        raise ValueError(
            "build: no prompt to probe the model with; expected some in --prompts, shorter than "
            f"its positions{f' ({limit})' if limit else ''}"
        )
    fitting.sort(key=lambda one: len(one[0]))
    lengths = [len(one[0]) for one in fitting]
    prompt_tokens, total, most = sum(lengths), len(fitting), job.max_new_tokens
    server = make_server(tokenizer, job, stops)
    read = min(_READ, (limit or _READ) - 1)
    for _ in range(2):  # first calls are slow
        token = generate_plainly(model, [0] * read, 1, ()).seconds / read
        first = generate_plainly(model, fitting[0][0], 1, ())
        plain = generate_plainly(model, fitting[0][0], 1 + _CALLS, ())
    call = max(plain.seconds - first.seconds, 1e-9) / max(1, len(plain.token_ids) - 1)

    def answer(count: int) -> tuple[list[int], list[int], float]:
        """Lengths of prompts, short and long, and of their responses, and the time of both."""
        picked = [fitting[int((n + 0.5) * total / count)] for n in range(count)]
        start = time.perf_counter()
        responses = server.generate([(one[1], most) for one in picked], most) if server else (
            generate_responses(model, [one[0] for one in picked], most,
                               stop_token_ids=stops or None, batch_size=job.batch_size)
        )  # fmt: skip
        new = [len(one.token_ids) for one in responses]
        return [len(one[0]) for one in picked], new, time.perf_counter() - start

    sample, new, took = answer(min(_FIRST_PROBED, total))
    count = min(_PROBED, total, int(len(sample) * _PROBE_SECONDS / took))
    if count >= len(sample):  # once more, since first calls are slow
        sample, found, took = answer(count)
        new += found
    length = sum(new) / max(1, len(new))
    new_tokens = int(length * total)
    seconds["responses"] = took * total / len(sample)
    if server is None:
        steps, rows = _batch_work(sample, new[-len(sample) :], most, job.batch_size)
        known = token * sum(sample) + call * steps
        row = max(took - known, 0.0) / rows  # seconds of a row in a step
        factor = took / (known + row * rows)

        def predict(lengths: Sequence[int], new: Sequence[int]) -> float:
            """Seconds to answer prompts of these lengths."""
            steps, rows = _batch_work(lengths, new, most, job.batch_size)
            return factor * (token * sum(lengths) + call * steps + row * rows)

        seconds["responses"] = predict(lengths, new)
        if num_own:  # what these start with is read once
            seconds["prompts"] = predict([1] * int(share * len(written)), written)
    if job.heads:
        reads = _TRAINING + (server is not None)  # the varied texts, and responses of a server
        seconds["states"] = (prompt_tokens + new_tokens) * token * reads
        positions = 2 * new_tokens + min(prompt_tokens, new_tokens)
        seconds["heads"] = _time_heads(model, job, _TRAINING * positions)
    if job.costs is None:
        sizes = len(COST_SIZES) * call + sum(COST_SIZES) * token
        seconds["costs"] = (COST_ROUNDS + 1) * sizes
    seconds["LM, choice"] = _START + _REPLAY * new_tokens * (2 + job.heads + len(job.lms))
    _, for_gates, held_out = map(len, split_chats(range(len(chats))))
    each_prompt = token * prompt_tokens / total
    if job.costs is None:  # the model decodes known texts again, in fewer and longer calls
        again = min(for_gates, FITTING) + min(held_out, HELD_OUT)
        choices = 2 + job.heads + len(job.lms)
        seconds["LM, choice"] += choices * again * (each_prompt + length * call)
    live = min(held_out, LIVE_PROMPTS)
    each = 2 * each_prompt + length * call * (1 + _DRAFTED)
    fewest = each * min(live, FEWEST_TEXTS)
    shared = max(fewest, LIVE_SHARE * sum(seconds.values()))
    seconds["live decoding"] = _START + min(each * live, shared)
    size = min(_BYTES * new_tokens, job.max_bytes or _BYTES * new_tokens)
    return Plan(total, prompt_tokens, new_tokens, seconds, size)


def _batch_work(
    prompts: Sequence[int], new: Sequence[int], most: int, batch_size: int
) -> tuple[int, float]:
    """Steps of a batch that answers prompts of these lengths, and rows in all steps by their width.

    Args:
        prompts: lengths, the shortest first.
        new: lengths of some responses, which are used in turn.
        most: tokens of a response.
        batch_size: most rows.
    """
    later = [max(1, count - 1) for count in new]  # the first is that of the call for the prompt
    waiting = [(length, later[n % len(new)]) for n, length in enumerate(prompts)][::-1]
    rows: list[tuple[int, int]] = []  # length of a text, and tokens that it still gets
    steps, work = 0, 0.0
    while rows or waiting:
        while waiting and len(rows) < min(batch_size, count_rows(waiting[-1][0] + most + 1)):
            rows.append(waiting.pop())
        step = max(1, min(left for _, left in rows))
        width = max(length for length, _ in rows) + step
        steps, work = steps + step, work + step * len(rows) * (1 + width / _NARROW)
        rows = [(length + step, left - step) for length, left in rows if left > step]
    return steps, work


def make_server(tokenizer: Any, job: BuildJob, stops: Collection[int]) -> ServerResponses | None:
    """The server that generates a job's responses; None: the model does."""
    if job.server is None:
        return None
    return ServerResponses(
        OpenAIServer(job.server, job.server_model), tokenizer, stop_token_ids=stops, chat=job.chat,
        at_once=job.batch_size,
    )  # fmt: skip


def _time_heads(model: PreTrainedModel, job: BuildJob, positions: float) -> float:
    """Seconds to train heads on so many positions, by a few steps on random states."""
    size, width = model.get_output_embeddings().weight.shape  # type: ignore[no-untyped-call]
    options = VocabularyHeadsOptions(epochs=1.0)
    times = []
    for steps in (1, 1, 1 + _HEAD_STEPS):  # first calls are slow
        count = steps * options.batch_size
        sample = Positions(
            torch.randn(count + options.num_slots, width, device="cpu").bfloat16(),
            torch.arange(count, device="cpu"), torch.randint(size, (count,), device="cpu"),
            torch.randint(size, (count, options.num_slots), device="cpu"),
        )  # fmt: skip
        start = time.perf_counter()
        train_vocabulary_heads(model, sample, range(min(size, options.draft_vocab_size)), options)
        times.append(time.perf_counter() - start)
    steps_needed = job.epochs * max(positions / options.batch_size, 1.0)
    return steps_needed * max(times[2] - times[1], 0.0) / _HEAD_STEPS
