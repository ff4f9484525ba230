"""The strategies beyond heads: a draft model, prompt lookup, and all of it together."""

from __future__ import annotations

from typing import Any

from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.drafters.combined import CombinedDrafter
from lattice_bpd.decode.drafters.continuation import ContinuationDrafter
from lattice_bpd.decode.drafters.draft_model.drafter import DraftModelDrafter
from lattice_bpd.decode.drafters.lookup import LookupDrafter
from lattice_bpd.decode.drafters.tree import TreeDrafter
from lattice_bpd.decode.huggingface.arguments import check_int
from lattice_bpd.lm.ngram import NGramLM

MODEL_STRATEGIES = ("draft_model", "lookup", "combined")


def check_draft_model(strategy: str, draft_model: Any, num_slots: int | None) -> None:
    """Raise ValueError for a draft model that is missing or not used, or a bad num_slots."""
    if strategy == "draft_model" and draft_model is None:
        raise ValueError(
            "generate: strategy 'draft_model' needs a draft model; give draft_model=, a small "
            "causal LM with the target's tokenizer"
        )
    if draft_model is not None and strategy not in ("draft_model", "combined"):
        raise ValueError(
            f"generate: strategy {strategy!r} does not use a draft model; use 'draft_model' or "
            "'combined', or leave draft_model out"
        )
    if num_slots is not None and strategy not in MODEL_STRATEGIES:
        raise ValueError(
            f"generate: strategy {strategy!r} drafts as many slots as there are heads; num_slots "
            f"is for {', '.join(MODEL_STRATEGIES)}; leave it out"
        )
    if num_slots is not None:
        check_int("generate", "num_slots", num_slots, 1)


def make_model_drafter(
    strategy: str,
    *,
    lm: NGramLM | None,
    draft_model: Any,
    num_slots: int | None,
    has_heads: bool,
    top_k: int,
    max_nodes: int,
    alpha: float,
    temperature: float,
    cache: bool | int,
) -> Drafter:
    """The drafter of one of MODEL_STRATEGIES.

    Args:
        strategy: which.
        lm: n-gram LM. "draft_model" rescores a lattice with it and drafts a tree, without it a
            chain; "combined" goes on with it behind the last head.
        draft_model: a causal LM, or None for "combined" without one.
        num_slots: slots of "draft_model" (None: 5) and "lookup" (None: 10), in "combined" too.
        has_heads: whether "combined" has heads to draft with.
        top_k: k.
        max_nodes: N.
        alpha: weight of the LM.
        temperature: of trees.
        cache: of the heads' tree; see TreeDrafter.
    """
    slots: dict[str, Any] = {} if num_slots is None else {"num_slots": num_slots}
    tree: dict[str, Any] = {
        "top_k": top_k, "max_nodes": max_nodes, "alpha": alpha, "temperature": temperature,
    }  # fmt: skip
    lookup = LookupDrafter(**slots)
    if strategy == "lookup":
        return lookup
    parts: list[Drafter] = []
    if draft_model is not None and lm is None:
        parts.append(DraftModelDrafter(draft_model, **slots))
    elif draft_model is not None:
        parts.append(DraftModelDrafter(draft_model, shape="tree", lm=lm, **slots, **tree))
    if strategy == "draft_model":
        return parts[0]
    heads = TreeDrafter(lm, cache=cache, **tree) if has_heads else None
    if lm is not None:
        likely = min(top_k, lm.vocab_size)
        parts.insert(0, ContinuationDrafter(heads, lm, top_k=likely, max_nodes=max_nodes))
    elif heads is not None:
        parts.insert(0, heads)
    return CombinedDrafter([*parts, lookup], max_nodes=max_nodes)
