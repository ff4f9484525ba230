"""What `lattice-bpd build` expects of its time, on a machine whose calls take known times."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from build_runs import chat_tokenizer
from lattice_bpd.build.build import build_drafter
from lattice_bpd.build.job import BuildJob
from lattice_bpd.build.plan import make_plan
from lattice_bpd.train.responses.collect import collect_responses
from lattice_bpd.train.responses.formats import Chat
from lattice_bpd.train.responses.store import ResponseStore
from lattice_bpd.watcher import Watcher
from target_models import VOCAB

NEW = 48


class Machine:
    """A clock, and a model whose calls take the times of SmolLM2 on a core: 35 ms and more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=1, max_position_embeddings=2048, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        self.model: Any = transformers.LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.normal_(0.0, 1.0)
        self.now = 0.0
        forward = self.model.model.forward

        @functools.wraps(forward)
        def timed(*args: Any, **options: Any) -> Any:
            ids = options["input_ids"] if options.get("input_ids") is not None else args[0]
            rows, count = ids.shape
            mask = options.get("attention_mask")
            width = count if mask is None else mask.shape[-1]
            each = 1.1e-3 + 3e-6 * width if count == 1 else 0.95e-3 + 7e-7 * width
            self.now += 0.035 + rows * count * each
            return forward(*args, **options)

        monkeypatch.setattr(self.model.model, "forward", timed)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


class Recorder(Watcher):
    """Time and the share of it that is over, at each step."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.points = machine, list[tuple[float, float]]()

    def advance(self, total: int | None = None, note: str = "", share: float = 0.0) -> None:  # noqa: ARG002
        self.points.append((self.machine.now, share))


def make_chats(count: int, turns: int = 1) -> list[Chat]:
    """Prompts of which a fifth is long, the short ones first, as in a sorted file."""
    rng = np.random.default_rng(count)
    is_long = rng.random(count) > 0.8
    lengths = np.where(is_long, rng.integers(90, 1400, count), rng.integers(9, 90, count))
    texts = [" ".join(f"w{n}" for n in rng.integers(10, VOCAB, size)) for size in sorted(lengths)]
    later = [{"role": "user", "content": "w20 w21"}] * (turns - 1)
    return [Chat([{"role": "user", "content": text}, *later], "") for text in texts]


@pytest.mark.parametrize(
    ("count", "ends", "turns"), [(3, 0, 1), (60, 1, 1), (60, 0, 1), (300, 0, 1), (60, 0, 3)]
)
def test_the_expected_time_of_responses(
    count: int, ends: int, turns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = make_chats(count, turns)
    machine, tokenizer = Machine(monkeypatch), chat_tokenizer()
    machine.model.generation_config.eos_token_id = [1, 3, 5] if ends else [VOCAB]
    job = BuildJob(tmp_path, ("chats",), max_new_tokens=NEW)
    plan = make_plan(machine.model, tokenizer, chats, job)
    assert plan.prompts == count * turns
    start, watcher = machine.now, Recorder(machine)
    assert start < 60.0
    store = ResponseStore(tmp_path / "responses.jsonl", machine.model)
    collect_responses(machine.model, tokenizer, chats, NEW, store, watcher=watcher)
    seconds = machine.now - start
    assert plan.seconds["responses"] == pytest.approx(seconds, rel=0.25)
    assert watcher.points[-1][1] > 0.9
    for now, share in watcher.points:
        left, expected = start + seconds - now, (now - start) * (1 / share - 1)
        assert abs(expected - left) < 0.45 * seconds, (count, now - start, share)


@pytest.mark.parametrize(("count", "own"), [(20, None), (100, None), (20, 80)])
def test_the_expected_time_of_a_build(
    count: int, own: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, tokenizer = Machine(monkeypatch), chat_tokenizer()
    job = BuildJob(tmp_path, ("chats",), own, max_new_tokens=NEW)
    job.__dict__["chats"] = make_chats(count)
    expected = make_plan(machine.model, tokenizer, job.chats, job).seconds
    start = machine.now
    result = build_drafter(machine.model, tokenizer, job, Watcher())
    seconds = machine.now - start
    within = 0.25 if own is None else 0.5  # most prompts of this model are left out
    assert sum(expected.values()) == pytest.approx(seconds, rel=within)
    assert result.seconds["live decoding"] < 0.35 * seconds or result.live.prompts == 5
