"""The drafter of each strategy by name."""

from __future__ import annotations

from typing import Any

from lattice_bpd.decode.adaptive.controller import Controller
from lattice_bpd.decode.adaptive.experience import Experience
from lattice_bpd.decode.drafters.basic import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
)
from lattice_bpd.decode.drafters.sampled import DrawnTreeDrafter
from lattice_bpd.decode.drafters.scorer import ScorerDrafter
from lattice_bpd.decode.drafters.tree import TreeDrafter
from lattice_bpd.decode.huggingface.arguments import check_lm, check_numbers, check_sizes
from lattice_bpd.decode.strategies.model_strategies import (
    MODEL_STRATEGIES,
    check_draft_model,
    make_model_drafter,
)
from lattice_bpd.lm.ngram import NGramLM

STRATEGIES = (
    "greedy", "bpd", "ngram", "neural", "p_best", "tree", "drawn", "auto", *MODEL_STRATEGIES,
    "oracle",
)  # fmt: skip


def make_drafter(
    strategy: str,
    vocab_size: int,
    *,
    lm: NGramLM | None = None,
    scorer: Any = None,
    top_k: int = 16,
    num_drafts: int = 16,
    max_nodes: int = 36,
    alpha: float = 0.5,
    temperature: float = 1.0,
    cache: bool | int = False,
    draft_model: Any = None,
    num_slots: int | None = None,
    has_heads: bool = True,
    experience: Experience | None = None,
) -> Drafter:
    """The drafter of a strategy; all but "oracle", which needs the output first.

    Args:
        strategy: see `generate`, as for all other arguments.
        vocab_size: V of the target.
        lm: n-gram LM.
        scorer: of "neural", or instead of the LM of "p_best".
        top_k: k.
        num_drafts: p of "p_best".
        max_nodes: N of "tree" and "drawn", and the most of "auto".
        alpha: weight of the LM.
        temperature: of "tree", "drawn" and "auto".
        cache: of "ngram", "p_best", "tree", "drawn" and "auto".
        draft_model: of "draft_model" and "combined".
        num_slots: longest draft of "draft_model" and "lookup".
        has_heads: whether "combined" has heads to draft with.
        experience: of "auto"; None to begin anew.

    Raises:
        ValueError: an unknown strategy, "ngram" without an LM, "neural" without a scorer, a
            scorer or draft model that is missing or not used, or sizes out of range.
        TypeError: an LM, a scorer or a draft model that is none, sizes that are no ints, or a cache
            that is neither bool nor int.
    """
    if strategy not in STRATEGIES:
        raise ValueError(
            f"generate: strategy is {strategy!r}; expected one of {', '.join(STRATEGIES)}"
        )
    check_lm(lm)
    if strategy == "ngram" and lm is None:
        raise ValueError(
            "generate: strategy 'ngram' needs an n-gram LM; give lm=NGramLM.load(path), or use "
            "'tree' or 'p_best', which also work on the heads alone"
        )
    _check_scorer(strategy, lm, scorer)
    check_draft_model(strategy, draft_model, num_slots)
    check_sizes(vocab_size, top_k, num_drafts, max_nodes)
    check_numbers(alpha, temperature)
    if strategy in MODEL_STRATEGIES:
        return make_model_drafter(
            strategy, lm=lm, draft_model=draft_model, num_slots=num_slots, has_heads=has_heads,
            top_k=top_k, max_nodes=max_nodes, alpha=alpha, temperature=temperature, cache=cache,
        )  # fmt: skip
    if strategy == "bpd":
        return BlockDrafter()
    if strategy in ("tree", "drawn", "auto"):
        make = DrawnTreeDrafter if strategy == "drawn" else TreeDrafter
        tree = make(
            lm, top_k=top_k, max_nodes=max_nodes, alpha=alpha, temperature=temperature, cache=cache
        )
        return Controller(tree, experience) if strategy == "auto" else tree
    if scorer is not None:
        drafts = 1 if strategy == "neural" else num_drafts
        return ScorerDrafter(scorer, top_k=top_k, num_drafts=drafts, alpha=alpha)
    if strategy in ("ngram", "p_best"):
        drafts = 1 if strategy == "ngram" else num_drafts
        return LatticeDrafter(lm, top_k=top_k, num_drafts=drafts, alpha=alpha, cache=cache)
    return NoDrafter()


def _check_scorer(strategy: str, lm: NGramLM | None, scorer: Any) -> None:
    """Refuse scorers that are missing, or that would not be asked."""
    if strategy == "neural" and scorer is None:
        raise ValueError(
            "generate: strategy 'neural' needs a scorer; give scorer=, a small causal LM with the "
            "target's tokenizer, or a TransitionScorer"
        )
    if scorer is None:
        return
    if strategy not in ("neural", "p_best"):
        raise ValueError(
            f"generate: strategy {strategy!r} does not use a scorer; use 'neural' or 'p_best', or "
            "leave scorer out"
        )
    if lm is not None:
        raise ValueError(
            "generate: found both lm and scorer; expected one; to use both give "
            "scorer=MixtureScorer([(scorer, weight), (lm, weight)])"
        )
