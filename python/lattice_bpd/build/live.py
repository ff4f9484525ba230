"""A drafter's speed beside plain decoding, on held-out prompts."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lattice_bpd.build.bootstrap import FEWEST_TEXTS, Interval, bootstrap_ratio
from lattice_bpd.decode.drafter_file import load_drafter
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.models.hooks import device_of
from lattice_bpd.train.responses.collect import Exchange
from lattice_bpd.watcher import Watcher

LIVE_PROMPTS = 20  # most that are decoded
LIVE_SHARE = 1 / 3  # time of live decoding, in that of the stages before it
_WARM_UP = 8  # tokens that are decoded first, since first calls are slow


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
