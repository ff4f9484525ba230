"""The modules of the vLLM plug-in that need no engine, in a stand-in for TensorRT-LLM."""
# ruff: noqa: ARG002

from __future__ import annotations

import logging
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from fake_vllm import SLOTS, VOCAB, PerfectHeads, continuation, state_of
from lattice_bpd import DraftConfig
from lattice_bpd_vllm.batch import EngineStep
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.options import DrafterOptions
from lattice_bpd_vllm.step_drafter import StepDrafter
from lattice_bpd_vllm.targets import TargetInfo

ENGINE_FREE = (
    "batch", "block_lattices", "counters", "draft_lengths", "drafting", "files", "head_logits",
    "mixture_chains", "options", "request_texts", "rows", "served_texts", "slot_sources",
    "step_drafter", "targets",
)  # fmt: skip
MAX_LENGTH = 64


class Drafter(ABC):
    """`tensorrt_llm._torch.speculative.drafter.Drafter`.

    The engine changes `max_total_draft_tokens` where drafts have another length for large batches.
    """

    def __init__(self, max_draft_len: int, max_total_draft_tokens: int) -> None:
        self.max_draft_len, self.max_total_draft_tokens = max_draft_len, max_total_draft_tokens

    @abstractmethod
    def prepare_draft_tokens(
        self, scheduled_requests: Any, resource_manager: Any | None = None
    ) -> None:
        """Sets `py_draft_tokens` of the requests."""


class LatticeDrafter(Drafter):
    """A second engine's adapter: all that it needs besides the modules above.

    `keep_states` is a forward hook of the model's last norm.
    """

    def __init__(
        self, parts: DrafterParts, target: TargetInfo, options: DrafterOptions, max_draft_len: int
    ) -> None:
        super().__init__(max_draft_len, max_draft_len)
        self.steps = StepDrafter(
            parts, target, options, max_draft_len, logging.getLogger("tensorrt_llm")
        )
        self._hidden = torch.empty(0)
        self._rows: dict[int, tuple[int, int]] = {}  # first row and drafts of the last forward

    def keep_states(self, module: Any, inputs: Any, hidden: torch.Tensor) -> None:
        self._hidden = hidden

    def prepare_draft_tokens(
        self, scheduled_requests: Any, resource_manager: Any | None = None
    ) -> None:
        requests = scheduled_requests.generation_requests
        kept = [self._kept(request) for request in requests]
        drafts = self.steps.propose(kept, lambda: self._read(requests, kept))
        self._rows, start = {}, 0
        for request, draft in zip(requests, drafts, strict=True):
            request.py_draft_tokens = draft
            self._rows[request.request_id] = start, len(draft)
            start += len(draft) + 1

    def _kept(self, request: Any) -> list[int]:
        if request.request_id not in self._rows:  # it is new, and has no row yet
            return []
        tokens: list[int] = request.get_tokens(0)
        return tokens[-request.py_num_accepted_draft_tokens - 1 :]

    def _read(self, requests: list[Any], kept: list[list[int]]) -> EngineStep:
        """Rows are in the order of the last forward, texts in that of the next one."""
        texts = [request.get_tokens(0) for request in requests]
        token_ids = np.zeros((len(texts), MAX_LENGTH), np.int32)
        states, verified = [], []
        for request, text, row in zip(requests, texts, token_ids, strict=True):
            row[: len(text)] = text
            start, count = self._rows.get(request.request_id, (0, 0))
            states.append(self._hidden[start : start + count + 1])
            verified.append(count)
        names = [str(request.request_id) for request in requests]
        return EngineStep(
            kept, token_ids, np.array([len(text) for text in texts]),
            np.array([request.py_orig_prompt_len for request in requests]),
            [request.py_max_new_tokens for request in requests],
            MAX_LENGTH, self.max_total_draft_tokens, torch.cat(states), verified, names, names,
        )  # fmt: skip


@dataclass
class Request:
    """`LlmRequest` as far as drafters see it."""

    request_id: int
    text: list[int]
    py_max_new_tokens: int
    py_orig_prompt_len: int = 0
    py_draft_tokens: list[int] = field(default_factory=list)
    py_num_accepted_draft_tokens: int = 0

    def get_tokens(self, beam: int) -> list[int]:
        return self.text


def run_target(requests: list[Request], drafter: LatticeDrafter) -> None:
    """One forward pass over the drafts of all requests, in their order."""
    rows = []
    for one in requests:
        drafts = one.py_draft_tokens
        rows += [state_of(one.text + drafts[:i]) for i in range(len(drafts) + 1)]
        right = continuation(one.text, len(drafts) + 1)
        count = 0
        while count < len(drafts) and drafts[count] == right[count]:
            count += 1
        one.py_num_accepted_draft_tokens = count
        one.text = one.text + right[: count + 1]
    drafter.keep_states(None, None, torch.stack(rows))


def make_drafter(draft: str, **options: Any) -> LatticeDrafter:
    parts = DrafterParts(PerfectHeads(), (), DraftConfig(top_k=4), draft, VOCAB)
    target = TargetInfo(
        lambda states: states[:, :VOCAB], VOCAB * (SLOTS + 1), VOCAB, torch.float32,
        torch.device("cpu"),
    )  # fmt: skip
    return LatticeDrafter(parts, target, DrafterOptions("unused", **options), SLOTS)


@pytest.mark.parametrize("draft", ["argmax", "best", "chain"])
def test_another_engine_is_one_file(draft: str, rng: np.random.Generator) -> None:
    """Outputs are the target's, in few calls, while requests join, end and change their order."""
    drafter = make_drafter(draft, check=True)
    requests = []
    for number in range(6):
        text = rng.integers(0, VOCAB, size=2 + number).tolist()
        requests.append(Request(number, text, int(rng.integers(4, 30)), len(text)))
    prompts = [one.text for one in requests]
    running, waiting, calls = requests[:4], requests[4:], 0
    while running or waiting:
        if calls % 2:
            running += waiting[:1]
            waiting = waiting[1:]
        drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=running))
        run_target(running, drafter)
        calls += len(running)
        running = [one for one in running if len(one.text) < len_at_end(one)]
        rng.shuffle(running)  # type: ignore[arg-type]
    for prompt, one in zip(prompts, requests, strict=True):
        assert one.text == prompt + continuation(prompt, one.py_max_new_tokens)
    # heads are perfect: one call without a draft, then SLOTS + 1 tokens in each
    best = [1 + -(-(one.py_max_new_tokens - 1) // (SLOTS + 1)) for one in requests]
    assert calls == sum(best)
    assert drafter.steps.counters.failures == 0


def len_at_end(request: Request) -> int:
    return request.py_orig_prompt_len + request.py_max_new_tokens


def test_modules_need_neither_vllm_nor_its_runner() -> None:
    code = (
        "import importlib, sys\n"
        "sys.modules['vllm'] = None\n"
        f"for name in {ENGINE_FREE}: importlib.import_module('lattice_bpd_vllm.' + name)\n"
        "print(sorted(one for one in sys.modules if one.startswith('lattice_bpd_vllm.')))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert result.stdout.strip() == str([f"lattice_bpd_vllm.{name}" for name in ENGINE_FREE])
