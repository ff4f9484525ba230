"""Constrained decoding with drafts that know the constraint, and with drafts that do not.

    python benchmarks/bench_constraint.py [--quick]

stories260K with the heads and the n-gram LM of examples/stories260k.py --quick (trained first where
they are missing, about a minute) continues held-out story beginnings under constraints:

    no quotes    a regular expression that one character class decides
    short words  words of at most six letters
    sentences    sentences of three to nine words
    json         a JSON schema: a title, a mood out of five, and a story

Every output is compared with plain constrained greedy decoding before anything is reported.
"verified" lets the constraint choose tokens, but drafts without it; "intersected" intersects the
lattice with the constraint before the search, and adds what the constraint foresees; "cut" drafts
without it, cuts off what it forbids, and adds what it foresees. Results go to
benchmarks/results/constraint.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

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
    from lattice_bpd.models import load_llama2c

    args = stories260k.read_arguments(["--quick", "--work", str(work)])
    recipe, watcher = parts.QUICK, ConsoleWatcher(make_console(), {})
    base = load_llama2c(args.model / "stories260K.bin")
    found = parts.read_beginnings(args, base, recipe)
    folder = args.work / f"quick-{parts.fingerprint(args, recipe)}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = parts.cached_text(folder, base, found, recipe, watcher)
    model = parts.cached_model(folder, base, rows, recipe, watcher)
    tokenizer = SentencePieceProcessor(model_file=str(args.model / "tok512.model"))
    return model, parts.train_lm(rows, recipe), found.test, tokenizer


class DraftsUnaware:
    """Drafts without the constraint; whether they are cut is the caller's choice."""

    def __init__(self, drafter: Any) -> None:
        self.drafter, self.max_nodes = drafter, 256

    def propose(self, state: Any) -> Any:
        """What the drafter proposes for a text without a constraint."""
        constrained, state.constrained = state.constrained, None
        try:
            return self.drafter.propose(state)
        finally:
            state.constrained = constrained


class ConstrainedRule:
    """Exact acceptance among the tokens that a constraint allows; drafters are not told."""

    name, lossless, guarantee = "exact", True, "the greedy output among the tokens allowed"

    def __init__(self, constraint: Any) -> None:
        self.constraint = constraint

    def start(self, sequence: int) -> Any:  # noqa: ARG002
        """A chooser of its own for each text."""
        from lattice_bpd.decode import ConstrainedChooser

        return ConstrainedChooser(self.constraint)


def decode_all(
    model: Any, prompts: list[list[int]], constraint: Any, way: str, drafter: Any
) -> tuple[list[list[int]], Any]:
    """Outputs, and the statistics of all texts together."""
    from lattice_bpd.decode import DecodeStats, decode

    options: dict[str, Any] = {"constraint": constraint}
    if way == "verified":
        stops = constraint.end_token_ids
        options = {"acceptance": ConstrainedRule(constraint), "stop_token_ids": stops}
    if way == "cut":
        drafter = DraftsUnaware(drafter)
    outputs, total = [], DecodeStats()
    for prompt in prompts:
        found = decode(model, prompt, drafter, max_new_tokens=TOKENS, **options)
        outputs.append(found.token_ids)
        total.merge(found.stats)
    return outputs, total


def measure(
    model: Any, lm: Any, prompts: list[list[int]], constraint: Any, name: str
) -> list[dict[str, Any]]:
    """A line for each strategy: block efficiency and speed of each way."""
    from lattice_bpd.decode import make_drafter

    greedy, plain = decode_all(
        model, prompts, constraint, "intersected", make_drafter("greedy", model.vocab_size)
    )
    lines = []
    for strategy in ("bpd", "p_best", "tree"):
        line: dict[str, Any] = {"constraint": name, "strategy": strategy}
        line["greedy_tokens_per_second"] = round(plain.tokens_per_second, 1)
        for way in WAYS:
            drafter = make_drafter(
                strategy, model.vocab_size, lm=None if strategy == "bpd" else lm, alpha=0.8,
                temperature=2.0,
            )  # fmt: skip
            outputs, total = decode_all(model, prompts, constraint, way, drafter)
            assert outputs == greedy, f"{name}, {strategy}, {way}: another output than greedy's"
            own = total.own_seconds / total.target_calls
            line[way] = {
                "block_efficiency": round(total.block_efficiency, 3),
                "verified_tokens_a_call": round(total.verified_tokens / total.target_calls, 1),
                "tokens_per_second": round(total.tokens_per_second, 1),
                "own_us_a_call": round(own * 1e6),
            }
        lines.append(line)
    return lines


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer beginnings, no file written")
    parser.add_argument("--work", type=Path, default=Path("demo-out") / "stories260k")
    args = parser.parse_args()
    import torch

    from lattice_bpd.decode import GuidanceConstraint

    torch.set_num_threads(1)
    model, lm, prompts, tokenizer = load_stories(args.work)
    prompts, lines = prompts[: 6 if args.quick else 40], []
    start = time.perf_counter()
    for name, source in CONSTRAINTS.items():
        make = GuidanceConstraint.from_regex
        if isinstance(source, dict):
            make = GuidanceConstraint.from_json_schema
        lines += measure(model, lm, prompts, make(source, tokenizer), name)
    rows = [
        [line["constraint"], line["strategy"], *(line[way]["block_efficiency"] for way in WAYS)]
        + [line[way]["tokens_per_second"] / line["greedy_tokens_per_second"] for way in WAYS]
        + [line[way]["own_us_a_call"] for way in WAYS]
        for line in lines
    ]
    head = ["constraint", "strategy", *WAYS, *(f"{way} x greedy" for way in WAYS)]
    head += [f"own us {way}" for way in WAYS]
    print_table(f"block efficiency, {len(prompts)} beginnings, {TOKENS} tokens", head, rows)
    if not args.quick:
        results = {"machine": describe_machine(), "prompts": len(prompts), "tokens": TOKENS}
        results |= {"seconds": round(time.perf_counter() - start, 1), "lines": lines}
        write_json(ROOT / "benchmarks" / "results" / "constraint.json", results)


if __name__ == "__main__":
    main()
