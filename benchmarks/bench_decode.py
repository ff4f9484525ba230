"""Decoding: wall clock against greedy, the library's own share of a step, the cost of a call.

    python benchmarks/bench_decode.py             trains a small Llama first (half a minute)
    python benchmarks/bench_decode.py --quick
    python benchmarks/bench_decode.py --model demo-out/model

Every output is compared with greedy's before anything is timed. Strategies take turns, prompt by
prompt, so that a busy machine is busy for all; ratios are within one run. One JSON object a line:

    machine     what it ran on
    call        milliseconds of one target call by tokens and layout, and its ratio to one token
    strategy    block efficiency, speed against greedy, cost of the verifying call against
                greedy's, share of the speed-up expected from these two, the same with the heads
                counted as a part of the call, own microseconds a step
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from corpus import ROOT
from decoding_model import Subject, load_subject, train_subject
from machine import describe_machine

TOKENS = 96
MODELS = ("heads", "target", "prompt")


class Setting(NamedTuple):
    """A line of the results."""

    name: str
    strategy: str
    layout: str = "auto"
    options: dict[str, Any] = {}  # noqa: RUF012
    uses_lm: bool = True


SETTINGS = (
    Setting("greedy", "greedy", uses_lm=False),
    Setting("bpd", "bpd", uses_lm=False),
    Setting("1-best", "ngram"),
    Setting("tree 18", "tree", options={"max_nodes": 18}),
    Setting("tree 36", "tree", options={"max_nodes": 36}),
    Setting("tree 36 without LM", "tree", options={"max_nodes": 36}, uses_lm=False),
    Setting("4-best as tree", "p_best", "tree", {"num_drafts": 4}),
    Setting("4-best as rows", "p_best", "rows", {"num_drafts": 4}),
    Setting("16-best as tree", "p_best", "tree", {"num_drafts": 16}),
    Setting("16-best as rows", "p_best", "rows", {"num_drafts": 16}),
)


def decode_all(subject: Subject, rounds: int) -> dict[str, list[Any]]:
    """Statistics of every setting and prompt; the first round warms up and checks."""
    from lattice_bpd.decode import generate

    stats: dict[str, list[Any]] = {setting.name: [] for setting in SETTINGS}
    for turn in range(rounds + 1):
        for prompt in subject.prompts:
            greedy: list[int] | None = None
            for setting in SETTINGS:
                result = generate(
                    subject.model, prompt, setting.strategy, layout=setting.layout,
                    heads=subject.heads, lm=subject.lm if setting.uses_lm else None,
                    max_new_tokens=TOKENS, **setting.options,
                )  # fmt: skip
                greedy = result.token_ids if greedy is None else greedy
                if result.token_ids != greedy:
                    raise AssertionError(f"{setting.name} differs from greedy on {prompt}")
                if turn > 0:
                    stats[setting.name].append(result.stats)
    return stats


def own_seconds(stats: Any) -> float:
    """Wall time of decoding without the model's stages."""
    return float(stats.seconds["total"] - sum(stats.seconds.get(stage, 0.0) for stage in MODELS))


def describe_strategy(name: str, stats: list[Any], greedy: list[Any]) -> dict[str, Any]:
    """One line; ratios are medians over the texts, each against greedy's run beside it."""
    calls = [s.target_calls - 1 for s in stats]

    def per_step(stage: str) -> float:
        pairs = zip(stats, calls, strict=True)
        return 1e6 * median(s.seconds.get(stage, 0.0) / max(c, 1) for s, c in pairs)

    pairs = list(zip(stats, greedy, strict=True))
    speeds = [g.seconds["total"] / s.seconds["total"] for s, g in pairs]

    def costs_over_greedy(stages: tuple[str, ...]) -> list[float]:
        """Of the models' work in a step; greedy decoding has no heads."""
        return [
            (sum(s.seconds.get(stage, 0.0) for stage in stages) / max(s.target_calls - 1, 1))
            / (g.seconds["target"] / (g.target_calls - 1))
            for s, g in pairs
        ]

    def share_of_promise(costs: list[float]) -> float:
        gains = [s.tokens / s.target_calls for s in stats]
        triples = zip(speeds, costs, gains, strict=True)
        return round(median(speed * cost / gain for speed, cost, gain in triples), 3)

    costs = costs_over_greedy(("target",))
    efficiency = sum(s.tokens for s in stats) / sum(s.target_calls for s in stats)
    own = [1e6 * own_seconds(s) / max(c, 1) for s, c in zip(stats, calls, strict=True)]
    stages = ("heads", "top_k", "rescore", "verify", "target")
    return {
        "kind": "strategy",
        "name": name,
        "block_efficiency": round(efficiency, 3),
        "verified_tokens_per_call": round(sum(s.verified_tokens for s in stats) / sum(calls), 1),
        "speed_over_greedy": round(median(speeds), 3),
        "call_cost_over_greedy": round(median(costs), 3),
        "share_of_promised_speed": share_of_promise(costs),
        "share_with_heads_in_the_call": share_of_promise(costs_over_greedy(("target", "heads"))),
        "own_us_per_step": round(median(own), 1),
        "own_share_of_step": round(median(own_seconds(s) / s.seconds["total"] for s in stats), 4),
        "stage_us_per_step": {stage: round(per_step(stage), 1) for stage in stages},
    }


def time_calls(subject: Subject, rounds: int) -> list[dict[str, Any]]:
    """One call of the target after 64 tokens: one row of a tree's tokens, and rows of nine."""
    import torch

    from lattice_bpd.verify import CausalLMTarget, PrefixTree
    from lattice_bpd.verify import verify_trees as verify
    from lattice_bpd.verify.rows import Rows

    target = CausalLMTarget(subject.model)
    shapes = [("tree", n) for n in (1, 9, 18, 36, 72, 144)] + [("rows", n) for n in (36, 144)]
    samples: dict[tuple[str, int], list[float]] = {shape: [] for shape in shapes}
    with torch.inference_mode():
        _, cache = target.read_prompts(torch.arange(64)[None] % target.vocab_size)
        for _ in range(rounds * 5):
            for layout, tokens in shapes:
                chains = [[r * 8 + c for c in range(8)] for r in range((tokens + 7) // 9)]
                tree = PrefixTree.from_drafts(1, chains)
                if layout == "tree":
                    tree = PrefixTree.from_drafts(1, [[r] for r in range(tokens - 1)])
                state = Rows.from_cache(cache, num_free=160)
                verified = verify(target, state, [tree], layout=layout)
                samples[layout, tokens].append(verified.target_seconds)
    one = median(samples["tree", 1])
    return [
        {
            "kind": "call",
            "form": layout,
            "tokens": tokens,
            "milliseconds": round(1e3 * median(taken), 3),
            "over_one_token": round(median(taken) / one, 3),
        }
        for (layout, tokens), taken in samples.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few prompts, little training")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a model of `make demo`")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default 1)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks" / "results" / "decode.jsonl"
    )
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    prompts, rounds = (4, 1) if args.quick else (12, 5)
    start = time.perf_counter()
    if args.model:
        subject = load_subject(args.model, prompts)
    else:
        subject = train_subject(prompts, 60 if args.quick else 300)
    print(f"{subject.name}: ready after {time.perf_counter() - start:.0f} s", flush=True)
    machine = {**describe_machine(), "torch_threads": args.threads}
    lines: list[dict[str, Any]] = [{"kind": "machine", "model": subject.name, **machine}]
    stats_by_strategy = decode_all(subject, rounds)
    lines += time_calls(subject, rounds)
    greedy = stats_by_strategy["greedy"]
    lines += [describe_strategy(name, stats, greedy) for name, stats in stats_by_strategy.items()]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    print(text, end="")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = args.out.with_name(f".{args.out.name}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(args.out)


if __name__ == "__main__":
    main()
