"""A stand-in for vLLM's model runner V1: the same names, signatures and row layout, no model.

The target's next token is a fixed function of the text. A hidden state holds the logits of the next
`slots + 1` tokens, so that a draft is right exactly if the proposer took the right row.
"""
# ruff: noqa: ARG002

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lattice_bpd import DraftConfig
from lattice_bpd_vllm.files import DrafterParts

VOCAB, SLOTS = 16, 4


def next_token(text: list[int]) -> int:
    """The target's choice."""
    return (3 * text[-1] + 5 * text[-2] + len(text)) % VOCAB


def continuation(text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(text) - count :]


class Target(torch.nn.Module):
    """Logits are the first VOCAB dimensions of a state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        return states[:, :VOCAB]


class PerfectHeads(torch.nn.Module):
    """A head source that reads the next tokens out of the state."""

    num_slots = SLOTS

    def forward(self, hidden: torch.Tensor, exact_tokens: Any = None) -> torch.Tensor:
        return hidden[:, VOCAB:].reshape(len(hidden), SLOTS, VOCAB)


def state_of(text: list[int]) -> torch.Tensor:
    """The hidden state after a text."""
    row = torch.zeros(SLOTS + 1, VOCAB)
    for slot, token in enumerate(continuation(text, SLOTS + 1)):
        row[slot, token] = 5.0
    return row.flatten()


@dataclass
class Request:
    """A request in the batch."""

    prompt: list[int]
    max_tokens: int | None = 24
    unread: int = 0  # prompt tokens of later chunks
    text: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)


class Runner:
    """`GPUModelRunner` as far as proposers see it."""

    max_model_len, enable_prompt_embeds, effective_drafter_max_model_len = 64, False, 64
    num_spec_tokens = SLOTS

    def __init__(self, drafter: Any, requests: list[Request]) -> None:
        self.drafter = drafter
        self.batch = requests
        self.requests = {
            str(i): SimpleNamespace(sampling_params=SimpleNamespace(max_tokens=one.max_tokens))
            for i, one in enumerate(requests)
        }
        self.all_greedy, self.budget = True, SLOTS
        self.input_batch: Any = None

    def propose_draft_token_ids(
        self, scheduler_output: Any, sampled_token_ids: Any, sampling_metadata: Any,
        hidden_states: Any, sample_hidden_states: Any, aux_hidden_states: Any,
        spec_decode_metadata: Any, common_attn_metadata: Any, slot_mappings: Any,
    ) -> Any:  # fmt: skip
        return self.drafter.propose(
            sampled_token_ids, self.input_batch.num_tokens_no_spec,
            self.input_batch.token_ids_cpu, slot_mappings=slot_mappings,
        )  # fmt: skip

    def _sample(self, logits: Any, spec_decode_metadata: Any) -> None:
        """May change the logits, as samplers do."""
        logits.fill_(torch.nan)

    def step(self) -> list[int]:
        """Verifies the drafts of all requests and lets the drafter propose; tokens kept of each."""
        rows, kept, num_drafts = [], [], []
        for one in self.batch:
            text = one.text or one.prompt
            num_drafts.append(len(one.drafts))
            rows += [state_of(text + one.drafts[:i]) for i in range(len(one.drafts) + 1)]
            if one.unread:
                one.unread -= 1
                kept.append([])
                continue
            right = continuation(text, len(one.drafts) + 1)
            count = 0
            while count < len(one.drafts) and one.drafts[count] == right[count]:
                count += 1
            one.text = text + right[: count + 1]
            kept.append(right[: count + 1])
        self._fill_batch()
        metadata = None
        if any(num_drafts):
            drafts = torch.tensor([token for one in self.batch for token in one.drafts])
            metadata = SimpleNamespace(num_draft_tokens=num_drafts, draft_token_ids=drafts)
        self._sample(torch.stack(rows)[:, :VOCAB].clone(), metadata)
        drafts = self.propose_draft_token_ids(
            SimpleNamespace(num_spec_tokens_to_schedule=self.budget), kept,
            SimpleNamespace(all_greedy=self.all_greedy), None, torch.stack(rows), None, metadata,
            None, slot_mappings=None,
        )  # fmt: skip
        assert len(drafts) == len(self.batch)
        for one, draft, tokens in zip(self.batch, drafts, kept, strict=True):
            assert tokens or not draft
            one.drafts = draft
        return [len(tokens) for tokens in kept]

    def _fill_batch(self) -> None:
        count = len(self.batch) + 3  # the arrays have rows for more requests
        token_ids = np.full((count, self.max_model_len), 7, np.int32)
        lengths, prompts = np.full(count, 9, np.int32), np.full(count, 5, np.int32)
        for i, one in enumerate(self.batch):
            text = one.text or one.prompt
            token_ids[i, : len(text)] = text
            lengths[i], prompts[i] = len(text), len(one.prompt)
        self.input_batch = SimpleNamespace(
            req_ids=list(self.requests), num_tokens_no_spec=lengths, num_prompt_tokens=prompts,
            token_ids_cpu=token_ids, is_token_ids=np.ones_like(token_ids, bool),
        )  # fmt: skip


def expand_broken(x: torch.Tensor, ends: Any, num_tokens: int, *_: Any) -> torch.Tensor:
    """As in the CPU build 0.32.0: uninitialized memory."""
    return x.new_full((num_tokens,), -7)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Modules `vllm..` with a fresh runner class, and a correct `expand_batch_to_tokens`."""
    from lattice_bpd_vllm import sampling

    runner = type("GPUModelRunner", (Runner,), {})
    runner.propose_draft_token_ids = Runner.propose_draft_token_ids  # type: ignore[attr-defined]
    runner._sample = Runner._sample  # type: ignore[attr-defined]
    names = {
        "vllm": {"__version__": "0.32.0"},
        "vllm.v1.worker.gpu_model_runner": {"GPUModelRunner": runner},
        "vllm.v1.sample.rejection_sampler": {"expand_batch_to_tokens": sampling._expand},
    }
    made = {}
    for name, values in names.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
        made[name.split(".")[-1]] = module
    return SimpleNamespace(runner=runner, **made)


def config_of(**options: Any) -> SimpleNamespace:
    """A `VllmConfig`."""
    model = SimpleNamespace(
        dtype=torch.float32,
        get_hidden_size=lambda: VOCAB * (SLOTS + 1),
        get_vocab_size=lambda: VOCAB,
        get_total_num_hidden_layers=lambda: 2,
    )
    return SimpleNamespace(
        additional_config={"lattice_bpd": {"directory": "unused", **options}},
        speculative_config=SimpleNamespace(num_speculative_tokens=SLOTS),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        lora_config=None, kv_transfer_config=None, model_config=model,
    )  # fmt: skip


class VllmConfig:
    """As far as options are read; `use_v2_model_runner` is a property of vLLM's."""

    model_config: Any = None

    def __init__(
        self, additional_config: Any, speculative_config: Any = None, is_v2: bool = True
    ) -> None:
        self.additional_config, self.speculative_config = additional_config, speculative_config
        self.use_v2_model_runner = is_v2
        self.__post_init__()

    def __post_init__(self) -> None:
        """Checks."""


def make_proposer(
    monkeypatch: pytest.MonkeyPatch, draft: str = "argmax", heads: Any = ...,
    vocab_size: int | None = VOCAB, config: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """A `LatticeProposer` on the target, with perfect heads if no others are given."""
    from lattice_bpd_vllm import proposer

    heads = PerfectHeads() if heads is ... else heads
    parts = DrafterParts(heads, (), DraftConfig(top_k=4), draft, vocab_size, vocab_source="LM a.lm")
    monkeypatch.setattr(proposer, "load_parts", lambda _: parts)
    made = proposer.LatticeProposer(config or config_of(**{"log_seconds": 0, **options}))
    made.load_model(Target())
    return made


def draft_freely(proposer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft as many tokens as there are, whatever they cost."""
    monkeypatch.setattr(proposer._drafter._mixture, "lengths", None)


def is_right(one: Request) -> bool:
    """Whether the text is the target's own."""
    return one.text == one.prompt + continuation(one.prompt, len(one.text) - len(one.prompt))


class CandidateSampler:
    """`CandidateSampler` of runner V2, for greedy requests."""

    def __init__(self, num_reqs: int, num_steps: int, top_k: int, device: Any) -> None:
        self.num_steps, self.top_k = num_steps, top_k
        self.scores = torch.empty(num_reqs, num_steps, top_k, device=device)

    def sample(
        self, candidate_ids: Any, scores: Any, num_reqs: int, sample_pos: Any, idx_mapping: Any,
        temperature: Any, seeds: Any, draft_tokens: Any, draft_logits: Any, use_fp64: bool,
    ) -> None:  # fmt: skip
        for request in range(num_reqs):
            previous = 0
            for step in range(self.num_steps):
                self.scores[request, step] = scores[request, step, previous]
                previous = int(scores[request, step, previous].argmax())
                draft_tokens[request, step] = candidate_ids[request, step, previous]
