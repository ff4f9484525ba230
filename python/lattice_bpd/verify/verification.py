"""Verification: one call of the target determines the accepted tokens of each draft.

    cache      y_1 .. y_t
    input      y_{t+1}  d_1     d_2     ..  d_H            y_{t+1} is exact
    predicts   g_1      g_2     g_3     ..  g_{H+1}        the target's argmax
    accepted   the longest path with d_j = g_j; then g_{n+1} is the bonus token

Stern et al. 2018, sections 3 and 4 (verification merged with the next prediction); Kim et al. 2024,
section 7.2 (p drafts in parallel); Miao et al. 2024 (SpecInfer: a tree in one row).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.verify.batch_cache import BatchCache
from lattice_bpd.verify.cache import check_cache
from lattice_bpd.verify.greedy import follow_greedy, logits_index
from lattice_bpd.verify.layout import Call, lay_out_rows, lay_out_tree
from lattice_bpd.verify.memory import is_lack_of_memory, memory_advice
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.recurrent import RecurrentCache
from lattice_bpd.verify.target import TargetModel, TargetOutput

Indices = list[npt.NDArray[np.int64]] | None  # see `layout.Call`
LAYOUTS = ("auto", "tree", "rows")


@dataclass
class Verification:
    """The result of one verifying call for one sequence.

    Attributes:
        token_ids: the n accepted draft tokens and the bonus token, n+1 in all; each is the
            target's own choice.
        accept_length: n, 0..H.
        hidden: (D,) float, the hidden state that predicted the last of them; the input of the heads
            in the next step.
        features: (n+1, F) float, the target's features of the exact token and the n accepted ones;
            after a prompt, of its tokens. None if the target provides none.
    """

    token_ids: list[int]
    accept_length: int
    hidden: Tensor
    features: Tensor | None = None


@dataclass
class BatchVerification:
    """The results of one verifying call for B sequences.

    Attributes:
        sequences: of each sequence.
        layout: "tree" or "rows".
        target_seconds: wall time of the target's call alone.
        shape: rows and tokens of the call.
    """

    sequences: list[Verification]
    layout: str
    target_seconds: float
    shape: tuple[int, int] = (0, 0)


class DraftCandidates(NamedTuple):
    """The draft tokens after one accepted token.

    Attributes:
        token_ids: distinct draft tokens, in the order in which they were proposed; empty after the
            end of a draft.
        depth: draft tokens that this call has accepted so far.
        sampled_from: the distribution from which the tokens were sampled without replacement: token
            ids (k,) int and probabilities (k,) float64 that sum to 1; None: not sampled.
    """

    token_ids: Sequence[int]
    depth: int
    sampled_from: tuple[Any, Any] | None = None


NO_CANDIDATES = DraftCandidates((), 0)


class TokenSelector(Protocol):
    """Selects the tokens of one sequence by a rule other than argmax.

    Attributes:
        ended: whether the last selected token ended the text.
    """

    ended: bool

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int | None:
        """Select the next token.

        Args:
            logits: (V,) float, the target's.
            candidates: the draft tokens at this position; if one of them is selected, it is
                accepted; any other token ends the draft.

        Returns:
            A token id; None: the text has ended.
        """
        ...


def verify_trees(
    target: TargetModel,
    state: BatchCache | RecurrentCache,
    trees: list[PrefixTree],
    *,
    layout: str = "auto",
    selectors: Sequence[TokenSelector] | None = None,
) -> BatchVerification:
    """Verify the drafts of B sequences with one call of the target, and roll its cache back.

    Args:
        target: the target.
        state: covers y_1..y_t of each sequence. Afterwards it covers y_{t+1} and the accepted
            tokens as well; the bonus token is not in it yet.
        trees: the exact token and the drafts of each sequence.
        layout: "tree", "rows", or "auto": the one with fewer tokens to compute; "rows" if equal, as
            it needs no mask, or if the target does not support trees.
        selectors: one for each sequence instead of argmax, called along accepted paths only, once
            for each token, in order.

    Returns:
        BatchVerification.

    Raises:
        ValueError: NaN logits, or a layout that the target or cache does not support.
        MemoryError: the call did not fit; the message says what to lower.
    """
    if not torch.is_inference_mode_enabled():  # checked first: entering it again takes microseconds
        with torch.inference_mode():
            return verify_trees(target, state, trees, layout=layout, selectors=selectors)
    if isinstance(state, RecurrentCache):
        return _verify_chain(target, state, trees, layout, selectors)
    layout = choose_layout(target, state, trees, layout)
    call = (lay_out_tree if layout == "tree" else lay_out_rows)(target, state, trees)
    cache, size = state.cache, call.input_ids.shape[1]
    try:
        if call.sequences is not None:
            cache = state.repeated(call.sequences, size)
        start = time.perf_counter()
        output = _run(target, call, cache)
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        raise MemoryError(memory_advice(error, call.input_ids.shape, len(trees), layout)) from error
    seconds = time.perf_counter() - start
    if selectors is None:
        followed = follow_greedy(trees, output.logits, call.indices)
    else:
        followed = _run_selectors(call.indices, output, trees, selectors)
    hidden = output.hidden.flatten(0, 1)
    verified = [
        Verification(tokens, len(nodes) - 1, hidden[end]) for nodes, tokens, end in followed
    ]
    if output.features is not None:
        features = output.features.flatten(0, 1)
        for number, (nodes, _, _) in enumerate(followed):
            index_of = logits_index(call.indices, number, size)
            verified[number].features = features[[index_of(node) for node in nodes]]
    if layout == "tree":
        state.keep_nodes([nodes for nodes, _, _ in followed], size)
    else:
        rows = [end // size for _, _, end in followed]
        counts = [len(nodes) for nodes, _, _ in followed]
        state.keep_rows(cache, rows, counts, size, repeats=call.sequences is not None)
    return BatchVerification(verified, layout, seconds, (call.input_ids.shape[0], size))


def _verify_chain(
    target: TargetModel,
    state: RecurrentCache,
    trees: list[PrefixTree],
    layout: str,
    selectors: Sequence[TokenSelector] | None,
) -> BatchVerification:
    """`verify_trees` for a target with recurrent states: one text, one draft."""
    if layout == "tree" or len(trees) != 1 or trees[0].max_depth + 1 != len(trees[0]):
        raise ValueError(
            "verify: the target keeps a recurrent state, which cannot branch; expected one text "
            "with one draft (PrefixTree.best_chain), and layout 'auto' or 'rows'"
        )
    token_ids = trees[0].token_ids
    size = len(state.pending) + len(token_ids)
    start = time.perf_counter()
    try:
        output = state.read(target, token_ids)
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        raise MemoryError(memory_advice(error, (1, size), 1, "rows")) from error
    seconds = time.perf_counter() - start
    if selectors is None:
        ((nodes, tokens, end),) = follow_greedy(trees, output.logits, None)
    else:
        ((nodes, tokens, end),) = _run_selectors(None, output, trees, selectors)
    state.keep(len(nodes) - 1)
    features = None if output.features is None else output.features[0, : len(nodes)]
    verified = Verification(tokens, len(nodes) - 1, output.hidden[0, end], features)
    return BatchVerification([verified], "rows", seconds, (1, size))


def choose_layout(
    target: TargetModel, state: BatchCache, trees: list[PrefixTree], layout: str = "auto"
) -> str:
    """The layout that `verify_trees` uses; see there.

    Raises:
        ValueError: an unknown layout, or one that the target or cache does not support.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"verify: layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    if state.capacity is not None and layout == "rows":
        raise ValueError(
            "verify: a static cache cannot be copied into rows; use layout='tree', or a cache that "
            "grows"
        )
    if layout == "rows":
        return layout
    if layout == "auto" and state.capacity is None:
        size, depth, num_rows = _core.tree_extents([tree._core for tree in trees])
        if num_rows * (1 + depth) <= len(trees) * size:
            return "rows"
    refusal = target.refuses_tree()
    if refusal is None:
        return "tree"
    if layout == "auto" and state.capacity is None:
        return "rows"
    raise ValueError(f"verify: the tree layout is not possible: {refusal}; or use layout='rows'")


def verify_drafts(
    model: TargetModel,
    cache: Any,
    exact_token: int,
    drafts: Tensor,
    *,
    layout: str = "auto",
) -> Verification:
    """Verify p drafts of one sequence with one call, and roll the cache back to accepted tokens.

    Args:
        model: the target; wrap a causal LM as `CausalLMTarget(model)`.
        cache: one row that covers y_1..y_t. Afterwards it covers y_1..y_{t+1} and the n accepted
            tokens; the bonus token is not in it yet.
        exact_token: y_{t+1}, which the target has already selected.
        drafts: (p, H) ints on any device; p at least 1, H may be 0 (plain greedy decoding).
            Negative ids (padding) end a draft; the tree layout computes shared prefixes once.
        layout: "auto", "tree" or "rows".

    Returns:
        Verification.

    Raises:
        ValueError: drafts is not (p, H) with p >= 1, NaN logits, or a cache that cannot roll back.
    """
    if drafts.ndim != 2 or drafts.shape[0] == 0:
        raise ValueError(
            f"verify_drafts: drafts has shape {tuple(drafts.shape)}; expected (drafts, slots) "
            "with one draft or more; give a (1, 0) tensor if there is nothing to verify"
        )
    check_cache(cache)
    tree = PrefixTree.from_drafts(exact_token, drafts.tolist())
    return verify_trees(model, BatchCache(cache), [tree], layout=layout).sequences[0]


def _run(target: TargetModel, call: Call, cache: Any) -> TargetOutput:
    return target(
        call.input_ids,
        cache,
        attention_mask=call.attention_mask,
        windowed_mask=call.windowed_mask,
        position_ids=call.position_ids,
    )


def _run_selectors(
    indices: Indices,
    output: TargetOutput,
    trees: Sequence[PrefixTree],
    selectors: Sequence[TokenSelector],
) -> list[tuple[list[int], list[int], int]]:
    """Accepted nodes of each tree, tokens after them, and the logits index of the last node."""
    logits, size = output.logits.flatten(0, 1), output.logits.shape[1]

    def follow(
        number: int, tree: PrefixTree, selector: TokenSelector
    ) -> tuple[list[int], list[int], int]:
        depths, index_of = tree.depths, logits_index(indices, number, size)

        def choose(node: int) -> int | None:
            sampled_from = None if tree.sampled_from is None else tree.sampled_from(node)
            candidates = DraftCandidates(tree.children(node), depths[node], sampled_from)
            return selector.choose(logits[index_of(node)], candidates)

        nodes, tokens = tree.follow(choose)
        return nodes, tokens, index_of(nodes[-1])

    pairs = zip(trees, selectors, strict=True)
    return [follow(number, tree, selector) for number, (tree, selector) in enumerate(pairs)]
