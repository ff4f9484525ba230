"""Decoding of all lines of transition_scores.py, its short table, and what scores add."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from stories260k_parts import Recipe
from transition_parts import SEARCHES

from lattice_bpd import NGramLM
from lattice_bpd.build.bootstrap import bootstrap_ratio
from lattice_bpd.cli.progress import ConsoleWatcher
from lattice_bpd.decode import DraftingModel, decode
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.models import BlockwiseLM
from lattice_bpd_kim2024.evaluate import Comparison, Setting
from lattice_bpd_kim2024.live.compare import StrategyResult, find_difference
from lattice_bpd_kim2024.statistics import count_looping

KINDS = ("unary", "pairs", "ngram", "pairs_ngram")
ADDED = (
    ("pairs", "unary"), ("ngram", "unary"), ("pairs_ngram", "pairs"), ("pairs_ngram", "ngram"),
)  # fmt: skip
COMPARED = ("expected_length", "p_best", "tree18", "tree36")


def decode_together(
    model: BlockwiseLM, lm: NGramLM, prompts: list[list[int]], settings: Sequence[Setting],
    options: dict[str, DraftConfig], recipe: Recipe, stop_token_id: int, watcher: ConsoleWatcher,
) -> Comparison:  # fmt: skip
    """Decode all prompts as one batch with each setting, and compare with the target's generate.

    Calls are those of each text, as if it were decoded alone; times are not measured.
    """
    watcher.begin("decoding held-out beginnings", len(settings) + 1)
    plain = [plain_output(model.base, prompt, recipe, stop_token_id) for prompt in prompts]
    watcher.advance()
    results = []
    for setting in settings:
        config = options.get(setting.name, DraftConfig())
        source = lm if setting.uses_lm else None
        drafters = [setting.drafter(source, output, config) for output in plain]
        found = decode(
            DraftingModel(model.base, setting.heads), prompts,
            drafters if setting.strategy == "oracle" else drafters[0],
            max_new_tokens=recipe.max_new_tokens, stop_token_ids=[stop_token_id],
        )  # fmt: skip
        outputs = [one.token_ids for one in found]
        differing = [
            find_difference(model, number, prompts[number], expected, output)
            for number, (expected, output) in enumerate(zip(plain, outputs, strict=True))
            if output != expected
        ]
        stats = [one.stats for one in found]
        results.append(StrategyResult(setting, stats, outputs, differing))
        watcher.advance(note=setting.name)
    watcher.end()
    pairs = zip(prompts, plain, strict=True)
    return Comparison(results, [count_looping(prompt, output) for prompt, output in pairs])


def plain_output(base: Any, prompt: list[int], recipe: Recipe, stop_token_id: int) -> list[int]:
    """What the target's own greedy `generate` gives."""
    tokens = base.generate(
        torch.tensor([prompt]), max_new_tokens=recipe.max_new_tokens, do_sample=False,
        eos_token_id=stop_token_id, pad_token_id=stop_token_id,
    )  # fmt: skip
    output: list[int] = tokens[0, len(prompt) :].tolist()
    return output


def to_json(comparison: Comparison) -> list[dict[str, Any]]:
    """The lines of the results file, as the other examples write them; times are null."""
    timed = ("tokens_per_second", "relative_speed", "stage_seconds")
    return [
        {name: None if name in timed else value for name, value in line.items()}
        for line in comparison.to_json()
    ]


def require_lossless(comparison: Comparison) -> None:
    """Raise ValueError if any output is not that of greedy decoding."""
    differing = [line.setting.name for line in comparison.results if not line.lossless]
    if differing:
        raise ValueError(f"output differs from greedy decoding with {', '.join(differing)}")


def short_table(comparison: Comparison) -> list[str]:
    """Tokens per call, a line for each drafter and kind of scores, a column for each search.

    The last line has the 95 % interval and the draft tokens per call of the 36-node trees.
    """
    by_name = {line.setting.name: line for line in comparison.results}
    searches = [*SEARCHES, "oracle"]
    lines = [f"{'tokens per call':18}" + "".join(f"{search:>16}" for search in searches)]
    for drafter in drafters_of(comparison):
        for scores in KINDS:
            cells = [by_name.get(f"{drafter}/{scores}/{search}") for search in SEARCHES]
            cells.append(by_name.get(f"{drafter}/oracle") if scores == "unary" else None)
            lines.append(f"{f'{drafter}/{scores}':18}" + "".join(map(_cell, cells)))
    for name, line in by_name.items():
        if name.endswith("tree36"):
            total, interval = line.total(), line.interval
            lines.append(
                f"{name}: {interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f}), "
                f"{total.verified_tokens / total.target_calls:.1f} draft tokens per call"
            )
    return lines


def drafters_of(comparison: Comparison) -> list[str]:
    """Of "heads" and "block" those that have lines."""
    names = [line.setting.name for line in comparison.results]
    return [one for one in ("heads", "block") if f"{one}/oracle" in names]


def _cell(line: StrategyResult | None) -> str:
    return " " * 16 if line is None else f"{line.total().block_efficiency:16.2f}"


def gains(comparison: Comparison) -> dict[str, Any]:
    """Paired relative gains of more scores over fewer, with 95 % intervals, by drafter and search.

    Returns:
        {"heads/tree36": {"pairs over unary": {"value": .., "low": .., "high": ..}, ..}, ..}
    """
    by_name = {line.setting.name: line for line in comparison.results}
    found: dict[str, Any] = {}
    for drafter in drafters_of(comparison):
        for search in COMPARED:
            added = {
                f"{more} over {fewer}": _gain(
                    by_name[f"{drafter}/{more}/{search}"], by_name[f"{drafter}/{fewer}/{search}"]
                )
                for more, fewer in ADDED
            }
            found[f"{drafter}/{search}"] = added
    return found


def _gain(more: StrategyResult, fewer: StrategyResult) -> dict[str, float]:
    calls, baseline = ([stats.target_calls for stats in line.stats] for line in (more, fewer))
    return bootstrap_ratio(baseline, calls, less=1.0).to_json()


def describe_gains(found: dict[str, Any]) -> list[str]:
    """A line for each drafter and search."""
    return [
        f"{name}: "
        + "; ".join(
            f"{kind} {gain['value']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})"
            for kind, gain in added.items()
        )
        for name, added in found.items()
    ]
