"""Drafts and draft trees from head logits, for decoding loops.

    score(w) = sum_j z_j[w_j] + alpha * sum_j ln P(w_j | context, w_1 .. w_{j-1})

over all k^H paths of the top-k lattice; the p best are returned (Kim et al. 2024, section 7.2), or
the most probable prefixes as a tree.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from lattice_bpd.arguments import check_int
from lattice_bpd.draft.config import TREE_NODES, DraftConfig
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.search import MAX_DRAFTS, check_search
from lattice_bpd.lm.ngram import NGramLM

Objective = Literal["score", "accept_length", "greedy_walk"]


def rescore_lattice(
    head_logits: Any,
    context: Any,
    lm: NGramLM | None,
    *,
    top_k: int = DraftConfig.top_k,
    num_drafts: int = DraftConfig.num_drafts,
    alpha: float = DraftConfig.alpha,
    objective: Objective = "score",
    temperature: float = 1.0,
    engine: str = "auto",
    bos: bool = True,
    log_softmax: bool = False,
    threads: int = 0,
) -> Drafts:
    """Finds the best drafts through the top-k lattice of the heads.

    Ties are broken by the smaller token id, from left to right, so that the list is the same for
    every engine and every number of threads. Top-k runs on the logits' device; only k columns are
    copied to the host.

    Args:
        head_logits: (H, V) or (B, H, V) float32, float16 or bfloat16; a numpy array, or a torch
            tensor on any device. Slot 0 predicts the token after the context. -inf marks a masked
            token, which no draft contains. A slot whose tokens are all masked ends its lattice:
            drafts have the slots before it. Or a :class:`SausageLattice`, a list of them (the
            numbers of slots may differ), or a :class:`LatticeInput`, which may have transition
            scores and local normalization; top_k and log_softmax are then unused.
        context: The tokens before the lattice: (T,) integers for one lattice, B such sequences of
            any lengths for a batch. If empty, the LM starts at ``<s>``.
        lm: The n-gram LM over the same V tokens, or None to rank by the heads alone.
        top_k: k, candidates for each slot, 1..V.
        num_drafts: p, 1..4096; 1 unless the objective is ``"score"``.
        alpha: Weight of the LM's natural log probabilities, any sign.
        objective: What drafts are ranked by. ``"score"``: their score. ``"accept_length"``: the
            expected number of accepted draft tokens if the target generates a path sampled from
            P(w) = exp(score(w)) / Z, which is the sum of the probabilities of the draft's prefixes
            (`Drafts.prefix_log_probs`); better for a single draft. ``"greedy_walk"``: the best
            candidate of each slot given the earlier ones, as other engines decode drafters with
            transition scores; a baseline.
        temperature: Divides all scores. The ranking by score stays the same; P is flatter above 1.
        engine: ``"auto"`` (the fastest exact one), ``"fused"`` or ``"openfst"``.
        bos: Whether the context starts with ``<s>``.
        log_softmax: Head scores are log probabilities over the vocabulary, else raw logits.
        threads: How many threads share a batch, 0 for all cores.

    Returns:
        :class:`Drafts` with token_ids (B, p, H) int32, scores (B, p) float32 and counts (B,)
        int32; B is 1 for a single lattice. Fewer than p paths: padded with -1 and -inf. Fewer slots
        than H: drafts end in -1. No slot: counts is 0. Torch tensors on the logits' device if the
        logits are a torch tensor, else numpy arrays.

    Raises:
        TypeError: Arguments of the wrong kind or element type.
        ValueError: Wrong shapes or sizes, NaN or +inf, token ids outside the vocabulary, an LM
            with more than twice or less than half as many token ids, or options out of
            range.
    """
    where = "rescore_lattice"
    number = check_int(f"{where}: num_drafts", num_drafts, 1, MAX_DRAFTS)
    if objective not in get_args(Objective):
        names = ", ".join(f'"{name}"' for name in get_args(Objective))
        raise ValueError(f"{where}: objective is {objective!r}; expected one of {names}")
    if objective != "score" and (number != 1 or engine == "openfst"):
        raise ValueError(
            f'{where}: objective "{objective}" gives one draft, by the engine "fused"; found '
            f'num_drafts={number} and engine "{engine}"; for more tokens to verify use rescore_tree'
        )
    search = check_search(
        where, head_logits, context, lm, top_k=top_k, alpha=alpha, temperature=temperature,
        bos=bos, log_softmax=log_softmax, threads=threads,
    )  # fmt: skip
    if objective == "score":
        return search.find_drafts(number, str(engine))
    return search.find_chains(objective == "greedy_walk")


def rescore_tree(
    head_logits: Any,
    context: Any,
    lm: NGramLM | None,
    *,
    max_nodes: int = TREE_NODES,
    top_k: int = DraftConfig.top_k,
    alpha: float = DraftConfig.alpha,
    temperature: float = 1.0,
    bos: bool = True,
    log_softmax: bool = False,
    threads: int = 0,
) -> DraftTree:
    """Finds the tree of the most probable prefixes through the top-k lattice of the heads.

    The score of `rescore_lattice`, normalized over the lattice, is a distribution over its paths:
    P(w) = exp(score(w)) / Z. Of all trees of `max_nodes` prefixes the most probable one is
    returned. The scale of the scores matters: scores ten times as large rank paths the same, but
    give a deeper, narrower tree.

    Args:
        head_logits: As for :func:`rescore_lattice`, like all arguments not listed here.
        context: See there.
        lm: See there.
        max_nodes: N, 1..4096.
        top_k: See there.
        alpha: See there.
        temperature: See there: above 1 the tree is wider and less deep.
        bos: See there.
        log_softmax: See there. It adds a constant to all scores of a slot, so the tree is the same.
        threads: See there.

    Returns:
        :class:`DraftTree` with (B, N) arrays; B is 1 for a single lattice.

    Raises:
        TypeError: Arguments of the wrong kind or element type.
        ValueError: As for `rescore_lattice`.

    Source: exact masses by the forward-backward algorithm (Baum et al. 1970) over the product of
    lattice and LM; see docs/concepts.md.
    """
    search = check_search(
        "rescore_tree", head_logits, context, lm, top_k=top_k, alpha=alpha, temperature=temperature,
        bos=bos, log_softmax=log_softmax, threads=threads,
    )  # fmt: skip
    return search.find_tree("rescore_tree", max_nodes)
