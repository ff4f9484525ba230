"""Decoding of held-out prompts by the built drafter and by the model's own `generate`."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lattice_bpd.build.bootstrap import Interval, compare_paired
from lattice_bpd.decode.huggingface.generate import generate
from lattice_bpd.decode.strategies.drafter_file import load_drafter
from lattice_bpd.train.responses.collect import Exchange
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
