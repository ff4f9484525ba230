"""Trees of a draft model: level by level, one call with tree attention for each.

best     the most probable prefixes under the draft model
sampled  given numbers of children at each level, sampled without replacement
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lattice_bpd.decode.drafters.cached_reader import CachedReader, ReadTexts
from lattice_bpd.lattice.logits import select_top_k
from lattice_bpd.verify.prefix_tree import PrefixTree
from lattice_bpd.verify.verification import lay_out_tree
from lattice_bpd_drafters.draft_model_samples import Distribution, DraftSampler


class DraftReader(CachedReader):
    """Reads texts and what is drafted after them."""

    def extend(self, texts: ReadTexts, new: Sequence[int | None]) -> Tensor:
        """Read one more token of each text; None: read the last one again.

        Returns:
            (R, V) logits of the token after each.
        """
        if None in new:
            texts.cache.roll_back(
                [len(t) - (token is None) for t, token in zip(texts.tokens, new, strict=True)]
            )
        pairs = list(zip(texts.tokens, new, strict=True))
        texts.tokens = [text if token is None else [*text, token] for text, token in pairs]
        return self.read(texts.cache, [text[-1:] for text in texts.tokens])

    def look_ahead(self, texts: ReadTexts, forests: Sequence[PrefixTree]) -> Tensor:
        """Read draft tokens after each text in one call, then drop them from the cache.

        Args:
            texts: as read.
            forests: of each text; first tokens have parent -1. A model that `refuses_tree` cannot
                read them.

        Returns:
            (R, N, V) logits of the token after each node; N is the size of the largest forest.
        """
        limit = self.model.max_positions
        call = lay_out_tree(self.model, texts.cache, list(forests))
        position_ids = call.position_ids
        if position_ids is not None and limit is not None:
            # padding after a text that has no further position
            position_ids = position_ids.clamp(max=limit - 1)
        output = self.model(
            call.input_ids,
            texts.cache,
            attention_mask=call.attention_mask,
            windowed_mask=call.windowed_mask,
            position_ids=position_ids,
        )
        return output.logits[..., : self.vocab_size]


@dataclass
class GrowingTree:
    """A draft tree under construction; no node is more probable than its parent.

    Attributes:
        token_ids: of the nodes, parents before children.
        parents: of the nodes, -1 for first tokens.
        depths: of the nodes, 0 for first tokens.
        log_probs: of the nodes, ln of the probability of the prefix that ends there.
        sampled_from: of the exact token and the nodes, what their children were sampled from.
        failed: whether logits were NaN or infinite.
    """

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    sampled_from: list[Distribution | None] = field(default_factory=lambda: [None])
    failed: bool = False

    def add(self, token: int, parent: int, log_prob: float) -> None:
        """Adds a node."""
        self.token_ids.append(token)
        self.parents.append(parent)
        self.depths.append(0 if parent < 0 else self.depths[parent] + 1)
        self.log_probs.append(log_prob)
        self.sampled_from.append(None)

    def add_children(
        self,
        parent: int,
        token_ids: Sequence[int],
        log_probs: Sequence[float],
        sampled_from: Distribution | None,
    ) -> None:
        """Adds nodes below a parent that were sampled from a distribution.

        Args:
            parent: its number, -1 for the exact token.
            token_ids: of the nodes.
            log_probs: of the nodes, each after its parent.
            sampled_from: see the class.
        """
        above = 0.0 if parent < 0 else self.log_probs[parent]
        self.sampled_from[parent + 1] = sampled_from
        for token, log_prob in zip(token_ids, log_probs, strict=True):
            self.add(token, parent, above + log_prob)

    def keep_best(self, max_nodes: int) -> None:
        """Keeps the most probable nodes, sorted by descending probability."""
        order = sorted(range(len(self.log_probs)), key=lambda node: -self.log_probs[node])
        numbers = {-1: -1, **{node: number for number, node in enumerate(order[:max_nodes])}}
        kept = GrowingTree()
        for node in order[:max_nodes]:
            kept.add(self.token_ids[node], numbers[self.parents[node]], self.log_probs[node])
        vars(self).update(vars(kept), failed=self.failed)

    def to_tree(self, exact_token: int) -> PrefixTree:
        """The tree below an exact token, with log probabilities."""
        return PrefixTree.from_nodes(
            exact_token, self.token_ids, self.parents, len(self.token_ids),
            np.array(self.log_probs, np.float32),
        )  # fmt: skip

    def to_sampled_tree(self, exact_token: int) -> PrefixTree:
        """The tree below an exact token, with the distributions of its children, if any."""
        is_sampled = any(distribution is not None for distribution in self.sampled_from)
        return PrefixTree.from_nodes(
            exact_token, self.token_ids, self.parents, len(self.token_ids),
            sampled_from=self.sampled_from if is_sampled else None,
        )  # fmt: skip


class Best(NamedTuple):
    """The k most likely tokens after each of R texts.

    Attributes:
        token_ids: (R, k) int32, best first, equal ones by rising id.
        scores: (R, k) float32, their logits or log probabilities.
        failed: (R,) bool, whether the logits are no numbers; the tokens are of no use then.
    """

    token_ids: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]
    failed: npt.NDArray[np.bool_]


def find_failed(logits: Tensor) -> npt.NDArray[np.bool_]:
    """Of (R, V) logits the rows with NaN or +inf, or without a number: (R,) bool."""
    failed: npt.NDArray[np.bool_] = (~logits.amax(dim=-1).isfinite()).cpu().numpy()
    return failed  # NaN wins amax


def find_best(logits: Tensor, top_k: int, temperature: float | None = None) -> Best:
    """The top_k best of (R, V) logits; see `find_failed` for rows that have none.

    Scores are logits, or with a temperature the log probabilities of softmax(logits / temperature)
    over the whole vocabulary.
    """
    rows: Any = find_failed(logits)
    if rows.any():
        failed = torch.from_numpy(rows).to(logits.device)
        logits = logits.masked_fill(failed[:, None], 0.0)
    is_normalized = temperature is not None
    if temperature is not None and temperature != 1.0:
        logits = logits.float() / temperature
    top_k = min(top_k, logits.shape[1])
    best = select_top_k(logits, top_k, log_softmax=is_normalized, where="DraftModelDrafter")
    return Best(best.token_ids[0], best.scores[0], rows)


AddChildren = Callable[[int, GrowingTree, list[int], Tensor], None]
_RATE = 0.6  # assumed acceptance rate of one sample, for the shape of trees
_MOST_CHILDREN = 8


def grow_best(
    reader: DraftReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    *,
    top_k: int,
    max_nodes: int,
    temperature: float,
) -> list[GrowingTree]:
    """The max_nodes most probable prefixes under the draft model.

    A prefix is at most as probable as the one without its last token. So a node that is not among
    the best so far has no child that will be, and reading the best of each level is enough: the
    tree is exact but for children beyond the `top_k` of their parent.

    Args:
        reader: of the draft model.
        texts: R texts as read.
        logits: (R, V) after them.
        depths: deepest level of each, 1 or more.
        top_k: children of a node at most.
        max_nodes: N.
        temperature: divides the logits.
    """

    def add_children(_row: int, tree: GrowingTree, nodes: list[int], logits: Tensor) -> None:
        best = find_best(logits, top_k, temperature)
        tree.failed = bool(best.failed.any())
        if tree.failed:
            return
        for node, ids, scores in zip(nodes, best.token_ids, best.scores, strict=True):
            above = 0.0 if node < 0 else tree.log_probs[node]
            for token, log_prob in zip(ids.tolist(), scores.tolist(), strict=True):
                if log_prob > -math.inf:
                    tree.add(token, node, above + min(log_prob, 0.0))
        tree.keep_best(max_nodes)

    return _grow(reader, texts, logits, depths, add_children)


def grow_sampled(
    reader: DraftReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    *,
    top_k: int,
    draws: Sequence[int],
    samplers: Sequence[DraftSampler],
) -> list[GrowingTree]:
    """A tree sampled from the draft model: `draws[j]` children of each node of level j.

    Args:
        reader: see `grow_best`, as for texts, logits and depths.
        texts: see there.
        logits: see there.
        depths: see there.
        top_k: k; children are sampled from the k most likely tokens, whose probabilities are made
            to sum to 1.
        draws: children of the exact token, of its children, and so on.
        samplers: of each text.
    """

    def add_children(row: int, tree: GrowingTree, nodes: list[int], logits: Tensor) -> None:
        tree.failed = bool(find_failed(logits).any())
        if tree.failed:
            return
        for node, of_node in zip(nodes, logits.float().cpu(), strict=True):
            depth = 0 if node < 0 else tree.depths[node] + 1
            children = samplers[row].sample(of_node, draws[depth], top_k, node, depth)
            tree.add_children(node, *children)

    return _grow(reader, texts, logits, depths, add_children)


def plan_draws(max_nodes: int, length: int) -> list[int]:
    """Numbers of children by level that get most samples accepted, for `grow_sampled`.

    Assumes that each sample is accepted with probability 0.6, so that one of n siblings is with
    probability 1 - 0.4^n.

    Args:
        max_nodes: N, nodes of the tree at most, 1 or more.
        length: levels at most, 1 or more.
    """

    @cache
    def best(width: int, left: int, levels: int, most: int) -> tuple[float, tuple[int, ...]]:
        """Expected accepted tokens of the remaining levels, and their numbers of children."""
        value = 0.0
        plan: tuple[int, ...] = ()
        for count in range(1, min(most, left // width if levels else 0) + 1):
            below, counts = best(width * count, left - width * count, levels - 1, count)
            expected = (1.0 - (1.0 - _RATE) ** count) * (1.0 + below)
            if expected > value:
                value, plan = expected, (count, *counts)
        return value, plan

    return list(best(1, max_nodes, length, _MOST_CHILDREN)[1])


def _grow(
    reader: DraftReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    add_children: AddChildren,
) -> list[GrowingTree]:
    """Level by level; `add_children` gets the logits (n, V) after n nodes of a row's tree."""
    trees = [GrowingTree() for _ in depths]
    for row, tree in enumerate(trees):
        add_children(row, tree, [-1], logits[row : row + 1])
    for level in range(1, max(depths)):
        growing = [
            level < depths[row] and not tree.failed and level - 1 in tree.depths
            for row, tree in enumerate(trees)
        ]
        if not any(growing):
            break
        nothing = PrefixTree([0], [-1])
        forests = [
            PrefixTree(tree.token_ids, tree.parents) if grows else nothing
            for tree, grows in zip(trees, growing, strict=True)
        ]
        ahead = reader.look_ahead(texts, forests)
        for row, tree in enumerate(trees):
            if growing[row]:
                nodes = [node for node, depth in enumerate(tree.depths) if depth == level - 1]
                add_children(row, tree, nodes, ahead[row][nodes])
    return trees


def roll_out(
    reader: DraftReader, texts: ReadTexts, logits: Tensor, depths: Sequence[int]
) -> tuple[list[list[int]], list[bool]]:
    """Continue each text greedily, one call of the model for each slot but the first.

    Args:
        reader: of the draft model.
        texts: R texts as read; afterwards they hold their continuations but for the last tokens.
        logits: (R, V) after them.
        depths: tokens to add to each, 1 or more.

    Returns:
        R paths, and whether logits on the way of each were no numbers.
    """
    paths: list[list[int]] = [[] for _ in depths]
    has_failed = [False] * len(paths)
    for slot in range(max(depths)):
        best = find_best(logits, 1)
        new: list[int | None] = [None] * len(paths)
        for row, path in enumerate(paths):
            has_failed[row] |= slot < depths[row] and bool(best.failed[row])
            if has_failed[row] or slot >= depths[row]:
                continue
            path.append(int(best.token_ids[row, 0]))
            new[row] = path[-1] if slot + 1 < depths[row] else None
        if all(token is None for token in new):
            break
        logits = reader.extend(texts, new)
    return paths, has_failed


def sample_chains(
    reader: DraftReader,
    texts: ReadTexts,
    logits: Tensor,
    depths: Sequence[int],
    samplers: Sequence[DraftSampler],
) -> list[GrowingTree]:
    """Continue each text with samples of all tokens; see `roll_out`.

    Args:
        reader: see there, as for texts, logits and depths.
        texts: see there.
        logits: see there.
        depths: see there.
        samplers: of each text.

    Returns:
        R trees of one path.
    """
    trees = [GrowingTree() for _ in depths]
    for slot in range(max(depths)):
        failed, host = find_failed(logits), logits.float().cpu()
        new: list[int | None] = [None] * len(trees)
        for row, tree in enumerate(trees):
            tree.failed = tree.failed or (slot < depths[row] and bool(failed[row]))
            if tree.failed or slot >= depths[row]:
                continue
            children = samplers[row].sample(host[row], 1, None, slot - 1, slot)
            tree.add_children(slot - 1, *children)
            new[row] = children.token_ids[0] if slot + 1 < depths[row] else None
        if all(token is None for token in new):
            break
        logits = reader.extend(texts, new)
    return trees
