"""What is decoded with drafts and without; the outputs must be equal."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from conftest import FOLDER, Engine, ids
from lattice_bpd_vllm.options import DrafterOptions


def read_prompts() -> list[list[int]]:
    prompts: list[list[int]] = json.loads((FOLDER / "expected.json").read_text())["prompts"]
    return prompts


def greedy(**params: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 48, **params})


def mixed_lengths(engine: Engine, prompts: list[list[int]]) -> Any:
    """Prompts of 2 to 24 tokens and outputs of 1 to 64 in one batch."""
    short = [prompt[: 2 + 3 * i % 23] for i, prompt in enumerate(prompts)]
    return engine.tokens(short, sampling=[greedy(max_tokens=1 + 9 * i % 64) for i in range(32)])


def stop_strings(engine: Engine, prompts: list[list[int]]) -> Any:
    results = engine.generate(prompts[:16], stop=["Lily", "park", "."], max_tokens=48)
    return [(list(one.outputs[0].token_ids), one.outputs[0].stop_reason) for one in results]


def stop_tokens(engine: Engine, prompts: list[list[int]]) -> Any:
    params = greedy(stop_token_ids=[432, 426, 286], min_tokens=5, ignore_eos=True)
    return engine.tokens(prompts[:16], sampling=[params] * 16)


def penalties(engine: Engine, prompts: list[list[int]]) -> Any:
    params = greedy(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
    return engine.tokens(prompts[:16], sampling=[params] * 16)


def allowed_tokens(engine: Engine, prompts: list[list[int]]) -> Any:
    params = greedy(allowed_token_ids=list(range(3, 512, 2)), max_tokens=24)
    words = greedy(bad_words=["Lily", "was", "the"], max_tokens=24)
    return engine.tokens(prompts[:16], sampling=[params] * 8 + [words] * 8)


def logprobs(engine: Engine, prompts: list[list[int]]) -> Any:
    results = engine.generate(prompts[:8], logprobs=2, prompt_logprobs=1, max_tokens=24)
    return [
        (
            [{k: v.logprob for k, v in row.items()} for row in one.outputs[0].logprobs],
            len(one.prompt_logprobs),
        )
        for one in results
    ]


def structured(engine: Engine, prompts: list[list[int]]) -> Any:
    choice = StructuredOutputsParams(choice=["Lily", "Tom and the dog"])
    regex = StructuredOutputsParams(regex=r"( [a-z]{2,6}){4}\.")
    params = [greedy(structured_outputs=one, max_tokens=32) for one in (choice, regex)]
    return engine.tokens(prompts[:8], sampling=params * 4)


def json_objects(engine: Engine, prompts: list[list[int]]) -> Any:
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["Lily", "Tom"]}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    params = greedy(structured_outputs=StructuredOutputsParams(json=schema), max_tokens=40)
    return engine.tokens(prompts[:8], sampling=[params] * 8)


SCENES = {
    scene.__name__: scene
    for scene in (
        mixed_lengths, stop_strings, stop_tokens, penalties, allowed_tokens, logprobs, structured,
        json_objects,
    )
}  # fmt: skip
DEFAULTS = {one.name: one.default for one in fields(DrafterOptions)}
SHORT = 72  # max_model_len of the small engine


def long_prompts(prompts: list[list[int]]) -> list[list[int]]:
    """Prompts with a common beginning of 40 tokens."""
    common = prompts[0] + prompts[1][:16]
    return [common + prompt[: 4 + i] for i, prompt in enumerate(prompts[:16])]


def repeated_prompts(engine: Engine, prompts: list[list[int]]) -> Any:
    """Prompts with a common beginning, all twice, up to the model's last position."""
    return [engine.tokens(long_prompts(prompts), max_tokens=100) for _ in range(2)]


def run_prefixes(options: dict[str, Any], is_cached: bool) -> tuple[list[dict[str, Any]], float]:
    """Counts of prompts with a common beginning, twice, and how many tokens of prefixes hit."""
    engine = Engine(options, enable_prefix_caching=is_cached, block_size=32)
    prompts = long_prompts(read_prompts())
    counts = [count_load(engine, prompts, load) for load in (1, 16)]
    return counts, engine.metric("vllm:prefix_cache_hits")


def run_small(options: dict[str, Any] | None) -> dict[str, Any]:
    """Chunks of prompts, prefix caching, few blocks (preemption) and texts near the limit."""
    prompts = read_prompts()
    engine = Engine(
        options, max_model_len=SHORT, max_num_batched_tokens=40, num_gpu_blocks_override=8,
        enable_prefix_caching=True, block_size=32,
    )  # fmt: skip
    answer: dict[str, Any] = {
        "repeated": repeated_prompts(engine, prompts),
        "mixed": mixed_lengths(engine, prompts),
        "preemptions": engine.metric("vllm:num_preemptions"),
        "prefix_hits": engine.metric("vllm:prefix_cache_hits"),
        "verified": engine.metric("vllm:spec_decode_num_draft_tokens"),
    }
    if options is not None:
        answer["counters"] = engine.counters
    return answer


def run_compiled(directory: str) -> tuple[list[list[int]], dict[str, Any]]:
    """Greedy outputs and counts of an engine that compiles the target."""
    engine = Engine({"directory": directory}, enforce_eager=False)
    assert not engine.llm.llm_engine.model_config.enforce_eager
    return engine.tokens(read_prompts()), engine.counters


def run_bfloat16(options: dict[str, Any] | None) -> dict[str, Any]:
    """Greedy outputs in bfloat16 with the log probabilities of the best tokens, load 1 and 16."""
    engine = Engine(options, dtype="bfloat16")
    results = [engine.generate(read_prompts(), load, logprobs=8) for load in (1, 16)]
    return {
        "outputs": [ids(one) for one in results],
        "best": [
            {token: value.logprob for token, value in row.items()}
            for one in results[0]
            for row in one.outputs[0].logprobs
        ],
        "counters": None if options is None else engine.counters,
    }


def run_scenes(options: dict[str, Any] | None) -> dict[str, Any]:
    """All scenes on one engine; with drafts also how many there were."""
    prompts = read_prompts()
    engine = Engine(options)
    answer: dict[str, Any] = {}
    for name, scene in SCENES.items():
        # the grammar of an object may cut every draft of heads that know nothing of it
        key = "draft_tokens" if scene is json_objects else "verified_tokens"
        before = 0 if options is None else engine.counters[key]
        answer[name] = scene(engine, prompts)
        if options is not None:
            answer[f"{name} drafts"] = engine.counters[key] - before
    return answer


def run_forms(
    forms: dict[str, dict[str, Any]], start: dict[str, Any] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Greedy outputs of each draft form at load 1, 4 and 16 with the counts of each."""
    prompts = read_prompts()
    engine = Engine(start or {})
    proposer, answers = engine.runner.drafter, {}
    for name, options in forms.items():
        proposer.options = replace(proposer.options, **options)
        proposer.load_model(engine.runner.model)
        answers[name] = [count_load(engine, prompts, load) for load in (1, 4, 16)]
        proposer.options = replace(proposer.options, **{name: DEFAULTS[name] for name in options})
    return answers


def run_folders(folders: list[str]) -> dict[str, list[dict[str, Any]]]:
    """The same of other drafters, in one engine that returns all layers which the first reads."""
    prompts = read_prompts()
    engine = Engine({"directory": str(FOLDER / folders[0])})
    proposer, answers = engine.runner.drafter, {}
    for name in folders:
        proposer.options = replace(proposer.options, directory=str(FOLDER / name))
        proposer.load_model(engine.runner.model)
        answers[name] = [count_load(engine, prompts, load) for load in (1, 4, 16)]
    return answers


def count_load(engine: Engine, prompts: list[list[int]], load: int) -> dict[str, Any]:
    before = engine.counters
    results = engine.generate(prompts, load)
    counts = {name: value - before[name] for name, value in engine.counters.items()}
    return {"outputs": ids(results), **counts}
