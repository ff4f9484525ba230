"""Several drafters, one tree, one budget of nodes.

Every part proposes; equal prefixes become one node; the N most probable nodes are verified. What a
part believes is not comparable with what another one does, so it is calibrated by what was kept:

tree    a node's probability is how often nodes of about that probability were kept
chain   each token is right with the rate at which tokens of this kind of chain were right so far,
        so that the node of slot j has the j-th power of it; the kind is the length of the match
        for prompt lookup, and the place in its list for other drafts

Where two parts propose the same prefix, the greater probability counts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd.decode.drafters.acceptance_rates import Calibration, Rate, kept_nodes
from lattice_bpd.decode.drafters.basic import Drafter
from lattice_bpd.decode.drafters.per_sequence import BySequence
from lattice_bpd.decode.drafters.proposals import ask_drafter, rows_of, to_numpy
from lattice_bpd.decode.state.sequence import DecodeState
from lattice_bpd.draft.draft_tree import DraftTree
from lattice_bpd.draft.drafts import Drafts
from lattice_bpd.draft.growing_tree import Growth, build_draft_tree, is_ranked_tree


@dataclass
class _Tree:
    """A tree that a part proposed."""

    part: int
    token_ids: list[int]
    parents: list[int]
    depths: list[int]
    log_probs: npt.NDArray[np.float32]


@dataclass
class _Chain:
    """A draft that a part proposed."""

    part: int
    kind: Hashable
    token_ids: list[int]


@dataclass
class _Step:
    """What was proposed behind so many tokens of a sequence."""

    length: int = 0
    branches: list[_Tree | _Chain] = field(default_factory=list)


class CombinedDrafter(Drafter):
    """One tree of the most probable prefixes that several drafters propose.

    What it learned of its parts is shared by all sequences that it serves, and outlasts them.

    Args:
        drafters: the parts, such as a TreeDrafter, a ContinuationDrafter, a LookupDrafter, a
            DraftModelDrafter; one that fails in a step is left out of it and counted.
        max_nodes: N, tokens verified together besides the exact one.

    Raises:
        ValueError: no drafters, or max_nodes below 1.
        TypeError: in `propose`, a part that draws at random: its draws cannot be chosen among.
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
        self._steps: BySequence[_Step] = BySequence(_new_step)

    def __reduce__(self) -> tuple[Any, ...]:
        """By its parts, with nothing learned of them."""
        return _combine, (type(self), self.drafters, self.max_nodes)

    def propose(self, state: DecodeState) -> DraftTree:
        """(1, N) nodes."""
        return self.propose_batch([state])

    def propose_batch(self, states: Sequence[DecodeState]) -> DraftTree:
        """(B, N) nodes."""
        for state in states:
            self._learn(self._steps.of(state), state)
        found = [ask_drafter(drafter, states) for drafter in self.drafters]
        rows = []
        with states[0].stats.stage("rescore"):
            for number, state in enumerate(states):
                step = self._steps.renew(state)
                step.length = len(state.tokens)
                for part in range(len(self.drafters)):
                    step.branches += self._read(part, *found[part][number], state.room)
                rows.append(self._merge(step.branches).best(self.max_nodes))
            return build_draft_tree(rows)

    def rate(self, part: int, kind: Hashable) -> float:
        """The share of right tokens that a kind of chain is now believed to have."""
        return self._rates.get((part, kind), Rate()).value

    def _read(self, part: int, proposal: Any, row: int, room: int) -> list[_Tree | _Chain]:
        drafter = self.drafters[part]
        if proposal is None:
            return []
        if is_ranked_tree(proposal):
            count = int(proposal.counts[row])
            names = ("token_ids", "parents", "depths", "log_probs")
            ids, parents, depths, lps = (to_numpy(getattr(proposal, n))[row, :count] for n in names)
            if count == 0:
                return []
            return [_Tree(part, ids.tolist(), parents.tolist(), depths.tolist(), lps)]
        if not isinstance(proposal, Drafts):
            raise TypeError(
                f"CombinedDrafter: {type(drafter).__name__} proposed a {type(proposal).__name__}; "
                "expected Drafts or a DraftTree; draws at random cannot be merged, so give that "
                "drafter alone"
            )
        kind_of = getattr(drafter, "kind_of", None)
        return [
            _Chain(part, place if kind_of is None else kind_of(proposal, row, place), draft)
            for place, draft in enumerate(rows_of(proposal, row, room))
        ]

    def _merge(self, branches: Sequence[_Tree | _Chain]) -> Growth:
        tree = Growth()

        def add(token: int, parent: int, probability: float) -> int:
            return tree.merge(token, parent, math.log(max(probability, 1e-30)))

        for branch in branches:
            if isinstance(branch, _Chain):
                rate, node = self.rate(branch.part, branch.kind), -1
                for depth, token in enumerate(branch.token_ids):
                    node = add(token, node, rate ** (depth + 1))
                continue
            shares = self._calibrations[branch.part].probabilities(branch.log_probs)
            nodes: list[int] = []
            for token, parent, share in zip(
                branch.token_ids, branch.parents, shares.tolist(), strict=True
            ):
                nodes.append(add(token, -1 if parent < 0 else nodes[parent], share))
        return tree

    def _learn(self, step: _Step, state: DecodeState) -> None:
        """Compare what was proposed with what came."""
        written = state.tokens[step.length :]
        if not written:
            return
        for branch in step.branches:
            if isinstance(branch, _Tree):
                agrees = kept_nodes(branch.token_ids, branch.parents, branch.depths, written)
                kept = np.array(agrees, np.bool_)
                known = ~_open_nodes(branch, kept, len(written))
                self._calibrations[branch.part].add(branch.log_probs[known], kept[known])
                continue
            pairs = list(zip(branch.token_ids, written, strict=False))
            right = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
            rate = self._rates.setdefault((branch.part, branch.kind), Rate())
            rate.add(right, min(right + 1, len(pairs)))


def _open_nodes(tree: _Tree, kept: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """Nodes deeper than the `count` tokens written, behind a path that agrees with all of them."""
    found = np.zeros(len(kept), np.bool_)
    for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
        found[node] = depth >= count and bool(kept[parent] or found[parent])
    return found


def _new_step(_state: DecodeState) -> _Step:
    return _Step()


def _combine(
    kind: type[CombinedDrafter], drafters: Sequence[Drafter], max_nodes: int
) -> CombinedDrafter:
    return kind(drafters, max_nodes=max_nodes)
