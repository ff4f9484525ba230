"""How long a build takes, what the drafter gains on held-out prompts, and its README.md."""

from __future__ import annotations

import json
import math
import platform
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lattice_bpd.build.bootstrap import FEWEST_TEXTS, Interval, bootstrap_ratio
from lattice_bpd.build.choice import COST_ROUNDS, COST_SIZES, FITTING, HELD_OUT, Choice
from lattice_bpd.build.job import BuildJob, split_chats
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.loop.waiting import count_rows
from lattice_bpd.decode.strategies import load_drafter
from lattice_bpd.models.checkpoint import find_stop_tokens
from lattice_bpd.models.hooks import device_of
from lattice_bpd.models.lm_call import find_max_positions
from lattice_bpd.openai_server import OpenAIServer
from lattice_bpd.train.responses.collect import Exchange, write_prompts
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
from lattice_bpd.watcher import Watcher

LIVE_SHARE = 1 / 3  # time of live decoding, in that of the stages before it
_WARM_UP = 8  # tokens that are decoded first, since first calls are slow
_SPAN = 8  # tokens
_REPEATED = 0.3  # share of repeated tokens that is reported


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
    seconds: float,
    watcher: Watcher,
) -> LiveResult:
    """Decode prompts with the drafter of a folder and with `model.generate`, alternately.

    Args:
        model: the target.
        folder: with drafter.json.
        exchanges: their prompts are decoded, up to the length of their responses; one or more.
        stop_token_ids: end a text; none: those of the model's generation config.
        heads: the drafter's heads, or None.
        seconds: ends it once 5 prompts are decoded.
        watcher: receives progress: stage "live", a step for each prompt.
    """
    drafter = load_drafter(folder)
    watcher.begin("live", len(exchanges))
    tokens, times, greedy, calls, equal = [], [], [], 0, 0
    begin = time.perf_counter()
    for number, exchange in enumerate(exchanges, 1):
        for limit in [_WARM_UP, len(exchange.response)][number > 1 :]:
            start = time.perf_counter()
            result: Any = generate(
                model, exchange.prompt, drafter, heads=heads, max_new_tokens=limit,
                stop_token_ids=stop_token_ids or None,
            )  # fmt: skip
            drafted = time.perf_counter() - start
            plain = generate_plainly(model, exchange.prompt, limit, stop_token_ids)
        tokens.append(len(result.token_ids))
        calls += result.stats.target_calls
        times.append(drafted)
        greedy.append(len(result.token_ids) / plain.tokens_per_second)
        equal += result.token_ids == plain.token_ids
        fitting = int(seconds * number / (time.perf_counter() - begin))
        count = min(len(exchanges), max(FEWEST_TEXTS, number, fitting))
        watcher.advance(count, f"{sum(tokens) / sum(times):.1f} tokens/s")
        if number == count:
            break
    watcher.end()
    total, gain = sum(tokens), bootstrap_ratio(greedy, times, less=1.0)
    return LiveResult(len(tokens), equal, total / calls, total / sum(times), gain)


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
    ids = torch.tensor([list(prompt)], device=device_of(model))
    ends = {"eos_token_id": sorted(stop_token_ids)} if stop_token_ids else {}
    output: Any = model.generate(  # type: ignore[operator]
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, **ends
    )
    return PlainResult(output[0, len(prompt) :].tolist(), time.perf_counter() - start)


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
    live = min(held_out, job.live_prompts)
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


def describe_drafter(result: BuildResult, model: str) -> str:
    """The model card of a drafter, in Markdown.

    Args:
        result: of the build.
        model: name of the target.
    """
    counts, live, held_out = result.counts, result.live, result.counts["held out"]
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
        f"{counts['conversations']:,} conversations ({held_out:,} other responses measured, "
        f"{counts['fitting']:,} fitted the gates).",
        *result.notes,
        "",
        "    lattice-bpd generate MODEL --drafter THIS_FOLDER --prompt TEXT",
        "",
        f"On {live.prompts} held-out prompts: {live.tokens_per_second:.1f} tokens/s, "
        f"{_percent(live.gain, live.prompts)} against `model.generate`; "
        f"{live.tokens_per_call:.2f} tokens per call; {live.equal} of {live.prompts} texts equal "
        "to its greedy ones.",
        *advice,
        "",
        f"| source | gain in tokens/s, expected on {held_out} held-out responses | |",
        "|---|---|---|",
        "| text so far | | used |",
    ]
    for step in result.choice.steps:
        option = "; --keep-heads keeps them" if step.name == "heads" and not step.is_used else ""
        used = "used" if step.gain.low > 0.0 else "kept by --keep-heads"
        status = used if step.is_used else f"left out{option}"
        lines.append(f"| {step.name} | {_percent(step.gain, held_out)} | {status} |")
    expected = result.choice.gain
    lines.append(f"| all used | {_percent(expected, held_out)} against greedy decoding | |")
    if result.accuracy is not None:
        shares = ", ".join(f"{share:.2f}" for share in result.accuracy)
        lines += ["", f"Accuracy of the heads by slot, on held-out responses: {shares}."]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    lines += ["", f"Target: {model}, {result.target}. Made with {versions}."]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in result.seconds.items())
    lines += ["", f"Time: {times}; {sum(result.seconds.values()) / 60:.1f} minutes together."]
    return "\n".join(lines) + "\n"


def _percent(gain: Interval, texts: int) -> str:
    """+12 % (+3 to +21); of few texts without the interval."""
    value, low, high = (f"{round(100 * one):+d}" for one in (gain.value, gain.low, gain.high))
    return f"{value} %" + (f" ({low} to {high})" if texts >= FEWEST_TEXTS else "")


def describe_repetition(responses: Sequence[Sequence[int]]) -> list[str]:
    """What to know where many tokens end a span that their response has before; else nothing."""
    repeated = 0
    for ids in responses:
        spans = [tuple(ids[end - _SPAN : end]) for end in range(_SPAN, len(ids) + 1)]
        repeated += len(spans) - len(set(spans))
    share = repeated / max(1, sum(map(len, responses)))
    if share < _REPEATED:
        return []
    return [
        f"{share:.0%} of the responses' tokens repeat what the same response has before, as those "
        "of a model that is not trained to answer do. Repetitions are easy to draft, so other text "
        "gains less. Give prompts as your application sends them, or the model's chat version."
    ]
