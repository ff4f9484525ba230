"""Merges the proposals of several drafters into one tree of limited size.

Equal prefixes become one node, and the N most probable nodes are verified. The probabilities of
different parts are not comparable, so each part is calibrated by its accepted tokens:

tree    the probability of a node is the acceptance rate of nodes of similar probability
chain   the probability of the node of slot j is r^j, where r is the acceptance rate of tokens of
        this kind of chain; the kind is the match length for prompt lookup, and the rank of the
        path for other drafts

If two parts propose the same prefix, its probability is the greater one.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.drafters.acceptance_rates import Calibration, Rate
from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.drafters.growing_tree import GrowingTree
from lattice_bpd.decode.drafters.per_sequence import PerSequence
from lattice_bpd.decode.drafters.proposals import propose_checked
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.verify.prefix_tree import PrefixTree


@dataclass
class _Step:
    """The proposals of one step with their parts, and the length of the text."""

    length: int = 0
    proposals: list[tuple[int, PrefixTree]] = field(default_factory=list)


class CombinedDrafter(Drafter):
    """One tree of the most probable prefixes that several drafters propose.

    The acceptance rates of its parts are shared by all sequences that it serves.

    Args:
        drafters: the parts, such as a TreeDrafter, a ContinuationDrafter, a LookupDrafter, a
            DraftModelDrafter; one that fails in a step is left out of it and counted.
        max_nodes: N, tokens verified together besides the exact one.

    Raises:
        ValueError: no drafters, or max_nodes below 1.
        TypeError: in `propose`, a part that samples: its siblings cannot be selected from.
    """

    def __init__(self, drafters: Sequence[Drafter], *, max_nodes: int = 36) -> None:
        if not drafters or max_nodes < 1:
            raise ValueError(
                f"CombinedDrafter: {len(drafters)} drafters and max_nodes {max_nodes}; expected "
                "one or more of each"
            )
        self.drafters, self.max_nodes = list(drafters), max_nodes
        self._calibrations = [Calibration() for _ in drafters]
        self._rates: dict[Hashable, Rate] = {}
        self._steps: PerSequence[_Step] = PerSequence(_new_step)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles and copies have the parts without their acceptance rates."""
        return _combine, (type(self), self.drafters, self.max_nodes)

    def propose(self, states: Sequence[DecodeState]) -> list[PrefixTree]:
        """A tree of at most N draft tokens for each state."""
        for state in states:
            self._learn(self._steps.of(state), state)
        proposals = [propose_checked(drafter, states) for drafter in self.drafters]
        with states[0].stats.stage("rescore"):
            return [
                self._merge([trees[number] for trees in proposals], state)
                for number, state in enumerate(states)
            ]

    def rate(self, part: int, kind: Hashable) -> float:
        """The estimated share of correct tokens of a kind of chain."""
        return self._rates.get((part, kind), Rate()).value

    def _merge(self, proposals: Sequence[PrefixTree | None], state: DecodeState) -> PrefixTree:
        """The best nodes of all parts' proposals; stores the proposals for calibration."""
        step, merged = self._steps.renew(state), GrowingTree()
        step.length = len(state.tokens)
        for part, tree in enumerate(proposals):
            if tree is None or len(tree) == 1:
                continue
            if tree.sampled_from is not None:
                raise TypeError(
                    f"CombinedDrafter: {type(self.drafters[part]).__name__} proposed a sampled "
                    "tree; expected drafts that are not sampled, because none of those can be left "
                    "out; use that drafter alone, or shape='chain' of a DraftModelDrafter"
                )
            step.proposals.append((part, tree))
            probabilities = self._probabilities(part, tree)
            nodes = [-1]
            for token, parent, probability in zip(
                tree.token_ids[1:], tree.parents[1:], probabilities, strict=True
            ):
                log_prob = math.log(max(probability, 1e-30))
                nodes.append(merged.merge(token, nodes[parent], log_prob))
        merged.keep_best(self.max_nodes)
        return merged.to_tree(state.tokens[-1])

    def _probabilities(self, part: int, tree: PrefixTree) -> list[float]:
        """The calibrated probability of each draft token."""
        log_probs = tree.log_probs
        if log_probs is not None:
            calibrated: list[float] = self._calibrations[part].probabilities(log_probs).tolist()
            return calibrated
        probabilities = [0.0] * (len(tree) - 1)
        for kind, path in _chains(tree):
            rate = self.rate(part, kind)
            for depth, node in enumerate(path):
                probabilities[node - 1] = max(probabilities[node - 1], rate ** (depth + 1))
        return probabilities

    def _learn(self, step: _Step, state: DecodeState) -> None:
        """Compares the last step's proposals with the decoded tokens."""
        decoded = state.tokens[step.length :]
        if not decoded:
            return
        for part, tree in step.proposals:
            log_probs, token_ids = tree.log_probs, tree.token_ids
            if log_probs is not None:
                accepted = tree.kept(decoded)
                known = ~_undecided(tree, accepted, len(decoded))
                self._calibrations[part].add(log_probs[known], accepted[known])
                continue
            for kind, path in _chains(tree):
                pairs = [(token_ids[node], token) for node, token in zip(path, decoded)]  # noqa: B905
                correct = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
                rate = self._rates.setdefault((part, kind), Rate())
                rate.add(correct, min(correct + 1, len(pairs)))


def _chains(tree: PrefixTree) -> list[tuple[Hashable, list[int]]]:
    """The paths of a tree without probabilities, best first, and the kind of each."""
    paths = enumerate(tree.list_paths())
    return [(rank if tree.kind is None else tree.kind, path[1:]) for rank, path in paths]


def _undecided(
    tree: PrefixTree, accepted: npt.NDArray[np.bool_], count: int
) -> npt.NDArray[np.bool_]:
    """Draft tokens deeper than the `count` tokens decoded, on a path that agrees with all."""
    undecided = np.zeros(len(tree), np.bool_)
    nodes = zip(tree.parents[1:], tree.depths[1:], strict=True)
    for node, (parent, depth) in enumerate(nodes, start=1):
        agrees = undecided[parent] or parent == 0 or accepted[parent - 1]
        undecided[node] = depth > count and agrees
    return undecided[1:]


def _new_step(_state: DecodeState) -> _Step:
    return _Step()


def _combine(
    kind: type[CombinedDrafter], drafters: Sequence[Drafter], max_nodes: int
) -> CombinedDrafter:
    return kind(drafters, max_nodes=max_nodes)
