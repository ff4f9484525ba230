"""How long a build takes, what the drafter gains on held-out prompts, and its README.md."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lattice_bpd.build.bootstrap import FEWEST_TEXTS, Interval, compare_paired
from lattice_bpd.build.choice import COST_ROUNDS, COST_SIZES, Choice
from lattice_bpd.build.job import BuildJob, split_chats
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.strategies import load_drafter
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.openai_server import OpenAIServer
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.train.responses.generation import generate_responses
from lattice_bpd.train.responses.prompts import Chat, encode_prompt
from lattice_bpd.train.responses.server import ServerResponses
from lattice_bpd.train.vocabulary_heads import (
    Positions,
    VocabularyHeadsOptions,
    train_vocabulary_heads,
)
from lattice_bpd.watcher import Watcher


class PlainResult(NamedTuple):
    """What the model's own greedy `generate` gives.

    Attributes:
        token_ids: new tokens.
        seconds: it took.
    """

    token_ids: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """New tokens by time."""
        return len(self.token_ids) / self.seconds


@dataclass
class LiveResult:
    """Held-out prompts, decoded in turns by both.

    Attributes:
        prompts: how many.
        equal: texts that are equal.
        tokens_per_call: of the drafter.
        tokens_per_second: of the drafter.
        gain: relative gain in tokens/s over `model.generate`.
    """

    prompts: int
    equal: int
    tokens_per_call: float
    tokens_per_second: float
    gain: Interval


def decode_live(
    model: PreTrainedModel,
    folder: Path,
    exchanges: Sequence[Exchange],
    stop_token_ids: Collection[int],
    heads: Any,
    watcher: Watcher,
) -> LiveResult:
    """Decode prompts with the drafter of a folder and with `model.generate`, alternately.

    Args:
        model: the target.
        folder: with drafter.json.
        exchanges: their prompts are decoded, up to the length of their responses; one or more.
        stop_token_ids: end a text; none: those of the model's generation config.
        heads: the drafter's heads, or None.
        watcher: receives progress: stage "live", a step for each prompt.
    """
    drafter = load_drafter(folder)
    watcher.begin("live", len(exchanges))
    tokens, seconds, greedy, calls, equal = [], [], [], 0, 0
    warm_up = True
    for exchange in exchanges:
        limit = len(exchange.response)
        for _ in range(1 + warm_up):  # the first one twice, since first calls are slow
            start = time.perf_counter()
            result: Any = generate(
                model, exchange.prompt, drafter, heads=heads, max_new_tokens=limit,
                stop_token_ids=stop_token_ids or None,
            )  # fmt: skip
            drafted = time.perf_counter() - start
            plain = generate_plainly(model, exchange.prompt, limit, stop_token_ids)
        warm_up = False
        tokens.append(len(result.token_ids))
        calls += result.stats.target_calls
        seconds.append(drafted)
        greedy.append(len(result.token_ids) / plain.tokens_per_second)
        equal += result.token_ids == plain.token_ids
        watcher.advance(note=f"{sum(tokens) / sum(seconds):.1f} tokens/s")
    watcher.end()
    gain = compare_paired(tokens, seconds, greedy).gain
    total = sum(tokens)
    return LiveResult(len(tokens), equal, total / calls, total / sum(seconds), gain)


def generate_plainly(
    model: PreTrainedModel, prompt: Sequence[int], limit: int, stop_token_ids: Collection[int]
) -> PlainResult:
    """The model's own greedy `generate`.

    Args:
        model: the target.
        prompt: (T,) token ids.
        limit: most new tokens.
        stop_token_ids: end the text; none: those of the model's generation config.
    """
    start = time.perf_counter()
    ids = torch.tensor([list(prompt)], device=model.device)
    ends = {"eos_token_id": sorted(stop_token_ids)} if stop_token_ids else {}
    output: Any = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, **ends
    )
    return PlainResult(output[0, len(prompt) :].tolist(), time.perf_counter() - start)


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
    turns = [(chat.messages[:end], chat.location) for chat in chats for end in chat.prompt_ends()]
    encoded = [(encode_prompt(tokenizer, *turn, chat=job.chat), turn[0]) for turn in turns]
    limit = find_max_positions(model.config.get_text_config())
    fitting = [one for one in encoded if limit is None or len(one[0]) < limit]
    prompts, messages = [one[0] for one in fitting], [one[1] for one in fitting]
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
            list(server.generate([(one, new) for one in messages[:count]], new))
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
            torch.randn(count + options.num_slots, width).bfloat16(), torch.arange(count),
            torch.randint(size, (count,)), torch.randint(size, (count, options.num_slots)),
        )  # fmt: skip
        start = time.perf_counter()
        train_vocabulary_heads(model, sample, range(min(size, options.draft_vocab_size)), options)
        times.append(time.perf_counter() - start)
    steps_needed = job.epochs * max(positions / options.batch_size, 1.0)
    return steps_needed * max(times[1] - times[0], 0.0) / _HEAD_STEPS


@dataclass
class BuildResult:
    """What `build_drafter` made.

    Attributes:
        counts: conversations and tokens of the training text.
        choice: the sources and their expected gains.
        accuracy: of the heads on held-out responses, by slot; None: no heads.
        live: held-out prompts that were decoded.
        seconds: of each stage.
        notes: sentences on the responses.
        target: size of the target's vocabulary and a hash of some of its weights.
    """

    counts: dict[str, int]
    choice: Choice
    accuracy: list[float] | None
    live: LiveResult
    seconds: dict[str, float]
    notes: list[str]
    target: str


def describe_drafter(result: BuildResult, model: str, has_heads: bool) -> str:
    """The model card of a drafter, in Markdown.

    Args:
        result: of the build.
        model: name of the target.
        has_heads: whether heads were trained.
    """
    counts, live = result.counts, result.live
    advice = []
    if live.equal < live.prompts:
        advice.append("In bfloat16 and float16 texts differ where two tokens are nearly tied.")
    if live.prompts < FEWEST_TEXTS:
        advice.append("These are too few to measure gains; give more prompts.")
    elif live.gain.low <= 0.0:
        advice.append("An interval that includes 0 is not a certain gain.")
    lines = [
        f"# Drafter for {model}",
        "",
        f"Built by `lattice-bpd build` {version('lattice-bpd')} on {platform.machine()}, from the "
        f"model's own responses: {counts['responses']:,} with {counts['tokens']:,} tokens, of "
        f"{counts['conversations']:,} conversations (a tenth measured, a tenth fitted the gates).",
        *result.notes,
        "",
        "    lattice-bpd generate MODEL --drafter THIS_FOLDER --prompt TEXT",
        "",
        f"On {live.prompts} held-out prompts: {live.tokens_per_second:.1f} tokens/s, "
        f"{_percent(live.gain)} against `model.generate`; {live.tokens_per_call:.2f} tokens per "
        f"call; {live.equal} of {live.prompts} texts equal to its greedy ones.",
        *advice,
        "",
        "| source | gain in tokens/s, expected on held-out responses | |",
        "|---|---|---|",
        "| text so far | | used |",
    ]
    for step in result.choice.steps:
        option = "; --keep-heads keeps them" if step.name == "heads" and not step.is_used else ""
        status = "used" if step.is_used else f"left out{option}"
        lines.append(f"| {step.name} | {_percent(step.gain)} | {status} |")
    expected = result.choice.gain
    lines.append(f"| all used | {_percent(expected)} against greedy decoding | |")
    if has_heads and result.accuracy is not None:
        shares = ", ".join(f"{share:.2f}" for share in result.accuracy)
        lines += ["", f"Accuracy of the heads by slot, on held-out responses: {shares}."]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    lines += ["", f"Target: {model}, {result.target}. Made with {versions}."]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result.seconds.items())
    lines += ["", f"Time: {times}; {sum(result.seconds.values()) / 60:.1f} minutes together."]
    return "\n".join(lines) + "\n"


def _percent(gain: Interval) -> str:
    """+12 % (+3 to +21)."""
    value, low, high = (f"{round(100 * one):+d}" for one in (gain.value, gain.low, gain.high))
    return f"{value} % ({low} to {high})"
