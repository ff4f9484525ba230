"""Verification: one call of the target says how many tokens of each draft it would have written.

    cache      y_1 .. y_t
    input      y_{t+1}  d_1     d_2     ..  d_H            y_{t+1} is exact
    predicts   g_1      g_2     g_3     ..  g_{H+1}        the target's argmax
    accepted   the longest path with d_j = g_j; then g_{n+1} comes free (bonus token)

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

Places = list[npt.NDArray[np.int64]] | None  # see `layout.Call`
LAYOUTS = ("auto", "tree", "rows")


@dataclass
class Verification:
    """What one verifying call decided for one sequence.

    Attributes:
        token_ids: the n accepted draft tokens and the bonus token, n+1 in all; each is the
            target's own choice.
        accept_length: n, 0..H.
        hidden: (D,) float, the hidden state that predicted the last of them; the next heads
            start from it.
    """

    token_ids: list[int]
    accept_length: int
    hidden: Tensor


@dataclass
class BatchVerification:
    """What one verifying call decided for B sequences.

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


class Offer(NamedTuple):
    """What drafts offer behind one accepted token.

    Attributes:
        token_ids: the drafted tokens, different from each other, in the order in which they were
            proposed; empty after the end of a draft.
        depth: draft tokens that this call has accepted so far.
        sampled_from: the distribution that the tokens were sampled from without replacement: token
            ids (k,) int and probabilities (k,) float64 that sum to 1; None: not sampled.
    """

    token_ids: Sequence[int]
    depth: int
    sampled_from: tuple[Any, Any] | None = None


NO_OFFER = Offer((), 0)


class Chooser(Protocol):
    """Chooses the tokens of one sequence where plain argmax is not what is wanted.

    Attributes:
        ended: whether the last chosen token ended the text.
    """

    ended: bool

    def choose(self, logits: Tensor, offer: Offer) -> int | None:
        """The token behind all those chosen before.

        Args:
            logits: (V,) float, the target's.
            offer: the draft tokens for this place; one of them that is chosen is accepted, any
                other token ends the draft.

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
    choosers: Sequence[Chooser] | None = None,
) -> BatchVerification:
    """Verify the drafts of B sequences with one call of the target, and roll its cache back.

    Args:
        target: the target.
        state: covers y_1..y_t of each sequence. Afterwards it covers y_{t+1} and the accepted
            tokens as well; the bonus token is not in it yet.
        trees: the exact token and the drafts of each sequence.
        layout: "tree", "rows", or "auto": whichever has fewer tokens to compute, rows among equals
            (they need no mask), rows where the target takes no tree.
        choosers: one for each sequence instead of argmax, asked along accepted paths only, once
            for each token, in order.

    Returns:
        BatchVerification.

    Raises:
        ValueError: NaN logits, or a layout that this target or cache cannot take.
        MemoryError: the call did not fit; the message says what to lower.
    """
    if not torch.is_inference_mode_enabled():  # asked first: entering it again takes microseconds
        with torch.inference_mode():
            return verify_trees(target, state, trees, layout=layout, choosers=choosers)
    if isinstance(state, RecurrentCache):
        return _verify_chain(target, state, trees, layout, choosers)
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
    if choosers is None:
        followed = follow_greedy(trees, output.logits, call.places)
    else:
        followed = _ask_choosers(call.places, output, trees, choosers)
    hidden = output.hidden.flatten(0, 1)
    found = [Verification(tokens, len(nodes) - 1, hidden[end]) for nodes, tokens, end in followed]
    if layout == "tree":
        state.keep_nodes([nodes for nodes, _, _ in followed], size)
    else:
        rows = [end // size for _, _, end in followed]
        counts = [len(nodes) for nodes, _, _ in followed]
        state.keep_rows(cache, rows, counts, size, repeats=call.sequences is not None)
    return BatchVerification(found, layout, seconds, (call.input_ids.shape[0], size))


def _verify_chain(
    target: TargetModel,
    state: RecurrentCache,
    trees: list[PrefixTree],
    layout: str,
    choosers: Sequence[Chooser] | None,
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
    if choosers is None:
        ((nodes, tokens, end),) = follow_greedy(trees, output.logits, None)
    else:
        ((nodes, tokens, end),) = _ask_choosers(None, output, trees, choosers)
    state.keep(len(nodes) - 1)
    found = Verification(tokens, len(nodes) - 1, output.hidden[0, end])
    return BatchVerification([found], "rows", seconds, (1, size))


def choose_layout(
    target: TargetModel, state: BatchCache, trees: list[PrefixTree], layout: str = "auto"
) -> str:
    """Which layout `verify_trees` takes; see there.

    Raises:
        ValueError: an unknown layout, or one that this target or cache cannot take.
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
    """Verify p drafts of one sequence with one call and roll the cache to what was accepted.

    Args:
        model: the target; `CausalLMTarget(model)` makes one of a causal LM.
        cache: one row that covers y_1..y_t. Afterwards it covers y_1..y_{t+1} and the n accepted
            tokens; the bonus token is not in it yet.
        exact_token: y_{t+1}, which the target has already chosen.
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
            "with one draft or more; give a (1, 0) tensor where there is nothing to verify"
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


def _ask_choosers(
    places: Places, output: TargetOutput, trees: Sequence[PrefixTree], choosers: Sequence[Chooser]
) -> list[tuple[list[int], list[int], int]]:
    """What choosers accept of each tree, the tokens behind, and the place of the last node."""
    logits, size = output.logits.flatten(0, 1), output.logits.shape[1]

    def follow(number: int, tree: PrefixTree, chooser: Chooser) -> tuple[list[int], list[int], int]:
        depths, place_of = tree.depths, logits_index(places, number, size)

        def choose(node: int) -> int | None:
            sampled_from = None if tree.sampled_from is None else tree.sampled_from(node)
            offer = Offer(tree.children(node), depths[node], sampled_from)
            return chooser.choose(logits[place_of(node)], offer)

        nodes, tokens = tree.follow(choose)
        return nodes, tokens, place_of(nodes[-1])

    pairs = zip(trees, choosers, strict=True)
    return [follow(number, tree, chooser) for number, (tree, chooser) in enumerate(pairs)]
