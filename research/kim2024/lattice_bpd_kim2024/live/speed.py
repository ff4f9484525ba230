"""Measures the speed of strategies on recorded prompts, relative to greedy decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_kim2024.live.compare import compare_strategies
from lattice_bpd_kim2024.replay.strategies import DEMO_SETTINGS, NEURAL_SETTINGS, Setting

SPEED_ROUNDS = 3
_NAMES = ("greedy", "bpd", "p_best_ngram", "tree_0gram", "tree", "mixture")


def speed_settings(has_lm: bool, has_scorer: bool) -> list[Setting]:
    """The timed strategies: those without an LM and "mixture", and what LM and scorer allow."""
    settings = [
        setting
        for setting in DEMO_SETTINGS
        if setting.name in _NAMES and (has_lm or setting.name == "mixture" or not setting.uses_lm)
    ]
    if has_scorer:
        settings.insert(2, NEURAL_SETTINGS[0])
    return settings


def measure_speed(
    model: Any,
    lm: NGramLM | None,
    prompts: Sequence[Sequence[int]],
    tuned: Mapping[str, DraftConfig],
    *,
    scorer: Any = None,
    max_new_tokens: int,
    stop_token_ids: Sequence[int] = (),
    on_prompt: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Decode prompts live in interleaved runs; see `compare_strategies`.

    Args:
        model: a BlockwiseLM.
        lm: n-gram LM; None: strategies with an LM are left out, and "mixture" drafts without one.
        prompts: token ids.
        tuned: options of each strategy by name.
        scorer: of strategy "neural", which is left out without one.
        max_new_tokens: tokens to decode after each prompt.
        stop_token_ids: decoding ends after these.
        on_prompt: called after each run.

    Returns:
        A "speed" line of results.json for each strategy.
    """
    tree = tuned.get("tree") or tuned.get("tree_0gram") or DraftConfig("tree")
    settings = speed_settings(lm is not None, scorer is not None and "neural" in tuned)
    comparison = compare_strategies(
        model, lm, prompts, settings=settings, options=tuned,
        sources={"rescorer": scorer},
        max_new_tokens=max_new_tokens, stop_token_ids=stop_token_ids, rounds=SPEED_ROUNDS,
        on_prompt=None if on_prompt is None else lambda _setting: on_prompt(),
    )  # fmt: skip
    names = {"p": tree.num_drafts, "n": lm.order if lm else 0, "nodes": tree.tree_nodes}
    return [
        {
            "name": result.setting.name,
            "label": result.setting.label.format(**names),
            "texts": len(prompts),
            "rounds": SPEED_ROUNDS,
            "block_efficiency": result.total().block_efficiency,
            "interval": result.interval.to_json(),
            "tokens_per_second": comparison.tokens_per_second(result),
            "relative_speed": comparison.relative_speed(result),
            "lossless": result.lossless,
            "differing": len(result.differing),
            "near_ties": result.near_ties,
        }
        for result in comparison.results
    ]
