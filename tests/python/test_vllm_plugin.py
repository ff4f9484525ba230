"""`LatticeProposer` in a stand-in for vLLM's runner; engines are tested by `make test-vllm`."""

from __future__ import annotations

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
    Runner,
    config_of,
    continuation,
    draft_freely,
    expand_broken,
    is_right,
    make_proposer,
    vllm,
)
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from lattice_bpd_vllm import counters, step_drafter
from lattice_bpd_vllm.runner_v1 import check_version, observe_steps

__all__ = ["vllm"]  # a fixture


@pytest.mark.parametrize("draft", ["argmax", "best", "chain"])
def test_every_draft_starts_from_its_own_row(
    draft: str, vllm: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    proposer = make_proposer(monkeypatch, draft, check=True)
    requests = [
        Request(
            rng.integers(0, VOCAB, size=int(rng.integers(2, 9))).tolist(),
            max_tokens=int(rng.integers(2, 30)),
            unread=int(rng.integers(0, 3)),
        )
        for _ in range(7)
    ]
    runner = vllm.runner(proposer, requests)
    left = [one.max_tokens or 0 for one in requests]
    drafted = 0
    while any(value > 0 for value in left):
        for i, kept in enumerate(runner.step()):
            left[i] -= kept
            if left[i] > 0:
                expected = min(SLOTS, left[i] - 1) if kept else 0
                right = continuation(requests[i].text, expected) if expected else []
                assert requests[i].drafts == right  # heads are perfect: only a wrong row is wrong
                drafted += expected
        # the scheduler may cut drafts, and pad those of resumed requests
        for one in requests:
            if one.drafts and rng.random() < 0.3:
                one.drafts = one.drafts[:2] + [-1] * int(rng.integers(0, 3))
    assert drafted > 20
    assert all(map(is_right, requests))
    assert proposer.counters.failures == 0
    assert 0 < proposer.counters.accepted_tokens <= proposer.counters.verified_tokens


def test_drafts_end_before_every_limit(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [
        Request([1, 2], max_tokens=1), Request([1] * 61, max_tokens=None), Request([3, 4]),
        Request([4, 5, 6]),
    ]  # fmt: skip
    proposer = make_proposer(monkeypatch)
    runner = vllm.runner(proposer, requests)
    runner.enable_prompt_embeds = True
    fill = runner._fill_batch

    def without_ids() -> None:
        fill()
        runner.input_batch.is_token_ids[3, :3] = False

    monkeypatch.setattr(runner, "_fill_batch", without_ids)
    runner.step()
    # one token of one; 62 of 64 positions; far from any limit; a prompt of embeddings
    assert [len(one.drafts) for one in requests] == [0, 1, SLOTS, 0]
    assert runner.effective_drafter_max_model_len > runner.max_model_len + SLOTS
    runner = vllm.runner(proposer, [Request([3, 4])])
    for budget in (2, 0):  # of a schedule by batch size
        runner.budget = budget
        runner.step()
        assert len(runner.batch[0].drafts) == budget


@pytest.mark.parametrize(
    ("fault", "lengths", "message"),
    [
        ("raises", [0, 0, 0], "RuntimeError: planted"),
        ("is wide", [0, 0, 0], f"logits have {VOCAB + 1} columns, the target's {VOCAB}"),
        ("is invalid", [0, SLOTS, 0], "NaN"),
    ],
)
def test_a_failure_costs_drafts_only(
    fault: str, lengths: list[int], message: str, vllm: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    proposer = make_proposer(monkeypatch, "chain")
    requests = [Request([1, 2]), Request([3, 4]), Request([5, 6])]
    runner, read = vllm.runner(proposer, requests), proposer._drafter.source.read

    def faulty(batch: Any, hidden: torch.Tensor) -> Any:
        if fault == "raises":
            raise RuntimeError("planted")
        logits: Any = read(batch, hidden)
        if fault == "is wide":
            return torch.nn.functional.pad(logits, (0, 1))
        logits[0, 2, 3], logits[2, 0, 1] = torch.nan, torch.inf
        return logits

    with monkeypatch.context() as patch:
        patch.setattr(proposer._drafter.source, "read", faulty)
        for _ in range(2):
            runner.step()
    assert [len(one.drafts) for one in requests] == lengths
    assert proposer.counters.failures == 2
    assert caplog.text.count("drafting failed") == 1
    assert message in caplog.text
    runner.step()
    assert all(one.drafts for one in requests)
    assert all(map(is_right, requests))


class Clock:
    """In place of the module `time`."""

    now = 1000.0

    def perf_counter(self) -> float:
        return self.now


LACKS = (
    MemoryError("no memory to keep keys"),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
)


@pytest.mark.parametrize("lack", LACKS, ids=lambda lack: type(lack).__name__)
@pytest.mark.parametrize("draft", ["chain", "mixture"])
def test_lack_of_memory_pauses_drafting(
    draft: str, lack: Exception, vllm: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Pauses of 1, 2, .. 60 s while it lasts, of 1 s once drafting worked for as long."""
    monkeypatch.setattr(step_drafter, "time", clock := Clock())
    monkeypatch.setattr(Runner, "max_model_len", 4096)
    proposer = make_proposer(monkeypatch, draft, log_seconds=0)
    if draft == "mixture":
        draft_freely(proposer, monkeypatch)
    request = Request([1, 2], max_tokens=None)
    runner, tries, is_short = vllm.runner(proposer, [request]), [], True
    read = proposer._drafter.source.read

    def lacks(*args: Any) -> Any:
        tries.append(clock.now - 1000.0)
        if is_short:
            raise lack
        return read(*args)

    def step_until(end: float) -> None:
        while clock.now < 1000.0 + end:
            runner.step()
            clock.now += 0.25

    monkeypatch.setattr(proposer._drafter.source, "read", lacks)
    step_until(200)
    assert tries == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert proposer.counters.failures == 9
    assert proposer.counters.tokens == proposer.counters.steps == 800  # those of pauses too
    is_short, tries = False, []
    step_until(243.25)
    assert tries == [243]
    assert request.drafts == continuation(request.text, SLOTS)
    is_short, tries = True, []  # short again at once: the pause does not begin anew
    step_until(243.5)
    is_short = False
    step_until(303.25)
    assert tries == [243.25]
    step_until(380)
    is_short, tries = True, []
    step_until(383.5)
    assert tries == [380, 381, 383]
    assert caplog.text.count("no memory to draft") == 1
    assert f"({type(lack).__name__}: {lack}); drafting pauses for 1 s" in caplog.text
    assert is_right(request)
    monkeypatch.setattr(proposer._drafter.source, "read", MagicMock(side_effect=IndexError("own")))
    step_until(390)
    assert caplog.text.count("IndexError: own") == 1  # another kind of error


def test_texts_are_whole_after_a_lack_of_memory(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is short amid a step's tokens, of which the text has some."""
    monkeypatch.setattr(step_drafter, "time", clock := Clock())
    proposer = make_proposer(monkeypatch, "mixture", None, log_seconds=0)
    draft_freely(proposer, monkeypatch)
    mixture = proposer._drafter._mixture
    assert mixture is not None
    request = Request([1, 2, 3, 4])
    runner = vllm.runner(proposer, [request])
    runner.step()
    (text,) = mixture.texts._texts.values()
    whole = text.drafts

    def append(_: Any) -> None:
        whole.append(request.text[-1:])
        raise MemoryError

    text.drafts = SimpleNamespace(append=append)
    for _ in range(3):
        runner.step()
        clock.now += 1.0
    (text,) = mixture.texts._texts.values()
    assert text.length == len(text.drafts) == len(request.text)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_block_drafter_stores_what_is_read_in_a_pause(
    is_stored: bool, vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its texts have holes; not where storing is what memory was short for."""
    monkeypatch.setattr(step_drafter, "time", clock := Clock())
    proposer = make_proposer(monkeypatch, "chain", log_seconds=0)
    drafter, stored = proposer._drafter, 0

    def store(*_: Any) -> None:
        nonlocal stored
        stored += 1
        if not is_stored:
            raise MemoryError

    source = SimpleNamespace(
        layers=(2,), num_slots=SLOTS, store=store, read=MagicMock(side_effect=MemoryError)
    )
    monkeypatch.setattr(drafter, "source", source)
    observe = proposer._read

    def with_features(*args: Any) -> Any:
        return observe(*args)._replace(features=torch.zeros(1), layout=object())

    monkeypatch.setattr(proposer, "_read", with_features)
    runner = vllm.runner(proposer, [Request([1, 2], max_tokens=None)])
    for _ in range(12):  # tries at 0, 1 and 3 s
        runner.step()
        clock.now += 0.3
    assert proposer.counters.failures == 3
    assert source.read.call_count == (3 if is_stored else 0)
    assert stored == (12 if is_stored else 3)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(("layers", "by_core"), [((), 0), ((2, 4), 3)])
def test_compiled_targets_are_kept_by_what_differs_in_them(
    layers: tuple[int, ...], by_core: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lattice_bpd_vllm import proposer

    made: Any = SimpleNamespace(source=SimpleNamespace(layers=layers))
    monkeypatch.setattr(proposer, "StepDrafter", lambda *_, **__: made)
    monkeypatch.setattr(proposer, "use_core_layers", lambda _: by_core)
    config = config_of()
    make_proposer(monkeypatch, config=config)
    found = config.additional_config
    assert found.get("compiled_target_layers") == (list(layers) or None)
    assert found.get("linear_layers_by_core") == (by_core or None)


@pytest.mark.parametrize("log_seconds", [0, 60])
@pytest.mark.usefixtures("vllm")
def test_a_line_at_the_start_says_what_is_drafted_from(
    log_seconds: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from lattice_bpd_vllm import proposer

    monkeypatch.setattr(proposer, "use_core_layers", lambda _: 3)
    with caplog.at_level("INFO", "vllm.lattice_bpd"):
        made = make_proposer(monkeypatch, log_seconds=log_seconds)
    line = f"draft 'argmax', {made._drafter.source.num_slots} slots of heads, n-gram LMs: 0"
    for told in (line, "3 linear layers by the core"):
        assert caplog.text.count(told) == (log_seconds > 0)


def test_check_raises(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    proposer = make_proposer(monkeypatch, check=True)
    runner = vllm.runner(proposer, [Request([1, 2]), Request([3, 9])])
    runner.step()
    observe = proposer.observe_step
    rolled = lambda step: observe(step._replace(hidden=step.hidden.roll(1, 0)))  # noqa: E731
    monkeypatch.setattr(proposer, "observe_step", rolled)
    with pytest.raises(AssertionError, match="rows of hidden states predict"):
        runner.step()


@pytest.mark.parametrize("is_observed", [True, False])
def test_a_runner_of_another_release_is_not_drafted_for(
    is_observed: bool, vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It lacks an attribute, or has a method of its own in the place of the wrapped one."""
    proposer = make_proposer(monkeypatch)
    runner = vllm.runner(proposer, [Request([1, 2])])
    message = "overrides propose_draft_token_ids"
    if is_observed:
        message, others = "has no attribute 'enable_prompt_embeds'", runner
        names = ("requests", "max_model_len", "num_spec_tokens", "input_batch")
        observe = proposer.observe_step
        monkeypatch.setattr(
            proposer, "observe_step",
            lambda step: observe(step._replace(
                runner=SimpleNamespace(**{name: getattr(others, name) for name in names})
            )),
        )  # fmt: skip
    for _ in range(3):
        if is_observed:
            runner.step()
            assert runner.batch[0].drafts == []
        else:
            assert proposer.propose([[1]], np.array([1]), np.array([[1]])) == [[]]
    assert caplog.text.count("nothing is drafted from now on") == 1
    assert message in caplog.text
    assert (proposer.counters.steps, proposer.counters.failures) == (3, 1)


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
def test_the_runner_is_wrapped_once(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_proposer(monkeypatch), lattice_bpd_vllm.LatticeProposer)
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
    changed = type("Changed", (), {"propose_draft_token_ids": lambda self, batch: None})  # noqa: ARG005
    with pytest.raises(ImportError, match=r"vLLM 0.40.0 is not supported.*\(self, batch\).*0.32.0"):
        observe_steps(changed, "0.40.0")
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
        ({"vocab_size": 20}, "logits have 16 columns, LM a.lm a vocabulary of 20"),
        ({"vocab_size": 24, "config": padded}, "16 columns, LM a.lm a vocabulary of 24"),
        ({"vocab_size": None, "heads": more}, "16 columns, the heads a vocabulary of 19"),
        ({"heads": wide}, "hidden states of width 99, the target's have 80"),
        ({"draft": "mixture", "config": adapted}, "LoRA is enabled, and there are draft heads"),
    ]
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            make_proposer(monkeypatch, **given)
    make_proposer(monkeypatch, "mixture", heads=None, config=adapted)


# Warnings
@pytest.mark.parametrize("is_good", [True, False])
def test_a_drafter_that_does_not_pay_is_told_once(
    is_good: bool, vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Heads of another model, whose drafts are never accepted, and whose time is all of a step."""
    monkeypatch.setattr(counters, "_JUDGED_TOKENS", 20)
    monkeypatch.setattr(step_drafter, "_ADVICE_STEPS", 1)
    if not is_good:
        monkeypatch.setattr(counters, "_JUDGED_STEPS", 4)
        monkeypatch.setattr(counters, "_MOST_OWN", 1e-4)  # other processes take time too
        right = PerfectHeads.forward
        monkeypatch.setattr(PerfectHeads, "forward", lambda *a: right(*a).roll(1, dims=-1))
    config = config_of(log_seconds=60.0)
    config.speculative_config.num_speculative_tokens = SLOTS + (not is_good)
    proposer = make_proposer(monkeypatch, config=config)
    runner = vllm.runner(proposer, [Request([1, 2]), Request([3, 4])])
    for _ in range(12):
        runner.step()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert (proposer.counters.accepted_tokens > 10) == is_good
    if is_good:
        assert not warned
        return
    slots, acceptance, own = warned
    assert "num_speculative_tokens is 5, the heads have 4 slots" in slots
    assert re.search(r"0\.0% of \d+ draft tokens were accepted; expected 10%", acceptance)
    assert re.search(r"drafting takes \d+% of a step", own)


@pytest.mark.parametrize(
    ("own", "longest", "told"),
    [(0.0005, 6, ""), (0.002, 6, "20% of a step, 2.00 of 10.00 ms"), (0.0005, 0, ""),
     (0.0005, 4, "had 4 tokens in")],
)  # fmt: skip
def test_times_and_lengths_of_drafts_that_are_told(own: float, longest: int, told: str) -> None:
    advice, now = counters.Advice(8, "mixture"), 0.0
    for n in range(400):
        advice.add_step(now, now + own, longest)
        now += 0.01 if n % 50 else 7.0  # no request for seconds
    lines = advice.lines(counters.DraftCounters())
    assert len(lines) == bool(told)
    assert told in "".join(lines)


def test_the_log_counts_from_the_first_step(
    vllm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server loads a model and waits for requests before it."""
    caplog.set_level("INFO", logger="vllm.lattice_bpd")
    clock = iter([500.0, 500.0, 530.0, 530.0, 561.0, 561.0])  # begin and end of each step
    fake = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr(step_drafter, "time", fake)
    proposer = make_proposer(monkeypatch, config=config_of(log_seconds=60.0))
    runner = vllm.runner(proposer, [Request([1, 2]), Request([3, 4])])
    for lines in (0, 0, 1):
        runner.step()
        assert caplog.text.count("tokens per call") == lines
    assert "in 3 steps" in caplog.text
