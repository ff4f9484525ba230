"""Selection of the target's tokens, greedy or by a rule along accepted paths, and its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify.prefix_tree import PrefixTree

FloatRow = npt.NDArray[np.float32]

NAN = (
    "verify_drafts: the target's logits hold NaN; expected numbers; check its weights, and its "
    "dtype (float16 overflows on some models: use bfloat16 or float32)"
)


def greedy_tokens(logits: Tensor) -> Tensor:
    """The target's greedy choice at each position; all strategies use this function.

    Args:
        logits: (..., V) float.

    Returns:
        (...) int64; the smallest id if several logits share the maximum.

    Raises:
        ValueError: a NaN among the logits.
    """
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        rows = logits.reshape(-1, logits.shape[-1]).numpy()  # ten times faster than torch's max
        best = rows.argmax(axis=-1)
        token_ids = torch.from_numpy(best).view(logits.shape[:-1])
        has_nan = bool(np.isnan(rows[np.arange(len(rows)), best]).any())
    else:
        maxima, token_ids = logits.max(dim=-1)
        has_nan = bool(maxima.isnan().any())
    if has_nan:  # both return the first maximum and treat NaN as the largest number
        raise ValueError(NAN)
    return token_ids


class Predictions(NamedTuple):
    """The target's most probable next tokens after each node of a tree.

    Attributes:
        tree: of n+1 nodes.
        token_ids: (n+1, k) int32, best first; -1 in rows whose logits hold NaN or +inf.
        log_probs: (n+1, k) float32, natural logs, of the raw logits.
    """

    tree: PrefixTree
    token_ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]


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
        predictions: of the tree that was verified; None: not requested.
        states: (n+1, D) float, the hidden states that predicted the tokens; None: not requested.
        candidates: of the heads after the last of them; None: the call did not compute them.
    """

    token_ids: list[int]
    accept_length: int
    hidden: Tensor
    features: Tensor | None = None
    predictions: Predictions | None = None
    states: Tensor | None = None
    candidates: LatticeInput | None = None


@dataclass
class BatchVerification:
    """The results of one verifying call for B sequences.

    Attributes:
        sequences: of each sequence.
        layout: "tree" or "rows".
        target_seconds: wall time of the target's call alone.
        shape: rows and tokens of the call.
        predict_seconds: wall time of the selection of predictions.
    """

    sequences: list[Verification]
    layout: str
    target_seconds: float
    shape: tuple[int, int] = (0, 0)
    predict_seconds: float = 0.0


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


def logits_index(
    indices: list[npt.NDArray[np.int64]] | None, number: int, size: int
) -> Callable[[int], int]:
    """The function from a node of tree `number` to the index of its logits; see `follow_greedy`."""
    if indices is None:
        return (number * size).__add__
    return indices[number].item


def logits_row(logits: Tensor) -> FloatRow:
    """Logits of one position, (V,) of any float dtype and device, as numpy's float32."""
    return logits.float().numpy(force=True)


def follow_by_index(
    ids: Tensor, choices: Tensor, attends: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """What `follow_greedy` of `verify.verification` finds, without values from the host.

    Args:
        ids: (R, W) int64, the tokens of a tree in each row, which is padded.
        choices: (R, W) int64, the argmax after each; -1: none.
        attends: (R, W, W) uint8, 1 where a node is another one's ancestor, or itself.
        counts: (R,) int64, nodes of each tree.

    Returns:
        (R,) int64, the last accepted node; and (R, W) int64, for each depth the node accepted
        there, where there is none the number of the depth.
    """
    steps = torch.arange(ids.shape[1], device=ids.device)
    parents = (attends.tril(-1) * steps).amax(dim=-1)
    is_wrong = (ids != choices.gather(1, parents)) & (steps > 0)
    accepted = ~(is_wrong[:, None] & (attends != 0)).any(dim=-1) & (steps < counts[:, None])
    depths = attends.sum(dim=-1) - 1
    size = len(steps)
    nodes = torch.arange(size + 1, device=ids.device).repeat(len(ids), 1)
    nodes.scatter_(1, torch.where(accepted, depths, size), steps.expand(len(ids), -1))
    return torch.where(accepted, depths, -1).argmax(dim=-1), nodes[:, :size]


def select_predictions(
    trees: Sequence[PrefixTree],
    logits: Tensor,
    indices: list[npt.NDArray[np.int64]] | None,
    top_k: int,
) -> list[Predictions]:
    """The target's most probable next tokens after each node of each tree; see `follow_greedy`."""
    top_k = min(top_k, logits.shape[-1])
    best = select_top_k(logits, top_k, log_softmax=True, where="verify", skip_bad_rows=True)
    token_ids, log_probs = (one.reshape(-1, top_k) for one in (best.token_ids, best.scores))
    size, selected = logits.shape[1], []
    for number, tree in enumerate(trees):
        start = number * size
        rows: Any = slice(start, start + len(tree)) if indices is None else indices[number]
        selected.append(Predictions(tree, token_ids[rows], log_probs[rows]))
    return selected


def run_selectors(
    selectors: Sequence[TokenSelector],
    trees: Sequence[PrefixTree],
    logits: Tensor,
    indices: list[npt.NDArray[np.int64]] | None,
) -> list[tuple[list[int], list[int], int]]:
    """Accepted nodes of each tree, tokens after them, and the logits index of the last node."""
    rows, size = logits.flatten(0, 1), logits.shape[1]

    def follow(
        number: int, tree: PrefixTree, selector: TokenSelector
    ) -> tuple[list[int], list[int], int]:
        depths, index_of = tree.depths, logits_index(indices, number, size)

        def choose(node: int) -> int | None:
            sampled_from = None if tree.sampled_from is None else tree.sampled_from(node)
            candidates = DraftCandidates(tree.children(node), depths[node], sampled_from)
            return selector.choose(rows[index_of(node)], candidates)

        nodes, tokens = tree.follow(choose)
        return nodes, tokens, index_of(nodes[-1])

    pairs = zip(trees, selectors, strict=True)
    return [follow(number, tree, selector) for number, (tree, selector) in enumerate(pairs)]
