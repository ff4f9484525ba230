"""How long a build takes, from a probe of the model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from lattice_bpd.build.job import BuildJob
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.responses.prompts import Chat, encode_prompt

_PROBED = 64  # prompts
_NEW = 16  # tokens of each
_LENGTH = 0.85  # of max_new_tokens, that responses have on average
_BYTES = 24  # of an n-gram LM for each token of its text
_HEAD_STEPS = 1.6  # time of the heads' training in that of reading the same positions, per epoch
_REST = 60.0  # seconds for costs, gates and live decoding


@dataclass
class Plan:
    """Expected work of a build.

    Attributes:
        prompts: turns that get a response.
        prompt_tokens: of all turns; a later turn has those before it.
        new_tokens: expected tokens of responses.
        tokens_per_second: rate of the responses, prompts included.
        seconds: of each stage.
        lm_bytes: size of the n-gram LM.
    """

    prompts: int
    prompt_tokens: int
    new_tokens: int
    tokens_per_second: float
    seconds: dict[str, float]
    lm_bytes: int

    @property
    def total_seconds(self) -> float:
        """Of all stages."""
        return sum(self.seconds.values())


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
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    prompts = [one for one in prompts if limit is None or len(one) < limit]
    probed = prompts[: min(_PROBED, job.batch_size)]
    list(generate_responses(model, probed[:2], 2))  # first calls are slow
    times = []
    for new in (1, 1 + _NEW):
        start = time.perf_counter()
        list(generate_responses(model, probed, new, stop_token_ids=(), batch_size=job.batch_size))
        times.append(time.perf_counter() - start)
    prompt_tokens, total = sum(map(len, prompts)), len(prompts)
    reading = times[0] / max(1, sum(map(len, probed)))  # seconds of a prompt's token
    step = max(times[1] - times[0], 1e-9) / (_NEW * len(probed))  # of a new token in a full batch
    new_tokens = int(_LENGTH * job.max_new_tokens * total)
    seconds = {"responses": prompt_tokens * reading + new_tokens * step}
    if job.heads:
        seconds["states"] = (prompt_tokens + new_tokens) * reading
        seconds["heads"] = job.epochs * _HEAD_STEPS * new_tokens * reading
    rate = new_tokens / max(seconds["responses"], 1e-9)
    seconds["LM, costs, choice, live decoding"] = _REST
    size = min(_BYTES * new_tokens, job.max_bytes or _BYTES * new_tokens)
    return Plan(total, prompt_tokens, new_tokens, rate, seconds, size)
