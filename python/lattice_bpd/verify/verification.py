"""Verification: one call of the target determines the accepted tokens of each draft.

    cache      y_1 .. y_t
    input      y_{t+1}  d_1     d_2     ..  d_H            y_{t+1} is exact
    predicts   g_1      g_2     g_3     ..  g_{H+1}        the target's argmax
    accepted   the longest path with d_j = g_j; then g_{n+1} is the bonus token

The drafts of B sequences are laid out in one of two shapes; in both a node's token has the position
that it would have in the text:

    rows   one row per draft: exact token, draft tokens         (R, depth + 1), causal mask
    tree   one row per sequence: exact token, all tree nodes    (B, nodes + 1), mask by ancestors

Stern et al. 2018, sections 3 and 4 (verification merged with the next prediction); Kim et al. 2024,
section 7.2 (p drafts in parallel); Miao et al. 2024 (SpecInfer: a tree in one row).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.models.forward import LMOutput
from lattice_bpd.verify.graphs import HeadsInCall
from lattice_bpd.verify.greedy import (
    NAN,
    BatchVerification,
    TokenSelector,
    Verification,
    greedy_tokens,
    logits_index,
    run_selectors,
    select_predictions,
)
from lattice_bpd.verify.layout import lowest_number, mask_attention
from lattice_bpd.verify.memory import refuse_call
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.recurrent_cache import RecurrentCache
from lattice_bpd.verify.rows import Rows

LAYOUTS = ("auto", "tree", "rows")


class Call(NamedTuple):
    """The inputs of one call, and which of its logits belong to which node.

    Attributes:
        input_ids: (R, T) int64.
        position_ids: (R, T) int64; None if the target's own numbering is right.
        attention_mask: see `CausalLMTarget.__call__`; None for the plain causal mask.
        windowed_mask: the same for layers with a sliding window, or None.
        sequences: the sequence of each row, that of row b < B is b; None: there are B rows.
        indices: for each sequence, (n+1,) int64, the index row * T + column of the logits of its
            nodes; None if row b has those of sequence b in order.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    attention_mask: Tensor | None
    windowed_mask: Tensor | None
    sequences: list[int] | None
    indices: list[npt.NDArray[np.int64]] | None

    def run(self, target: Any, cache: Any) -> LMOutput:
        """The target's output over a cache."""
        if isinstance(cache, RecurrentCache):
            return cache.read(target, self.input_ids, self.position_ids)
        output: LMOutput = target(
            self.input_ids, cache, attention_mask=self.attention_mask,
            windowed_mask=self.windowed_mask, position_ids=self.position_ids,
        )  # fmt: skip
        return output


def verify_trees(
    target: Any,
    state: Any,
    trees: list[PrefixTree],
    *,
    layout: str = "auto",
    selectors: Sequence[TokenSelector] | None = None,
    num_predictions: int = 0,
    keep_hidden: bool = False,
    heads: HeadsInCall | None = None,
) -> BatchVerification:
    """Verify the drafts of B sequences with one call of the target, and roll its cache back.

    Args:
        target: the target.
        state: Rows or a RecurrentCache that covers y_1..y_t of each sequence. Afterwards it covers
            y_{t+1} and the accepted tokens as well; the bonus token is not in it yet.
        trees: the exact token and the drafts of each sequence.
        layout: "tree", "rows", or "auto": the one with fewer tokens to compute; "rows" if equal, as
            it needs no mask, or if the target does not support trees.
        selectors: one for each sequence instead of argmax, called along accepted paths only, once
            for each token, in order.
        num_predictions: k; the target's k most probable tokens after each node are returned too.
        keep_hidden: whether `Verification.states` is set.
        heads: what a recorded call computes `Verification.candidates` with.

    Returns:
        BatchVerification.

    Raises:
        ValueError: NaN logits, or a layout that the target or cache does not support.
        MemoryError: the call did not fit; the message says what to lower.
    """
    if not torch.is_inference_mode_enabled():  # checked first: entering it again takes microseconds
        with torch.inference_mode():
            return verify_trees(
                target, state, trees, layout=layout, selectors=selectors,
                num_predictions=num_predictions, keep_hidden=keep_hidden,
                heads=heads,
            )  # fmt: skip
    follow: Any = follow_greedy if selectors is None else partial(run_selectors, selectors)
    read = None
    if state.recorded is not None and layout != "rows":
        read = _replay(target, state, trees, num_predictions, heads, keeps=selectors is None)
    if read is None:
        read = _call_target(target, state, trees, layout, num_predictions)
    output, indices = read.output, read.indices
    if read.token_ids is not None and selectors is None:
        followed = follow_tokens(read.token_ids, trees, output.logits, indices)
    else:
        followed = follow(trees, output.logits, indices)
    hidden = output.hidden.flatten(0, 1)
    verified = [
        Verification(tokens, len(nodes) - 1, hidden[end], None, predicted)
        for (nodes, tokens, end), predicted in zip(followed, read.predictions, strict=True)
    ]
    for number, (last, candidates) in enumerate(read.candidates):
        if last == followed[number][0][-1]:
            verified[number].candidates = candidates
    shape: Any = output.logits.shape[:2]
    features = None if output.features is None else output.features.flatten(0, 1)
    if features is not None or keep_hidden:
        for number, (nodes, _, _) in enumerate(followed):
            index_of = logits_index(indices, number, shape[1])
            rows = [index_of(node) for node in nodes]
            verified[number].features = None if features is None else features[rows]
            verified[number].states = hidden[rows] if keep_hidden else None
    if read.is_kept:
        state.extend([len(nodes) for nodes, _, _ in followed])
    elif read.layout == "tree":
        state.keep_nodes([nodes for nodes, _, _ in followed])
    else:
        kept = [end // shape[1] for _, _, end in followed]
        state.keep_rows(kept, [len(nodes) for nodes, _, _ in followed])
    return BatchVerification(
        verified, read.layout, read.seconds, tuple(shape), read.predict_seconds
    )


class _Read(NamedTuple):
    """What the target computed for all trees.

    Attributes:
        output: logits (R, T, V), hidden (R, T, D) and features.
        indices: see Call.
        predictions: of each tree; None: not requested.
        layout: "tree" or "rows".
        seconds: wall time of the call.
        predict_seconds: that of the selection of predictions.
        token_ids: R T ints, its choices, where the call made them; see `follow_tokens`.
        is_kept: whether the call has moved what it accepts to its positions.
        candidates: the last accepted node of each tree, and the candidates after it; or nothing.
    """

    output: LMOutput
    indices: list[npt.NDArray[np.int64]] | None
    predictions: Sequence[Any]
    layout: str
    seconds: float
    predict_seconds: float = 0.0
    token_ids: list[int] | None = None
    is_kept: bool = False
    candidates: Sequence[tuple[int, LatticeInput]] = ()


def _replay(
    target: Any, state: Rows, trees: list[PrefixTree], num_predictions: int,
    heads: HeadsInCall | None, *, keeps: bool,
) -> _Read | None:  # fmt: skip
    """A recorded call, see `graphs`; None where there is none."""
    start = time.perf_counter()
    replayed = state.recorded.call(
        target, state, trees, num_predictions,
        lambda: _call_target(target, state, trees, "tree", 0).output.logits,
        keeps=keeps, heads=heads,
    )  # fmt: skip
    if replayed is None:
        return None
    output, seconds = replayed.output, time.perf_counter() - start
    output = output._replace(hidden=output.hidden.clone())  # the next call writes over it
    return _Read(
        output, None, replayed.predictions, "tree", seconds, 0.0, replayed.token_ids, keeps,
        replayed.candidates,
    )  # fmt: skip


def _call_target(
    target: Any, state: Any, trees: list[PrefixTree], layout: str, num_predictions: int
) -> _Read:
    """A call of the target; see `verify_trees`."""
    layout = choose_layout(target, trees, layout)
    if isinstance(state, RecurrentCache):
        ids, positions, indices = state.lay_out(trees, target.device)
        call = Call(ids, positions, None, None, None, [indices])
    else:
        call = (lay_out_tree if layout == "tree" else lay_out_rows)(target, state, trees)
    try:
        if call.sequences is not None:
            state.branch(call.sequences)
        start = time.perf_counter()
        output = call.run(target, state)
    except (RuntimeError, MemoryError) as error:
        refuse_call(error, call.input_ids.shape, len(trees), layout)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    predictions: list[Any] = [None] * len(trees)
    if num_predictions:  # before selectors, which may change logits
        predictions = select_predictions(trees, output.logits, call.indices, num_predictions)
    return _Read(output, call.indices, predictions, layout, seconds, time.perf_counter() - start)


def lay_out_tree(target: Any, state: Rows, trees: list[PrefixTree]) -> Call:
    """Exact token and tree nodes of each sequence as one row."""
    size = max(map(len, trees))
    inputs = _core.tree_inputs(trees, state.lengths, size)
    if target.device.type == "cpu":
        input_ids, position_ids = map(torch.from_numpy, inputs)
    else:  # in one copy
        input_ids, position_ids = torch.from_numpy(np.stack(inputs)).to(target.device).unbind()
    masks: tuple[Tensor, Tensor | None]
    if target.device.type == "cpu" and target.sliding_window is None:
        lowest = lowest_number(target.dtype)
        added = _core.additive_masks(trees, state.lengths, size, state.width + size, lowest)
        mask = torch.from_numpy(added)
        masks = mask if target.dtype == torch.float32 else mask.to(target.dtype), None
    else:
        attends = _core.node_masks(trees, size).view(np.bool_)
        masks = mask_attention(target, state, attends, position_ids, range(len(trees)))
    return Call(input_ids, position_ids, *masks, None, None)


def lay_out_rows(target: Any, state: Rows, trees: list[PrefixTree]) -> Call:
    """Every path of the trees as a row, padded with token 0, whose logits are unused."""
    ids, texts, sequences, indices = _core.row_inputs(trees, state.lengths)
    repeats = sequences if len(sequences) > len(trees) else None
    input_ids, size, window = torch.from_numpy(ids).to(target.device), ids.shape[1], False
    if target.sliding_window is not None and state.width + size > target.sliding_window:
        # In `generate` the cache drops positions outside of the window. Ours keeps all of them,
        # and some models with a window do not mask it (Moshi).
        window = target.refuses_tree() is None
    if state.is_even and not window:
        return Call(input_ids, None, None, None, repeats, indices)  # the target numbers them itself
    position_ids = torch.from_numpy(texts).to(target.device)
    attends = np.tri(size, dtype=np.bool_)[None].repeat(len(ids), axis=0)
    masks = mask_attention(target, state, attends, position_ids, sequences)
    return Call(input_ids, position_ids, *masks, repeats, indices)


def choose_layout(target: Any, trees: list[PrefixTree], layout: str = "auto") -> str:
    """The layout that `verify_trees` uses; see there.

    Raises:
        ValueError: an unknown layout, or one that the target does not support.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"verify: layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    if layout == "rows":
        return layout
    if layout == "auto":
        size, depth, num_rows = _core.tree_extents(trees)
        if num_rows * (1 + depth) <= len(trees) * size:
            return "rows"
    refusal = target.refuses_tree()
    if refusal is None:
        return "tree"
    if layout == "auto":
        return "rows"
    raise ValueError(f"verify: the tree layout is not possible: {refusal}; or use layout='rows'")


def verify_drafts(
    model: Any,
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
    tree = PrefixTree.from_drafts(exact_token, drafts.tolist())
    rows = Rows.from_cache(cache, num_free=len(tree))
    verified = verify_trees(model, rows, [tree], layout=layout).sequences[0]
    if rows is not cache:
        rows.write_to(cache)
    return verified


def follow_greedy(
    trees: Sequence[PrefixTree],
    logits: Tensor,
    indices: list[npt.NDArray[np.int64]] | None,
) -> list[tuple[list[int], list[int], int]]:
    """Follow each tree while the target's choice is among the drafts.

    Args:
        trees: of B sequences.
        logits: (R, T, V) float.
        indices: for each tree (n+1,), the index of each node's logits after flattening the first
            two axes; None if row b has the nodes of tree b in order.

    Returns:
        For each tree the accepted nodes and the target's tokens after them, see
        `PrefixTree.follow`, and the index of the last node's logits.

    Raises:
        ValueError: a NaN among the logits of accepted nodes; on an accelerator, where all nodes
            are decided in one synchronization, among any.
    """
    if logits.device.type == "cpu":
        return _core.follow_greedy(trees, logits.float().contiguous().numpy(), indices)
    return follow_tokens(greedy_tokens(logits).flatten().tolist(), trees, logits, indices)


def follow_tokens(
    token_ids: list[int],
    trees: Sequence[PrefixTree],
    logits: Tensor,
    indices: list[npt.NDArray[np.int64]] | None,
) -> list[tuple[list[int], list[int], int]]:
    """`follow_greedy` with the R T choices of the target; -1 where its logits hold NaN."""
    followed = []
    for number, tree in enumerate(trees):
        index_of = logits_index(indices, number, logits.shape[1])
        nodes, tokens = tree.follow(lambda node, at=index_of: token_ids[at(node)])  # type: ignore[misc]
        if tokens[-1] < 0:
            raise ValueError(NAN)
        followed.append((nodes, tokens, index_of(nodes[-1])))
    return followed
