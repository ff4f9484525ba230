"""The lines of bench_llm.py: each a way of decoding, from transformers or ours."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from peer_drafters import CallCounter, generate_with_transformers

from lattice_bpd.decode import generate
from lattice_bpd.draft.config import STRATEGIES

Decode = Callable[[list[int], int], tuple[list[int], dict[str, float]]]
NODES = 16
GREEDY = "transformers greedy"
PEERS: dict[str, dict[str, Any]] = {
    GREEDY: {},
    "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
}


class Ours(NamedTuple):
    """Arguments of `generate`; sources: those of "lm" and "heads" that it is given."""

    strategy: str
    sources: tuple[str, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012
    quick: bool = True


OURS = {
    "greedy": Ours("greedy", quick=False),
    "lookup": Ours("lookup"),
    "combined, LM": Ours("combined", ("lm",), {"max_nodes": NODES}),
    "BPD": Ours("bpd", ("heads",), quick=False),
    "tree, heads": Ours("tree", ("heads",), {"max_nodes": NODES}, quick=False),
    "1-best, heads + LM": Ours("ngram", ("heads", "lm"), quick=False),
    "16-best, heads + LM": Ours("p_best", ("heads", "lm"), quick=False),
    "tree, heads + LM": Ours("tree", ("heads", "lm"), {"max_nodes": NODES}),
    "auto, heads + LM + text": Ours("auto", ("heads", "lm"), {"ngram_cache": True}),
    "mixture, text": Ours("mixture", (), {"max_nodes": NODES}),
    "mixture, text + LM": Ours("mixture", ("lm",), {"max_nodes": NODES}),
    "mixture, text + LM + heads": Ours("mixture", ("lm", "heads"), {"max_nodes": NODES}),
    "mixture, text; any size": Ours("mixture"),
    "mixture, text + LM; any size": Ours("mixture", ("lm",)),
    "mixture, text + LM + heads; any size": Ours("mixture", ("lm", "heads")),
}


class Run(NamedTuple):
    """One prompt decoded once.

    Attributes:
        output: token ids.
        calls: of the target, counted from outside.
        seconds: wall time by stage; "total" is measured from outside.
    """

    output: list[int]
    calls: int
    seconds: dict[str, float]


@dataclass
class Line:
    """One way of decoding, and its runs in the order of the prompts.

    Attributes:
        name: in tables and results.
        decode: prompt, most new tokens -> output, seconds by stage.
    """

    name: str
    decode: Decode
    runs: list[Run] = field(default_factory=list)

    def run(self, prompt: list[int], tokens: int, counter: CallCounter) -> Run:
        """Decodes a prompt."""
        counter.reset()
        start = time.perf_counter()
        output, stages = self.decode(prompt, tokens)
        total = time.perf_counter() - start
        return Run(output, counter.calls, {**stages, "total": total})


def make_lines(
    model: Any, sources: dict[str, Any], *, quick: bool
) -> tuple[list[Line], dict[str, str]]:
    """All lines that the sources allow, and why others are left out.

    Args:
        model: a causal LM of `transformers`.
        sources: "lm" and "heads", if there are any.
        quick: fewer of our lines.
    """
    lines = [Line(name, _transformers(model, options)) for name, options in PEERS.items()]
    skipped = {}
    for name, ours in OURS.items():
        missing = [source for source in ours.sources if source not in sources]
        if missing or ours.strategy not in STRATEGIES:
            skipped[name] = f"no {' and no '.join(missing or [ours.strategy])}"
        elif ours.quick or not quick:
            given = {source: sources[source] for source in ours.sources}
            lines.append(Line(name, _ours(model, ours, given)))
    return lines, skipped


def _transformers(model: Any, options: dict[str, Any]) -> Decode:
    stops = [model.generation_config.eos_token_id]

    def decode(prompt: list[int], tokens: int) -> tuple[list[int], dict[str, float]]:
        return generate_with_transformers(model, prompt, tokens, stops, **options), {}

    return decode


def _ours(model: Any, ours: Ours, given: dict[str, Any]) -> Decode:
    def decode(prompt: list[int], tokens: int) -> tuple[list[int], dict[str, float]]:
        result = generate(
            model, prompt, ours.strategy, max_new_tokens=tokens, **given, **ours.options
        )
        return list(result.token_ids), dict(result.stats.seconds)

    return decode
