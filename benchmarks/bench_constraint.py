"""Constrained decoding with drafts that know the constraint, and with drafts that do not.

    python benchmarks/bench_constraint.py [--quick]

stories260K with the heads and the n-gram LM of examples/stories260k.py --quick (trained first where
they are missing, about a minute) continues held-out story beginnings under constraints:

    no quotes    a regular expression that one character class decides
    short words  words of at most six letters
    sentences    sentences of three to nine words
    json         a JSON schema: a title, a mood out of five, and a story

Every output is compared with that of strategy "greedy" under the same constraint. Three ways take
turns, text by text; speed is the median over texts against greedy's run beside it:

    verified     the constraint chooses tokens, drafts do not know it
    cut          drafts do not know it; what it forbids is cut off, what it foresees is added
    intersected  the lattice is intersected with it before the search, too

Results go to benchmarks/results/constraint.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench_decode import own_seconds
from corpus import ROOT
from machine import describe_machine
from report import print_table, write_json

TOKENS = 64
CONSTRAINTS: dict[str, Any] = {
    "no quotes": r'[^"]*',
    "short words": r"( ?[A-Za-z]{1,6}[,.!]?)( [A-Za-z]{1,6}[,.!]?)*",
    "sentences": r" ?[A-Za-z]+(,? [A-Za-z']+){2,8}[.!]( [A-Z][a-z]*(,? [A-Za-z']+){2,8}[.!])*",
    "json": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 24},
            "mood": {"enum": ["happy", "sad", "funny", "scary", "calm"]},
            "story": {"type": "string"},
        },
        "required": ["title", "mood", "story"],
        "additionalProperties": False,
    },
}
WAYS = ("verified", "cut", "intersected")


def load_stories(work: Path) -> tuple[Any, Any, list[list[int]], Any]:
    """Model, LM, prompts and tokenizer of the stories example."""
    sys.path.insert(0, str(ROOT / "examples"))
    import stories260k
    import stories260k_parts as parts
    from sentencepiece import SentencePieceProcessor

    from lattice_bpd.cli.progress import ConsoleWatcher, make_console
    from lattice_bpd_kim2024.blockwise import to_drafting
    from lattice_bpd_kim2024.llama2c import load_llama2c

    args = stories260k.read_arguments(["--quick", "--work", str(work)])
    recipe, watcher = parts.QUICK, ConsoleWatcher(make_console(), {})
    base = load_llama2c(args.model / "stories260K.bin")
    beginnings = parts.read_beginnings(args, base, recipe)
    folder = args.work / f"quick-{parts.fingerprint(args, recipe)}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = parts.cached_text(folder, base, beginnings, recipe, watcher)
    model = parts.cached_model(folder, base, rows, recipe, watcher)
    tokenizer = SentencePieceProcessor(model_file=str(args.model / "tok512.model"))
    return to_drafting(model), parts.train_lm(rows, recipe), beginnings.test, tokenizer


class DraftsUnaware:
    """Drafts without the constraint; whether they are cut is the caller's choice."""

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.max_nodes = drafter, 256

    def propose(self, states: Any) -> Any:
        """What the drafter proposes for texts without a constraint."""
        constrained = [state.constrained for state in states]
        for state in states:
            state.constrained = None
        try:
            return self.drafter.propose(states)
        finally:
            for state, one in zip(states, constrained, strict=True):
                state.constrained = one


class ConstrainedRule:
    """Exact acceptance among the tokens that a constraint allows; unknown to drafters."""

    name, lossless, guarantee = "exact", True, "the greedy output among the tokens allowed"

    def __init__(self, constraint: Any) -> None:
        self.constraint = constraint

    def start(self, sequence: int, prompt: Any) -> Any:  # noqa: ARG002
        """A selector of its own for each text."""
        from lattice_bpd_constraints.selector import ConstrainedSelector

        return ConstrainedSelector(self.constraint)


def decode_one(model: Any, prompt: list[int], constraint: Any, way: str, drafter: Any) -> Any:
    """One text in one of the ways."""
    from lattice_bpd.decode import decode

    options: dict[str, Any] = {"constraint": constraint}
    if way == "verified":
        stops = constraint.end_token_ids
        options = {"acceptance": ConstrainedRule(constraint), "stop_token_ids": stops}
    if way == "cut":
        drafter = DraftsUnaware(drafter)
    return decode(model, prompt, drafter, max_new_tokens=TOKENS, **options)


def measure(
    model: Any, lm: Any, prompts: list[list[int]], constraint: Any, name: str
) -> list[dict[str, Any]]:
    """A line for each strategy: block efficiency and speed of each way, which take turns."""
    from lattice_bpd.decode import DecodeStats, DraftSources, make_drafter
    from lattice_bpd.draft.config import STRATEGIES, DraftConfig

    cases = [(strategy, way) for strategy in ("bpd", "p_best", "tree") for way in WAYS]
    drafters = {
        strategy: make_drafter(
            DraftConfig(strategy, alpha=0.8, temperature=2.0),
            DraftSources(lm if STRATEGIES[strategy].uses("lm") else None),
        )
        for strategy, _ in cases
    }
    plain = make_drafter(DraftConfig("greedy"))
    totals = {case: DecodeStats() for case in cases}
    speeds: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
    for prompt in prompts:
        greedy = decode_one(model, prompt, constraint, "intersected", plain)
        for strategy, way in cases:
            result = decode_one(model, prompt, constraint, way, drafters[strategy])
            assert result.token_ids == greedy.token_ids, f"{name}, {strategy}, {way}: not greedy's"
            totals[strategy, way].merge(result.stats)
            ratio = result.stats.tokens_per_second / greedy.stats.tokens_per_second
            speeds[strategy, way].append(ratio)
    return [
        {
            "constraint": name,
            "strategy": strategy,
            "way": way,
            "block_efficiency": round(total.block_efficiency, 3),
            "verified_tokens_a_call": round(total.verified_tokens / total.target_calls, 1),
            "times_greedys_speed": round(median(speeds[strategy, way]), 2),
            "own_us_a_call": round(own_seconds(total) / total.target_calls * 1e6),
        }
        for (strategy, way), total in totals.items()
    ]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer beginnings, no file written")
    parser.add_argument("--work", type=Path, default=Path("demo-out") / "stories260k")
    args = parser.parse_args()
    import torch

    from lattice_bpd_constraints import GuidanceConstraint

    torch.set_num_threads(1)
    model, lm, prompts, tokenizer = load_stories(args.work)
    prompts, lines = prompts[: 6 if args.quick else 40], []
    start = time.perf_counter()
    for name, source in CONSTRAINTS.items():
        make = GuidanceConstraint.from_regex
        if isinstance(source, dict):
            make = GuidanceConstraint.from_json_schema
        lines += measure(model, lm, prompts, make(source, tokenizer), name)
    head = ["constraint", "strategy", "way", "tokens a call", "drafted a call", "x greedy"]
    print_table(
        f"{len(prompts)} beginnings, {TOKENS} tokens",
        [*head, "own us a call"],
        [list(line.values()) for line in lines],
    )
    if not args.quick:
        results = {"machine": describe_machine(), "prompts": len(prompts), "tokens": TOKENS}
        results |= {"seconds": round(time.perf_counter() - start, 1), "lines": lines}
        write_json(ROOT / "benchmarks" / "results" / "constraint.json", results)


if __name__ == "__main__":
    main()
