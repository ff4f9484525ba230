"""Sampling by seed: the tokens of plain sampling, whatever is drafted and whatever the batch size.

    python benchmarks/check_sampling.py [--tokens 100000]

A small Llama is trained first (half a minute). Texts are sampled plainly in batches of 32, then
again with drafts, at other batch sizes and in both layouts. One JSON object a line: what was
compared, how many tokens, and the first positions at which texts differ; the exit status is 1 if
there are any. A text is not compared after its first difference.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from decoding_model import Subject, train_subject
from machine import describe_machine

NEW_TOKENS = 400
PLAIN_BATCH = 32


class Line(NamedTuple):
    """What is compared with plain sampling."""

    strategy: str
    batch_size: int
    layout: str
    rule: dict[str, Any]


LINES = (
    Line("tree", 32, "tree", {"temperature": 1.0}),
    Line("tree", 7, "rows", {"temperature": 0.7, "top_p": 0.95}),
    Line("sampled", 16, "tree", {"temperature": 1.0, "min_p": 0.02}),
    Line("p_best", 16, "rows", {"temperature": 0.3}),
    Line("mixture", 8, "mixture", {"temperature": 0.7, "top_k": 50}),
    Line("greedy", 8, "rows", {"temperature": 1.0}),
)


def sample(
    subject: Subject, strategy: str, size: int, layout: str, rule: Any
) -> Iterator[tuple[list[int], float]]:
    """The tokens of each prompt, and tokens for each call of the target."""
    from lattice_bpd.decode import generate
    from lattice_bpd.draft.config import STRATEGIES, DraftConfig

    config = DraftConfig(strategy, num_drafts=4, max_nodes=18)
    lm = subject.lm if STRATEGIES[strategy].uses("lm") else None
    for first in range(0, len(subject.prompts), size):
        results = generate(
            subject.model, subject.prompts[first : first + size], config, heads=subject.heads,
            lm=lm, acceptance=rule, layout=layout, max_new_tokens=NEW_TOKENS,
        )  # fmt: skip
        for result in results:
            yield result.token_ids, result.stats.block_efficiency


def compare(subject: Subject, line: Line) -> dict[str, Any]:
    """A line of the results."""
    from lattice_bpd.verify import Sampled

    rule = Sampled(**line.rule, seed=1)
    plain = [tokens for tokens, _ in sample(subject, "greedy", PLAIN_BATCH, "rows", rule)]
    drafted = list(sample(subject, line.strategy, line.batch_size, line.layout, rule))
    same, differences = 0, []
    for number, (wanted, (sampled, _)) in enumerate(zip(plain, drafted, strict=True)):
        pairs = zip(wanted, sampled, strict=True)
        first = next((index for index, (a, b) in enumerate(pairs) if a != b), None)
        same += len(wanted) if first is None else first
        if first is not None:
            differences.append({"text": number, "token": first})
    efficiency = sum(rate for _, rate in drafted) / len(drafted)
    return {**line._asdict(), "tokens": same, "different": differences,
            "block_efficiency": round(efficiency, 3)}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000, help="to compare, in all")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    prompts = -(-args.tokens // (NEW_TOKENS * len(LINES)))
    subject = train_subject(prompts, 400)
    print(json.dumps({"kind": "machine", **describe_machine()}))
    total = different = 0
    for line in LINES:
        figures = compare(subject, line)
        total, different = total + figures["tokens"], different + len(figures["different"])
        print(json.dumps({"kind": "line", **figures}), flush=True)
    print(json.dumps({"kind": "summary", "tokens": total, "different": different}))
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
