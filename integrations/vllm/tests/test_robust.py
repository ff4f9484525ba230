"""Sampling, failures, schedules and refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scenes import greedy, read_prompts
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs

from conftest import FOLDER, SPECULATIVE, Engine, ids, in_child
from lattice_bpd_vllm import step_drafter, support


def run_sampled(options: dict[str, Any] | None) -> dict[str, Any]:
    """Sampled requests alone, mixed with greedy ones, and joining greedy ones."""
    prompts = read_prompts()
    engine = Engine(options)
    broken = options is not None and engine.runner.drafter._sampling != "correct"
    sampled = [SamplingParams(temperature=1.0, top_p=0.9, max_tokens=24, seed=i) for i in range(16)]
    alone = engine.tokens(prompts[:16], sampling=sampled)
    drafts = engine.counters["drafts"] if options is not None else 0
    long = [greedy(max_tokens=100, ignore_eos=True) for _ in range(8)]
    mixed = engine.tokens(prompts[:16], sampling=[*long, *sampled[8:]])
    joined = join(engine, prompts, long, sampled[8:])
    return {
        "alone": alone,
        "mixed": mixed[:8],
        "joined": joined,
        "drafts": drafts,
        "broken": broken,
    }


def join(engine: Engine, prompts: list[list[int]], long: list[Any], sampled: list[Any]) -> Any:
    """Outputs of greedy requests that sampled requests join while drafts wait for verification."""
    core, finished = engine.llm.llm_engine, {}
    for i, params in enumerate(long):
        core.add_request(f"greedy {i}", {"prompt_token_ids": prompts[i]}, params)
    steps = 0
    while core.has_unfinished_requests():
        steps += 1
        if steps % 4 == 0 and steps // 4 <= len(sampled):
            number = steps // 4 - 1
            prompt = {"prompt_token_ids": prompts[8 + number]}
            params = SamplingParams(temperature=1.0, max_tokens=2, seed=number)
            core.add_request(f"sampled {number}", prompt, params)
        for result in core.step():
            if result.finished:
                finished[result.request_id] = result
    return ids([finished[f"greedy {i}"] for i in range(len(long))])


def test_sampling_is_that_of_plain_vllm_or_not_drafted() -> None:
    plain, drafted = in_child(run_sampled, None), in_child(run_sampled, {"check": False})
    assert drafted["mixed"] == plain["mixed"]
    assert drafted["joined"] == plain["joined"]
    if drafted["broken"]:
        assert drafted["drafts"] == 0
        assert drafted["alone"] == plain["alone"]
    else:
        assert drafted["drafts"] > 0


def run_repaired() -> dict[str, Any]:
    """Drafts of sampled requests are verified with the repaired function."""
    prompts, answer = read_prompts(), {}
    engine = Engine({"check": False}, max_num_seqs=64)
    proposer = engine.runner.drafter
    proposer._sampling = "correct"
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=4, n=250)
    answer["samples"] = first_samples(engine, params)
    before = engine.counters["accepted_tokens"]
    assert before > 100
    long = [greedy(max_tokens=64, ignore_eos=True) for _ in range(8)]
    seeded = [
        SamplingParams(temperature=1.0, top_p=0.9, max_tokens=24, seed=i, n=1 + i % 3)
        for i in range(8)
    ]
    answer["mixed"] = [
        [[list(one.token_ids) for one in result.outputs] for result in results]
        for results in (engine.generate(prompts[:16], sampling=[*long, *seeded]) for _ in range(2))
    ]
    answer["accepted"] = engine.counters["accepted_tokens"] - before
    proposer._sampling = "incorrect"
    answer["plain"] = first_samples(engine, params)
    return answer


def first_samples(engine: Engine, params: SamplingParams) -> list[list[list[int]]]:
    results = engine.generate(read_prompts()[:4], sampling=[params] * 4)
    return [[list(one.token_ids) for one in result.outputs] for result in results]


@pytest.fixture(scope="module")
def repaired() -> dict[str, Any]:
    return in_child(run_repaired)


def test_sampled_drafts_keep_the_distribution(repaired: dict[str, Any]) -> None:
    """Verified drafts of sampled requests, once vLLM's function is right, against no drafts."""
    for with_drafts, without in zip(repaired["samples"], repaired["plain"], strict=True):
        for depth in (1, 2, 3):
            statistic, freedom = compare(
                [o[depth] for o in with_drafts], [o[depth] for o in without]
            )
            # normal approximation of chi-square: 5 standard deviations
            assert statistic < freedom + 5 * np.sqrt(2 * max(freedom, 1)), (depth, statistic)


def test_greedy_requests_are_exact_beside_sampled_ones(
    repaired: dict[str, Any], expected: dict[str, Any]
) -> None:
    for outputs in repaired["mixed"]:
        assert [one for (one,) in outputs[:8]] == expected["outputs"][:8]
    assert repaired["accepted"] > 200


def test_seeds_give_the_same_samples_twice(repaired: dict[str, Any]) -> None:
    first, second = (outputs[8:] for outputs in repaired["mixed"])
    assert [len(outputs) for outputs in first] == [1 + i % 3 for i in range(8)]
    assert first == second
    assert len({str(outputs[0]) for outputs in first}) > 1


def compare(first: list[int], second: list[int]) -> tuple[float, int]:
    """Chi-square statistic of two samples of one size; tokens rarer than 10 are one class."""
    counts = np.array([np.bincount(one, minlength=512) for one in (first, second)])
    often = counts.sum(0) >= 10
    table = np.column_stack([counts[:, often], counts[:, ~often].sum(1)])
    table = table[:, table.sum(0) > 0]
    statistic = ((table[0] - table[1]) ** 2 / table.sum(0)).sum()
    return float(statistic), table.shape[1] - 1


def run_failing(error: type[Exception]) -> Any:
    """Every third search fails; by the clock of the drafter a step takes a quarter of a second."""
    prompts = read_prompts()
    engine = Engine({"check": False})
    drafter, calls, now = engine.runner.drafter._drafter, 0, 0.0
    search = drafter._lattices
    propose = search.propose

    class Failing:
        context_length = search.context_length

        def propose(self, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise error("planted")
            return propose(*args)

    def read_clock() -> float:
        nonlocal now
        now += 0.125
        return now

    drafter._lattices = Failing()
    step_drafter.time = SimpleNamespace(perf_counter=read_clock)  # type: ignore[assignment]
    return engine.tokens(prompts), engine.counters, calls


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_errors_cost_drafts_only(
    error: type[Exception], expected: dict[str, Any], capfd: Any
) -> None:
    outputs, counters, calls = in_child(run_failing, error)
    assert outputs == expected["outputs"]
    assert counters["failures"] == calls // 3 > 2
    assert counters["accepted_tokens"] > 0
    is_short = error is MemoryError  # then drafting pauses
    assert (calls < counters["steps"] / 2) == is_short
    printed = "".join(capfd.readouterr())
    assert printed.count("drafting failed") == (not is_short)
    assert printed.count("drafting pauses for 1 s") == is_short
    assert printed.count(f"{error.__name__}: planted") == 1


def run_schedule() -> Any:
    schedule = [[1, 4, 6], [5, 16, 2]]
    engine = Engine({}, speculative={"num_speculative_tokens_per_batch_size": schedule})
    config = engine.llm.llm_engine.vllm_config.speculative_config
    if config.num_speculative_tokens_per_batch_size is None:
        return None
    prompts, counts = read_prompts(), []
    for load in (2, 16):
        before = engine.counters
        outputs = engine.tokens(prompts, load)
        after = engine.counters
        longest = {name: after[name] - before[name] for name in ("drafts", "draft_tokens")}
        counts.append((outputs, longest["draft_tokens"] / longest["drafts"]))
    return counts


def test_a_dynamic_schedule_is_obeyed(expected: dict[str, Any]) -> None:
    answer = in_child(run_schedule)
    if answer is None:
        pytest.skip("this release of vLLM switches schedules off for custom_class")
    (few, few_mean), (many, many_mean) = answer
    assert few == many == expected["outputs"]
    assert many_mean < 2.2  # a few steps have 4 requests or fewer
    assert 2.5 < few_mean <= 6.0


def run_configurations() -> list[list[str]]:
    """What our plug-in logs of each configuration; no engine is made."""
    lines: list[str] = []
    support._warn_once = lines.append  # type: ignore[assignment]
    logged, ours = [], {"lattice_bpd": {}}
    ngram = {"method": "ngram", "prompt_lookup_max": 4, "num_speculative_tokens": 4}
    custom = {**SPECULATIVE, "num_speculative_tokens": 4}
    for speculative, additional in (
        (None, ours), (ngram, ours), (ngram, {"lattice-bpd": {}}), (ngram, {"lm": "a.lm"}),
        (ngram, {"gdn_prefill_backend": "triton"}), (custom, ours),
    ):  # fmt: skip
        lines.clear()
        EngineArgs(
            str(FOLDER / "target"), dtype="float32", speculative_config=speculative,
            additional_config=additional,
        ).create_engine_config()  # fmt: skip
        logged.append(list(lines))
    return logged


def test_options_that_no_drafter_reads_are_logged() -> None:
    nothing, other, misspelled, beside, *used = in_child(run_configurations)
    assert used == [[], []]
    assert [len(lines) for lines in (nothing, other, misspelled, beside)] == [1] * 4
    assert "no --speculative-config is given" in nothing[0]
    assert "'ngram' is vLLM's own in model runner V1" in other[0]
    assert "has 'lattice-bpd', which is not read" in misspelled[0]
    assert "has 'lm', which is not read" in beside[0]


def error_of(function: Any, *args: Any, **values: Any) -> str:
    try:
        function(*args, **values)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run_refused() -> list[str]:
    """The errors of engines that must not start, and of requests that vLLM does not draft for."""
    messages = [
        error_of(Engine, {"directory": "/nowhere"}),
        error_of(Engine, {"drafts": "chain"}),
        error_of(Engine, {}, async_scheduling=True),
        error_of(Engine, {}, enable_lora=True),
    ]
    engine = Engine({})
    assert not engine.runner.use_async_scheduling
    for params in ({"min_p": 0.1}, {"logit_bias": {5: 1.0}}):
        messages.append(error_of(engine.generate, [[1, 5, 6]], temperature=1.0, **params))
    return messages


def test_errors_say_what_to_do() -> None:
    missing, unknown, asynchronous, adapters, min_p, logit_bias = in_child(run_refused)
    assert "/nowhere" in missing
    assert "unknown option 'drafts'; did you mean 'draft'" in unknown
    assert "async" in asynchronous.lower()  # by vLLM, for every custom_class
    assert "LoRA is enabled" in adapters
    assert "min_p" in min_p  # by vLLM, for every drafting method
    assert "logit_bias" in logit_bias
