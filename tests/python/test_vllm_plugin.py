"""`LatticeProposer` in a stand-in for vLLM's runner; engines are tested by `make test-vllm`."""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import lattice_bpd_vllm
from fake_vllm import (
    SLOTS,
    VOCAB,
    PerfectHeads,
    Request,
    Target,
    config_of,
    continuation,
    expand_broken,
    vllm,
)
from lattice_bpd import DraftConfig
from lattice_bpd_drafters.medusa import MedusaHeads
from lattice_bpd_vllm import counters, step_drafter
from lattice_bpd_vllm import proposer as module
from lattice_bpd_vllm.files import DrafterParts
from lattice_bpd_vllm.proposer import LatticeProposer
from lattice_bpd_vllm.runner_v1 import check_version, observe_steps

__all__ = ["vllm"]  # a fixture


def make_proposer(
    monkeypatch: pytest.MonkeyPatch, draft: str = "argmax", vocab_size: int | None = VOCAB,
    heads: Any = ..., config: Any = None, **options: Any,
) -> LatticeProposer:  # fmt: skip
    heads = PerfectHeads() if heads is ... else heads
    parts = DrafterParts(heads, (), DraftConfig(top_k=4), draft, vocab_size)
    monkeypatch.setattr(module, "load_parts", lambda _: parts)
    proposer = LatticeProposer(config or config_of(log_seconds=0, **options))
    proposer.load_model(Target())
    return proposer


def random_requests(rng: np.random.Generator, count: int) -> list[Request]:
    return [
        Request(
            rng.integers(0, VOCAB, size=int(rng.integers(2, 9))).tolist(),
            max_tokens=int(rng.integers(2, 30)),
            unread=int(rng.integers(0, 3)),
        )
        for _ in range(count)
    ]


def outputs_are_right(requests: list[Request]) -> bool:
    return all(
        one.text == one.prompt + continuation(one.prompt, len(one.text) - len(one.prompt))
        for one in requests
    )


@pytest.mark.parametrize("draft", ["argmax", "best", "chain"])
@pytest.mark.parametrize("seed", range(3))
def test_every_draft_starts_from_its_own_row(
    seed: int, draft: str, vllm: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    proposer = make_proposer(monkeypatch, draft, check=True)
    requests = random_requests(rng, 7)
    runner = vllm.runner(proposer, requests)
    left = [one.max_tokens for one in requests]
    drafted = 0
    while any(value and value > 0 for value in left):
        for i, kept in enumerate(runner.step()):
            left[i] -= kept
            if left[i] > 0:
                expected = min(SLOTS, left[i] - 1) if kept else 0
                assert len(requests[i].drafts) == expected
                right = continuation(requests[i].text, expected) if expected else []
                assert requests[i].drafts == right  # heads are perfect: only a wrong row is wrong
                drafted += expected
        # the scheduler may cut drafts, and pad those of resumed requests
        for one in requests:
            if one.drafts and rng.random() < 0.3:
                one.drafts = one.drafts[:2] + [-1] * int(rng.integers(0, 3))
    assert drafted > 20
    assert outputs_are_right(requests)
    assert proposer.counters.failures == 0
    assert 0 < proposer.counters.accepted_tokens <= proposer.counters.verified_tokens


def test_drafts_never_exceed_the_limits(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(monkeypatch)
    requests = [Request([1, 2], max_tokens=1), Request([1] * 61, max_tokens=None), Request([3, 4])]
    runner = vllm.runner(proposer, requests)
    runner.step()
    # one token of one; 62 of 64 positions; and a request far from any limit
    assert [len(one.drafts) for one in requests] == [0, 1, SLOTS]
    assert runner.effective_drafter_max_model_len > runner.max_model_len + SLOTS


def test_a_dynamic_schedule_is_obeyed(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [Request([3, 4])]
    runner = vllm.runner(make_proposer(monkeypatch), requests)
    for budget in (SLOTS, 2, 0):
        runner.budget = budget
        runner.step()
        assert len(requests[0].drafts) == budget


def test_prompts_of_embeddings_are_not_drafted(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(monkeypatch)
    requests = [Request([1, 2, 3]), Request([4, 5, 6])]
    runner = vllm.runner(proposer, requests)
    runner.enable_prompt_embeds = True
    fill = runner._fill_batch

    def without_ids() -> None:
        fill()
        runner.input_batch.is_token_ids[0, :3] = False

    runner._fill_batch = without_ids
    runner.step()
    assert [len(one.drafts) for one in requests] == [0, SLOTS]


def test_a_failure_costs_drafts_only(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch)
    requests = [Request([1, 2]), Request([3, 4])]
    runner = vllm.runner(proposer, requests)
    runner.step()

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(proposer._drafter.source, "read", fail)
        runner.step()
        runner.step()
    assert [one.drafts for one in requests] == [[], []]
    assert proposer.counters.failures == 2
    assert caplog.text.count("drafting failed") == 1
    assert "OutOfMemoryError" in caplog.text
    runner.step()
    assert all(one.drafts for one in requests)
    assert outputs_are_right(requests)


def test_check_raises(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(monkeypatch, check=True)
    runner = vllm.runner(proposer, [Request([1, 2]), Request([3, 9])])
    runner.step()
    observe = proposer.observe_step
    rolled = lambda step: observe(step._replace(hidden=step.hidden.roll(1, 0)))  # noqa: E731
    monkeypatch.setattr(proposer, "observe_step", rolled)
    with pytest.raises(AssertionError, match="rows of hidden states predict"):
        runner.step()


def test_invalid_logits_cost_the_drafts_of_their_request(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch, "chain")
    requests = [Request([1, 2]), Request([3, 4]), Request([5, 6])]
    runner = vllm.runner(proposer, requests)
    read = proposer._drafter.source.read

    def with_invalid(batch: Any, hidden: torch.Tensor) -> Any:
        logits: Any = read(batch, hidden)
        logits[0, 2, 3], logits[2, 0, 1] = torch.nan, torch.inf
        return logits

    monkeypatch.setattr(proposer._drafter.source, "read", with_invalid)
    runner.step()
    assert [len(one.drafts) for one in requests] == [0, SLOTS, 0]
    assert requests[1].drafts == continuation(requests[1].text, SLOTS)
    assert proposer.counters.failures == 1
    assert caplog.text.count("NaN") > 0


def test_ids_outside_the_vocabulary_are_never_drafted(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch)
    requests = [Request([1, 2]), Request([3, 4])]
    runner = vllm.runner(proposer, requests)
    wide = torch.zeros(2, SLOTS, VOCAB + 1)
    wide[1, 2, VOCAB] = 1.0
    monkeypatch.setattr(proposer._drafter.source, "read", lambda *_: wide)
    runner.step()
    assert [one.drafts for one in requests] == [[], []]
    assert f"logits have {VOCAB + 1} columns, the target's {VOCAB}" in caplog.text


@pytest.mark.parametrize("name", ["num_spec_tokens", "requests", "enable_prompt_embeds"])
def test_a_runner_without_an_attribute_is_not_drafted_for(
    name: str, vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch)
    requests = [Request([1, 2])]
    runner = vllm.runner(proposer, requests)

    class Other:
        """The runner of another release: it has all attributes but one."""

        def __getattr__(self, attribute: str) -> Any:
            if attribute == name:
                raise AttributeError(f"'Other' object has no attribute '{name}'")
            return getattr(runner, attribute)

    observe = proposer.observe_step
    monkeypatch.setattr(
        proposer, "observe_step", lambda step: observe(step._replace(runner=Other()))
    )
    for _ in range(3):
        runner.step()
        assert requests[0].drafts == []
    assert caplog.text.count("nothing is drafted from now on") == 1
    assert f"has no attribute '{name}'" in caplog.text
    assert proposer.counters.steps == 3
    assert proposer.counters.failures == 1


def test_a_runner_that_overrides_the_method_is_named(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch)
    for _ in range(2):
        assert proposer.propose([[1]], np.array([1]), np.array([[1]])) == [[]]
    assert caplog.text.count("overrides propose_draft_token_ids") == 1


@pytest.mark.parametrize("size", [1, 2])
def test_errors_are_raised_where_other_ranks_would_wait(
    size: int, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(log_seconds=0)
    config.parallel_config.tensor_parallel_size = size
    proposer = make_proposer(monkeypatch, config=config)
    runner = vllm.runner(proposer, [Request([1, 2])])
    read = MagicMock(side_effect=MemoryError("on this rank"))
    monkeypatch.setattr(proposer._drafter.source, "read", read)
    with nullcontext() if size == 1 else pytest.raises(MemoryError, match="on this rank"):
        runner.step()


# Sampling
def expand_renamed(values: torch.Tensor) -> torch.Tensor:
    return values


@pytest.mark.parametrize("function", ["correct", expand_broken, None, expand_renamed])
def test_batches_that_sample_are_drafted_where_the_build_is_right(
    function: Any, vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A later release whose function has another name or other parameters is left as it is."""
    sampler = vllm.rejection_sampler
    if function is None:
        del sampler.expand_batch_to_tokens
    elif function != "correct":
        sampler.expand_batch_to_tokens = function
    before = getattr(sampler, "expand_batch_to_tokens", None)
    requests = [Request([1, 2]), Request([3, 4])]
    runner = vllm.runner(make_proposer(monkeypatch), requests)
    runner.all_greedy = False
    runner.step()
    runner.step()
    assert [bool(one.drafts) for one in requests] == [function == "correct"] * 2
    is_unknown = "is unknown, since it has no expand_batch_to_tokens" in caplog.text
    assert is_unknown == (function in (None, expand_renamed))
    assert ("incorrectly" in caplog.text) == (function is expand_broken)
    told = caplog.text.count("batches that sample are not drafted")
    if function is not expand_broken:
        assert getattr(sampler, "expand_batch_to_tokens", None) is before
        return
    assert told == 1
    runner.all_greedy = True
    runner.step()
    assert all(one.drafts for one in requests)
    repaired = sampler.expand_batch_to_tokens(
        torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 3, 6]), 6, replace_from=0, replace_to=1
    )
    assert repaired.tolist() == [0.5, 0.5, 1.0, 2.0, 2.0, 2.0]


# Start-up
def test_the_class_is_found_by_its_path() -> None:
    assert lattice_bpd_vllm.LatticeProposer is LatticeProposer
    with pytest.raises(AttributeError, match="no attribute 'Proposer'"):
        lattice_bpd_vllm.Proposer  # noqa: B018


def test_the_runner_is_wrapped_once(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make_proposer(monkeypatch)
    wrapped = vllm.runner.propose_draft_token_ids
    make_proposer(monkeypatch)
    assert vllm.runner.propose_draft_token_ids is wrapped
    other = vllm.runner(SimpleNamespace(propose=lambda *_, **__: [[]]), [Request([1, 2])])
    assert other.step() == [1]  # another method's drafter is left alone


def test_versions(vllm: Any, caplog: pytest.LogCaptureFixture) -> None:
    method = vllm.runner.propose_draft_token_ids
    check_version(method, "0.32.0+cpu")
    assert not caplog.text
    check_version(method, "0.33.1")
    assert "vLLM 0.33.1 was not tested; tested: 0.32.0, 0.33.0" in caplog.text

    class Changed:
        def propose_draft_token_ids(self, batch: Any) -> Any:
            return batch

    with pytest.raises(ImportError, match=r"vLLM 0.40.0 is not supported.*\(self, batch\).*0.32.0"):
        observe_steps(Changed, "0.40.0")
    with pytest.raises(ImportError, match=r"vLLM 0\.41\.0 is not supported"):
        observe_steps(type("Runner", (), {}), "0.41.0")


def test_what_does_not_fit_is_refused(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    padded, adapted = config_of(), config_of()
    wide: Any = PerfectHeads()
    padded.model_config.get_vocab_size = lambda: VOCAB + 8
    adapted.lora_config = object()
    wide.hidden_size = 99
    more = MedusaHeads(VOCAB * (SLOTS + 1), VOCAB + 3, SLOTS)  # with logits of their own
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vocab_size": 20}, "logits have 16 columns, drafter and LM a vocabulary of 20"),
        ({"vocab_size": 24, "config": padded}, "16 columns, drafter and LM a vocabulary of 24"),
        ({"vocab_size": None, "heads": more}, "16 columns, the heads a vocabulary of 19"),
        ({"heads": wide}, "hidden states of width 99, the target's have 80"),
        ({"draft": "mixture", "config": adapted}, "LoRA is enabled, and there are draft heads"),
    ]
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            make_proposer(monkeypatch, **given)
    make_proposer(monkeypatch, "mixture", heads=None, config=adapted)


def test_counts_are_logged(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = make_proposer(monkeypatch)
    object.__setattr__(proposer.options, "log_seconds", 1e-9)
    runner = vllm.runner(proposer, [Request([1, 2]), Request([3, 4])])
    with caplog.at_level(logging.INFO, "vllm.lattice_bpd"):
        runner.step()
        runner.step()
    assert "2 drafts of 8 tokens, 0 verified" in caplog.text
    assert "4 drafts of 16 tokens, 8 verified, 8 accepted (100.0%), 3.00 tokens" in caplog.text
    proposer.counters.failures = 1
    assert re.search(r"ms per step in 2 steps, 1 steps failed$", proposer.counters.describe())


@pytest.mark.parametrize("is_good", [True, False])
def test_a_drafter_that_does_not_pay_is_told_once(
    is_good: bool, vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Heads of another model, whose drafts are never accepted, and whose time is all of a step."""
    monkeypatch.setattr(counters, "_JUDGED_TOKENS", 20)
    monkeypatch.setattr(step_drafter, "_ADVICE_STEPS", 1)
    if not is_good:
        monkeypatch.setattr(counters, "_JUDGED_STEPS", 4)
        right = PerfectHeads.forward
        monkeypatch.setattr(PerfectHeads, "forward", lambda *a: right(*a).roll(1, dims=-1))
    proposer = make_proposer(monkeypatch)
    object.__setattr__(proposer.options, "log_seconds", 60.0)
    runner = vllm.runner(proposer, [Request([1, 2]), Request([3, 4])])
    for _ in range(12):
        runner.step()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == (0 if is_good else 2)
    assert (proposer.counters.accepted_tokens > 10) == is_good
    if warned:
        assert re.search(r"0\.0% of \d+ draft tokens were accepted; expected 10%", warned[0])
        assert re.search(r"drafting takes \d+% of a step", warned[1])


@pytest.mark.parametrize("own", [0.0005, 0.002])
def test_the_time_of_drafting_is_compared_with_that_of_a_step(own: float) -> None:
    advice, counts = counters.Advice(8, "mixture"), counters.DraftCounters()
    now = 0.0
    for n in range(400):
        advice.add_step(now, now + own, 6)
        now += 0.01 if n % 50 else 7.0  # no request for seconds
    lines = advice.lines(counts)
    assert [line for line in lines if "of a step" in line] == lines
    assert bool(lines) == (own == 0.002)
    assert "20% of a step, 2.00 of 10.00 ms" in "".join(lines) or not lines


def test_more_draft_tokens_than_pay_are_told() -> None:
    for longest, told in ((0, False), (3, True), (4, True), (5, False)):
        advice = counters.Advice(8, "mixture")
        for n in range(300):
            advice.add_step(0.01 * n, 0.01 * n, longest)
        lines = advice.lines(counters.DraftCounters())
        assert bool(lines) == told
        assert not told or f"had {longest} tokens in 299 steps" in lines[0]


def test_more_draft_tokens_than_slots_are_told(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make_proposer(monkeypatch)
    assert "slots" not in caplog.text
    config = config_of(log_seconds=0)
    config.speculative_config.num_speculative_tokens = SLOTS + 2
    LatticeProposer(config).load_model(Target())
    assert "num_speculative_tokens is 6, the heads have 4 slots" in caplog.text
