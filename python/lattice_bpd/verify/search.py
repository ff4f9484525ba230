"""Searches that return prefix trees for verification directly."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lattice_bpd import _core
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM, core_of
from lattice_bpd.verify.prefix_tree import PrefixTree


def search_trees(
    candidates: Candidates | LatticeInput,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    rooms: Sequence[int],
    *,
    max_nodes: int,
    alpha: float,
) -> list[PrefixTree]:
    """The most probable prefixes of each lattice below its exact token; see `rescore_tree`.

    Args:
        candidates: (B, H, k); a `LatticeInput` may have transition scores and local normalization.
        contexts: B sequences of ints, at least the LM's history; each ends in the exact token.
        lm: n-gram LM over the same vocabulary, or None.
        rooms: (B,) maximum draft lengths; deeper nodes are left out.
        max_nodes: N, 1..4096.
        alpha: weight of the LM.

    Returns:
        B trees of at most N draft tokens, with their log probabilities.

    Raises:
        ValueError: candidates outside the LM's vocabulary, or options out of range.
    """
    core_lm = _core_of("search_trees", lm)
    if isinstance(candidates, LatticeInput):
        trees = _core.search_trees_of_sausages(
            candidates.to_sausages("search_trees"), core_lm, contexts, rooms, max_nodes, alpha,
            candidates.normalization,
        )  # fmt: skip
        return [PrefixTree._of(tree) for tree in trees]
    trees = _core.search_trees(
        candidates.token_ids, candidates.scores, core_lm, contexts, rooms,
        max_nodes, alpha,
    )  # fmt: skip
    return [PrefixTree._of(tree) for tree in trees]


def search_drafts(
    candidates: Candidates | LatticeInput,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    rooms: Sequence[int],
    *,
    num_drafts: int,
    alpha: float,
    threads: int = 0,
) -> list[PrefixTree]:
    """The best drafts of each lattice as a prefix tree; see `rescore_lattice`.

    Args:
        candidates: see `search_trees`, also for the other arguments.
        contexts: see there.
        lm: see there.
        rooms: see there; longer drafts are cut.
        num_drafts: p.
        alpha: see there.
        threads: how many threads share the batch, 0 for all cores.

    Returns:
        B trees, the best draft of each in nodes 1, 2, ..

    Raises:
        ValueError: see there.
    """
    core_lm = _core_of("search_drafts", lm)
    if isinstance(candidates, LatticeInput):
        trees = _core.search_drafts_of_sausages(
            candidates.to_sausages("search_drafts"), core_lm, contexts, rooms, num_drafts, alpha,
            candidates.normalization, threads,
        )  # fmt: skip
        return [PrefixTree._of(tree) for tree in trees]
    trees = _core.search_drafts(
        candidates.token_ids, candidates.scores, core_lm, contexts, rooms,
        num_drafts, alpha, threads,
    )  # fmt: skip
    return [PrefixTree._of(tree) for tree in trees]


def search_chains(
    candidates: Candidates | LatticeInput,
    contexts: Sequence[Sequence[int]],
    lm: NGramLM | None,
    rooms: Sequence[int],
    *,
    alpha: float,
    threads: int = 0,
) -> list[PrefixTree]:
    """The draft of greatest expected accept length of each lattice; see `rescore_lattice`.

    Args:
        candidates: see `search_drafts`, as for all arguments.
        contexts: see there.
        lm: see there.
        rooms: see there; longer drafts are cut.
        alpha: see there.
        threads: see there.

    Returns:
        B chains with the log probabilities of their prefixes.

    Raises:
        ValueError: see there.
    """
    core_lm = _core_of("search_chains", lm)
    if isinstance(candidates, LatticeInput):
        trees = _core.search_chains_of_sausages(
            candidates.to_sausages("search_chains"), core_lm, contexts, rooms, alpha,
            candidates.normalization, threads,
        )  # fmt: skip
        return [PrefixTree._of(tree) for tree in trees]
    trees = _core.search_chains(
        candidates.token_ids, candidates.scores, core_lm, contexts, rooms,
        alpha, threads,
    )  # fmt: skip
    return [PrefixTree._of(tree) for tree in trees]


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

    `search_chains` in one call, for servers that verify one draft for each text.

    Args:
        candidates: see `search_drafts`, as for `contexts` and `lm`.
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
        ValueError: see `search_drafts`.
    """
    if temperature <= 0.0:
        raise ValueError(f"draft_chains: temperature is {temperature}; expected above 0")
    core_lm, alpha = _core_of("draft_chains", lm), alpha / temperature
    least = math.log(min_prob) if min_prob > 0.0 else -math.inf
    if isinstance(candidates, LatticeInput):
        lattices = candidates.end_after(max_lengths).at_temperature(temperature)
        return _core.draft_chains_of_sausages(
            lattices.to_sausages("draft_chains"), core_lm, contexts, alpha,
            candidates.normalization, least, threads,
        )  # fmt: skip
    return _core.draft_chains(
        candidates.token_ids, candidates.scores, core_lm, contexts,
        max_lengths, alpha, temperature, least, threads,
    )  # fmt: skip


def _core_of(where: str, lm: NGramLM | None) -> _core.BackoffLm | None:
    return None if lm is None else core_of(where, lm)
