"""Searches that return prefix trees for verification directly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from lattice_bpd import _core
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.verify.prefix_tree import PrefixTree


def search_trees(
    candidates: Candidates | LatticeInput,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    max_lengths: Sequence[int],
    *,
    kind: Literal["tree", "drafts", "chain"] = "tree",
    number: int = 1,
    alpha: float,
    temperature: float = 1.0,
    threads: int = 0,
) -> list[PrefixTree]:
    """Drafts of each lattice below its exact token, as prefix trees.

    Args:
        candidates: (B, H, k); a `LatticeInput` may have transition scores and local normalization.
        contexts: B sequences of ints, at least the LM's history; each ends in the exact token.
        lm: n-gram LM over the same vocabulary, or None.
        max_lengths: (B,) longest drafts; deeper nodes are left out.
        kind: "tree": the most probable prefixes, see `rescore_tree`; "drafts": the best paths, see
            `rescore_lattice`; "chain": the path of greatest expected accept length.
        number: nodes of a tree, 1..4096, or drafts.
        alpha: weight of the LM.
        temperature: above 0; divides scores and alpha.
        threads: how many threads share the batch, 0 for all cores.

    Returns:
        B trees. Those of prefixes and chains have log probabilities; the best draft is in nodes 1,
        2, ..

    Raises:
        ValueError: candidates outside the LM's vocabulary, or options out of range.
    """
    core_lm = None if lm is None else core_of("search_trees", lm)
    lattices, normalization = _lattices(candidates.at_temperature(temperature), "search_trees")
    trees = _core.search_prefix_trees(
        lattices, core_lm, contexts, max_lengths, kind, number, alpha / temperature, normalization,
        threads,
    )  # fmt: skip
    return [PrefixTree.of(tree) for tree in trees]


def draft_chains(
    candidates: Candidates | LatticeInput,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    max_lengths: Sequence[int],
    *,
    alpha: float,
    temperature: float = 1.0,
    min_prob: float = 0.0,
    threads: int = 0,
) -> list[list[int]]:
    """The tokens of the draft of greatest expected accept length of each lattice.

    `search_trees(.., kind="chain")` in one call, for servers that verify one draft for each text.

    Args:
        candidates: see `search_trees`, as for `contexts` and `lm`.
        contexts: see there.
        lm: see there.
        max_lengths: (B,) slots of each lattice; later ones are left out.
        alpha: weight of the LM, as `temperature` divides it too.
        temperature: above 0; divides scores and alpha.
        min_prob: a draft ends before the first prefix that is less probable.
        threads: see there.

    Returns:
        B lists of token ids; empty where every token is masked.

    Raises:
        ValueError: see `search_trees`.
    """
    if temperature <= 0.0:
        raise ValueError(f"draft_chains: temperature is {temperature}; expected above 0")
    core_lm = None if lm is None else core_of("draft_chains", lm)
    least = math.log(min_prob) if min_prob > 0.0 else -math.inf
    if isinstance(candidates, LatticeInput):
        candidates = candidates.end_after(max_lengths).at_temperature(temperature)
    lattices, normalization = _lattices(candidates, "draft_chains")
    return _core.draft_chains(
        lattices, core_lm, contexts, max_lengths, alpha / temperature, temperature, least,
        normalization, threads,
    )  # fmt: skip


def _lattices(candidates: Candidates | LatticeInput, where: str) -> tuple[Any, str]:
    """What the core searches, and its normalization."""
    if isinstance(candidates, LatticeInput):
        return candidates.to_sausages(where), candidates.normalization
    return (candidates.token_ids, candidates.scores), "global"
