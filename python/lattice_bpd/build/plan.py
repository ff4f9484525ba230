"""How long a build takes, from a probe of the model."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from lattice_bpd.build.choice import COST_ROUNDS, COST_SIZES
from lattice_bpd.build.job import BuildJob, split_chats
from lattice_bpd.build.live import generate_plainly
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.openai_server import OpenAIServer
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.responses.prompts import Chat, encode_prompt
from lattice_bpd.train.responses.server import ServerResponses
from lattice_bpd.train.vocabulary_heads.training import (
    Positions,
    VocabularyHeadsOptions,
    train_vocabulary_heads,
)

_PROBED = 64  # prompts
_NEW = 16  # tokens of each
_READ = 512  # tokens of a text whose states are read
_LENGTH = 0.85  # of max_new_tokens, that responses have on average
_BYTES = 24  # of an n-gram LM for each token of its text
_HEAD_STEPS = 4  # of the heads' training that are timed
_TRAINING = 0.8  # of the responses
_DRAFTED = 0.7  # time of decoding with drafts, in that of decoding without
_REPLAY = 4.5e-5  # seconds to replay a token of all responses, for each choice of sources
_START = 1.0  # seconds of first calls


@dataclass
class Plan:
    """Expected work of a build.

    Attributes:
        prompts: turns that get a response.
        prompt_tokens: of all turns; a later turn has those before it.
        new_tokens: expected tokens of responses.
        tokens_per_second: rate of the responses, prompts included.
        seconds: of each stage.
        fixed: the stages that take the same time for more prompts.
        lm_bytes: size of the n-gram LM.
    """

    prompts: int
    prompt_tokens: int
    new_tokens: int
    tokens_per_second: float
    seconds: dict[str, float]
    fixed: tuple[str, ...]
    lm_bytes: int

    @property
    def total_seconds(self) -> float:
        """Of all stages."""
        return sum(self.seconds.values())

    def count_fitting(self, seconds: float) -> float:
        """The share of the prompts whose build takes this time."""
        fixed = sum(self.seconds.get(name, 0.0) for name in self.fixed)
        return max(0.0, seconds - fixed) / max(self.total_seconds - fixed, 1e-9)


def make_plan(model: PreTrainedModel, tokenizer: Any, chats: Sequence[Chat], job: BuildJob) -> Plan:
    """Times and sizes of a build, from responses of 16 tokens to some of the prompts.

    Args:
        model: the target.
        tokenizer: its tokenizer.
        chats: the conversations, in random order.
        job: the options.
    """
    prompts = [
        encode_prompt(tokenizer, chat.messages[:end], chat.location, chat=job.chat)
        for chat in chats
        for end in chat.prompt_ends()
    ]
    limit = find_max_positions(model.config.get_text_config())
    messages = [chat.messages[:end] for chat in chats for end in chat.prompt_ends()]
    fitting = [n for n, one in enumerate(prompts) if limit is None or len(one) < limit]
    prompts, messages = [prompts[n] for n in fitting], [messages[n] for n in fitting]
    if not prompts:
        raise ValueError(
            "build: no prompt to probe the model with; expected some in --prompts, shorter than "
            f"its positions{f' ({limit})' if limit else ''}"
        )
    probed = min(_PROBED, job.batch_size, len(prompts))
    server = make_server(tokenizer, job, ())

    def answer(count: int, new: int) -> float:
        start = time.perf_counter()
        if server is not None:
            list(server.generate(messages[:count], [new] * count, new))
        else:
            list(generate_responses(model, prompts[:count], new, stop_token_ids=(),
                                    batch_size=job.batch_size))  # fmt: skip
        return time.perf_counter() - start

    answer(min(2, probed), 2)  # first calls are slow
    times = [answer(probed, 1), answer(probed, 1 + _NEW)]
    prompt_tokens, total = sum(map(len, prompts)), len(prompts)
    reading = times[0] / max(1, sum(map(len, prompts[:probed])))  # seconds of a prompt's token
    step = max(times[1] - times[0], 1e-9) / (_NEW * probed)  # of a new token in a full batch
    length = _LENGTH * job.max_new_tokens
    new_tokens = int(length * total)
    seconds = {"responses": prompt_tokens * reading + new_tokens * step}
    plain = generate_plainly(model, prompts[0], _NEW, ())
    call = plain.seconds / len(plain.token_ids)
    token = _time_reading(model, min(_READ, limit or _READ))
    if job.heads:
        seconds["states"] = (prompt_tokens + new_tokens) * token
        seconds["heads"] = _time_heads(model, job, _TRAINING * new_tokens)
    held_out = len(split_chats(range(len(chats)))[2])
    live = min(held_out, job.live_prompts)
    if job.costs is None:
        sizes = len(COST_SIZES) * call + sum(COST_SIZES) * token
        seconds["costs"] = (COST_ROUNDS + 1) * sizes
    seconds["LM, choice"] = _START + _REPLAY * new_tokens * (2 + job.heads + len(job.lms))
    seconds["live decoding"] = _START + (1 + live) * length * call * (1 + _DRAFTED)
    rate = new_tokens / max(seconds["responses"], 1e-9)
    size = min(_BYTES * new_tokens, job.max_bytes or _BYTES * new_tokens)
    return Plan(total, prompt_tokens, new_tokens, rate, seconds, ("costs", "live decoding"), size)


def make_server(tokenizer: Any, job: BuildJob, stops: Collection[int]) -> ServerResponses | None:
    """The server that generates a job's responses; None: the model does."""
    if job.server is None:
        return None
    return ServerResponses(
        OpenAIServer(job.server, job.server_model), tokenizer, stop_token_ids=stops, chat=job.chat,
        at_once=job.batch_size,
    )  # fmt: skip


@torch.inference_mode()
def _time_reading(model: PreTrainedModel, count: int) -> float:
    """Seconds to read a token of a text of `count` tokens."""
    ids, times = torch.ones(1, count, dtype=torch.long, device=model.device), []
    for _ in range(2):  # the first one is slow
        start = time.perf_counter()
        float(model(ids, logits_to_keep=1).logits[0, -1, 0])
        times.append(time.perf_counter() - start)
    return times[-1] / count


def _time_heads(model: PreTrainedModel, job: BuildJob, positions: float) -> float:
    """Seconds to train heads on so many positions, by a few steps on random states."""
    size, width = model.get_output_embeddings().weight.shape  # type: ignore[no-untyped-call]
    options = VocabularyHeadsOptions(epochs=1.0)
    times = []
    for steps in (1, 1 + _HEAD_STEPS):
        count = steps * options.batch_size
        sample = Positions(
            torch.randn(count, width).bfloat16(), torch.arange(count),
            torch.randint(size, (count,)), torch.randint(size, (count, options.num_slots)),
        )  # fmt: skip
        start = time.perf_counter()
        train_vocabulary_heads(model, sample, range(min(size, options.draft_vocab_size)), options)
        times.append(time.perf_counter() - start)
    steps_needed = job.epochs * max(positions / options.batch_size, 1.0)
    return steps_needed * max(times[1] - times[0], 0.0) / _HEAD_STEPS
