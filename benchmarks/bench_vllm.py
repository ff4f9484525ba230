"""vLLM with drafts and without, on a real LLM: tokens per call, tokens/s, equal texts.

    make test-vllm                                               # makes build/vllm-venv
    PYTHONPATH=build/vllm-test/packages build/vllm-venv/bin/python benchmarks/bench_vllm.py MODEL
        --drafter examples/smollm2 --loads 1 8 16 --json benchmarks/results/vllm.jsonl

Every method has an engine in a process of its own; they take turns in random order, one at a time.
So many requests as the load run at a time; above load 1 a turn is three times as many, and the next
one takes the place of one that ends, as in a server. Instruction prompts of the yardstick's test
half or those of `--prompts`, greedy, `--tokens` each, every turn with others. Printed by load:
tokens per call of the model for each request (its prompt's call included), tokens/s of wall-clock
time, the same relative to plain vLLM on these turns (95 % bootstrap interval over turns, where
there are several) and by processor time, the drafter's own time per step, and texts equal to those
of plain vLLM at load 1. Where texts differ first, plain vLLM is asked for the log probabilities
there: a difference above `--near-tie` nats is an error and ends the program.

vLLM's `suffix` method needs `pip install --no-deps arctic-inference==0.1.1`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
import traceback
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR",
)  # fmt: skip

PROMPTS = Path(__file__).resolve().parent / "prompts" / "prompts.jsonl"
OURS = {"method": "custom_class", "model": "lattice_bpd_vllm.LatticeProposer"}
PLAIN = "plain"
TURNS = {1: 18, 8: 2, 16: 1}  # by load
WARM_UP, LONGEST = 64, 512  # tokens of an answer, of a prompt


def methods(drafter: str, length: int) -> dict[str, dict[str, Any]]:
    """Settings of vLLM's `LLM`."""

    def ours(speculative: dict[str, Any] = OURS, **options: Any) -> dict[str, Any]:
        return {
            "speculative_config": {"num_speculative_tokens": length, **speculative},
            "additional_config": {"lattice_bpd": {"log_seconds": 0, **options}},
        }

    lookup = {"prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4}
    before = {"directory": drafter, "sources": ["lm", "text"]}
    own = {**before, "sources": [*before["sources"], "target"]}
    return {
        PLAIN: {},
        "vLLM ngram": {"speculative_config": {"method": "ngram", **lookup}},
        "vLLM suffix": {
            "speculative_config": {"method": "suffix", "num_speculative_tokens": length}
        },
        "ours, text": ours(),
        "ours, text and LM": ours(**own),
        "ours, text, LM, heads": ours(directory=drafter),
        "ours, text, LM, store": ours(**own, store=""),
        "vLLM ngram_gpu": {"speculative_config": {"method": "ngram_gpu", **lookup}},
        "ours in V2": ours({"method": "ngram_gpu", **lookup}, **before),
        "ours, text, no predictions": ours(sources=["text"]),
        "ours, text and LM, no predictions": ours(**before),
    }


def read_prompts(model: str, path: Path, skip: int) -> list[list[int]]:
    """Prompts of one message, one of each kind after the other; long ones are left out."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("split", "test") == "test" and "messages" in row:
            kinds.setdefault(row.get("kind", ""), []).append(row)
    longest = max(map(len, kinds.values()))
    ordered = [some[i] for i in range(longest) for some in kinds.values() if i < len(some)]
    prompts = [
        list(
            tokenizer.apply_chat_template(
                row["messages"], add_generation_prompt=True, return_dict=True
            )["input_ids"]
        )
        for row in ordered
    ]
    return [prompt for prompt in prompts if len(prompt) <= LONGEST][skip:]


class Engine:
    """An engine in a process of its own."""

    def __init__(self, model: str, settings: dict[str, Any]) -> None:
        context = get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, model, settings), daemon=True)
        self._process.start()

    def call(self, *request: Any) -> Any:
        self._pipe.send(request)
        return self.result()

    def result(self) -> Any:
        """What the process sent; its error ends this one."""
        succeeded, value = self._pipe.recv()
        if not succeeded:
            raise SystemExit(f"bench_vllm: in an engine's process: {value}")
        return value


def _serve(pipe: Any, model: str, settings: dict[str, Any]) -> None:
    try:
        import vllm

        llm = vllm.LLM(
            model, max_model_len=1024, seed=0, enable_prefix_caching=False,
            disable_log_stats=True, **settings,
        )  # fmt: skip
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        drafter = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)  # V1, V2
        counters = getattr(drafter, "counters", None)
        pipe.send((True, None))
        while True:
            prompts, tokens, top, load = pipe.recv()
            llm.llm_engine.engine_core.engine_core.scheduler.max_num_active_reqs = load
            params = vllm.SamplingParams(
                temperature=0, max_tokens=tokens, logprobs=top or None, ignore_eos=bool(top)
            )
            before = None if counters is None else (counters.steps, counters.seconds)
            steps, cpu, start = _Steps(llm), time.process_time(), time.perf_counter()
            with steps:
                outputs = llm.generate(
                    [{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False
                )
            seconds = time.perf_counter() - start
            answer: dict[str, Any] = {
                "seconds": seconds, "cpu": time.process_time() - cpu, "calls": steps.calls,
                "texts": [list(one.outputs[0].token_ids) for one in outputs],
            }  # fmt: skip
            if before is not None:
                answer["own"] = counters.seconds - before[1]
                answer["steps"] = counters.steps - before[0]
            if top:
                answer["logprobs"] = [
                    {token: value.logprob for token, value in one.outputs[0].logprobs[0].items()}
                    for one in outputs
                ]
            pipe.send((True, answer))
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        pipe.send((False, f"{error!r} in {where.filename}, line {where.lineno}"))


class _Steps:
    """Counts the model's calls for each request that got tokens in them."""

    def __init__(self, llm: Any) -> None:
        self._scheduler, self.calls = llm.llm_engine.engine_core.engine_core.scheduler, 0
        self._inner = self._scheduler.update_from_output

    def __enter__(self) -> None:
        def update(scheduled: Any, output: Any) -> Any:
            self.calls += sum(1 for tokens in output.sampled_token_ids or () if len(tokens))
            return self._inner(scheduled, output)

        self._scheduler.update_from_output = update

    def __exit__(self, *_: object) -> None:
        self._scheduler.update_from_output = self._inner


def turn_size(load: int) -> int:
    """Prompts of a turn."""
    return 1 if load == 1 else 3 * load


def measure(
    engines: dict[str, Engine], prompts: list[list[int]], load: int, turns: int, tokens: int
) -> dict[str, list[dict[str, Any]]]:
    """Each turn by each method."""
    rng, runs = random.Random(load), {name: [] for name in engines}  # type: ignore[var-annotated]
    for turn in range(turns):
        batch = prompts[turn * turn_size(load) :][: turn_size(load)]
        for name in rng.sample(list(engines), len(engines)):
            time.sleep(0.05)  # threads of the last engine stop waiting for work
            runs[name].append(engines[name].call(batch, tokens, 0, load))
    return runs


def classify(
    plain: Engine, prompts: list[list[int]], expected: list[list[int]], texts: list[list[int]],
    near_tie: float,
) -> tuple[int, list[float]]:  # fmt: skip
    """Equal texts, and the margins of the others' first difference.

    Raises:
        SystemExit: one that is no near-tie.
    """
    margins, equal = [], 0
    for number, (prompt, one, other) in enumerate(zip(prompts, expected, texts, strict=False)):
        if one == other:
            equal += 1
            continue
        pairs = zip(one, other, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
        answer = plain.call([[*prompt, *one[:at]]], 1, 20, 1)["logprobs"][0]
        chosen = [answer.get(text[at], -np.inf) if at < len(text) else -np.inf
                  for text in (one, other)]  # fmt: skip
        margin = float(max(answer.values()) - min(chosen))
        if margin > near_tie:
            raise SystemExit(
                f"bench_vllm: prompt {number}, position {at}: {other[at : at + 1]} instead of "
                f"{one[at : at + 1]}, margin {margin:.3f}; expected {near_tie} or less"
            )
        margins.append(margin)
    return equal, margins


def describe(runs: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a method at one load."""

    def rates(some: list[dict[str, Any]], key: str) -> np.ndarray:
        return np.array([(sum(map(len, run["texts"])), run[key]) for run in some], np.float64)

    answer: dict[str, Any] = {}
    for key in ("seconds", "cpu"):
        one, other = rates(runs, key), rates(plain, key)
        rng = np.random.default_rng(0)
        picked = rng.integers(0, len(one), size=(2000, len(one)))

        def gain(rows: Any, one: Any = one, other: Any = other) -> Any:
            (a, b), (c, d) = one[rows].sum(axis=-2).T, other[rows].sum(axis=-2).T
            return (a / b) / (c / d)

        low, high = np.quantile(gain(picked), [0.025, 0.975])
        whole = one.sum(axis=0)
        answer[key] = {
            "tokens_per_second": float(whole[0] / whole[1]),
            "relative": float(gain(np.arange(len(one)))), "low": float(low), "high": float(high),
        }  # fmt: skip
    answer["tokens_per_call"] = sum(len(text) for run in runs for text in run["texts"]) / sum(
        run["calls"] for run in runs
    )
    steps = sum(run.get("steps", 0) for run in runs)
    answer["own_ms"] = 1e3 * sum(run.get("own", 0.0) for run in runs) / steps if steps else None
    return answer


def print_rows(rows: list[dict[str, Any]]) -> None:
    """A table of each load."""
    for load in sorted({row["load"] for row in rows}):
        print(
            f"\nload {load}\n{'':24}tok/call   tok/s  relative  95 %          cpu   own ms  equal"
        )
        for row in (row for row in rows if row["load"] == load):
            wall, own = row["seconds"], row["own_ms"]
            print(
                f"{row['method']:24}{row['tokens_per_call']:8.2f}{wall['tokens_per_second']:8.1f}"
                f"{wall['relative']:10.2f}  {wall['low']:.2f}-{wall['high']:.2f}"
                f"{row['cpu']['relative']:11.2f}{'-' if own is None else f'{own:.2f}':>9}"
                f"  {row['equal_texts']} of {row['texts']}, margins to {row['largest_margin']:.3f}"
            )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", help="a folder of transformers")
    parser.add_argument("--drafter", default="examples/smollm2", help="a folder of build")
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument(
        "--methods", type=int, nargs="+", metavar="N", choices=range(1, 11), default=range(1, 7),
        help="1 ngram, 2 suffix, 3 text, 4 text and LM, 5 with heads, 6 with a store; in model "
        "runner V2, for GPUs: 7 ngram_gpu, 8 text and LM; without the model's own predictions: 9 "
        "text, 10 text and LM (default: 1 to 6)",
    )  # fmt: skip
    parser.add_argument("--dtype", default="bfloat16", help="of the model (default bfloat16)")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines with messages")
    parser.add_argument("--skip", type=int, default=0, help="leave out the first prompts")
    parser.add_argument(
        "--turns", type=int, nargs="+", metavar="N",
        help=f"one number for all loads or one for each (default: {TURNS}, 1 elsewhere)",
    )  # fmt: skip
    parser.add_argument("--length", type=int, default=8, help="num_speculative_tokens of ours")
    parser.add_argument(
        "--engine", type=json.loads, default={"enforce_eager": True}, metavar="JSON",
        help='other arguments of LLM, as \'{"kv_cache_memory_bytes": 4000000000}\' on a GPU',
    )  # fmt: skip
    parser.add_argument("--near-tie", type=float, default=0.5, help="nats")
    parser.add_argument("--json", type=Path, help="append the results")
    args = parser.parse_args()
    chosen = methods(args.drafter, args.length)
    names = list(chosen)
    chosen = {names[number]: chosen[names[number]] for number in (0, *args.methods)}
    given = args.turns or [TURNS.get(load, 1) for load in args.loads]
    if len(given) not in (1, len(args.loads)):
        parser.error(f"--turns: {len(given)} numbers; expected 1 or {len(args.loads)}")
    turns = dict(zip(args.loads, given * len(args.loads), strict=False))
    prompts = read_prompts(args.model, args.prompts, args.skip)
    needed = max(turns[load] * turn_size(load) for load in args.loads)  # the last ones warm up
    if len(prompts) < needed:
        raise SystemExit(
            f"bench_vllm: {len(prompts)} prompts of up to {LONGEST} tokens; expected {needed} for "
            "these loads and turns: use --prompts FILE with more"
        )
    import vllm  # once, before the processes fork

    common = {"dtype": args.dtype, "max_num_seqs": max(16, *args.loads), **args.engine}
    engines = {
        name: Engine(args.model, {**common, **settings}) for name, settings in chosen.items()
    }
    for engine in engines.values():
        engine.result()
    rows = []
    for engine in engines.values():
        for load in args.loads:  # first steps of a size are slower
            engine.call(prompts[-load:], WARM_UP, 0, load)
    expected: list[list[int]] = []
    for load in args.loads:
        runs = measure(engines, prompts, load, turns[load], args.tokens)
        for name, found in runs.items():
            texts = [text for run in found for text in run["texts"]]
            if not expected:
                expected = texts
            equal, margins = classify(engines[PLAIN], prompts, expected, texts, args.near_tie)
            row = {
                "method": name, "load": load, **describe(found, runs[PLAIN]),
                "equal_texts": equal, "texts": min(len(texts), len(expected)),
                "largest_margin": max(margins, default=0.0), "tokens": args.tokens,
                "turns": [[sum(map(len, run["texts"])), run["seconds"]] for run in found],
                "skip": args.skip, "length": args.length, "engine": args.engine,
                "vllm": vllm.__version__,
            }  # fmt: skip
            rows.append(row)
            if args.json is not None:
                with args.json.open("a", encoding="utf-8") as output:
                    output.write(json.dumps(row) + "\n")
    print_rows(rows)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
