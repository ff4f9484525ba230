"""Drafting at recorded positions: what a strategy is given, and how each kind drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.rescore import rescore_lattice, rescore_tree
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.token_ids import Int32Array, Int64Array

if TYPE_CHECKING:
    from lattice_bpd_kim2024.record.texts import Float64Array, RecordedText, Transitions

_NONE = -2  # after the end of a path; no token, and not what follows the end of a text


@dataclass(frozen=True)
class Rescorers:
    """What strategies rescore with.

    Attributes:
        lm: n-gram LM.
        threads: for rescoring; 0 for all cores.
        scorer: a TransitionScorer, such as NeuralScorer(model).
    """

    lm: NGramLM | None = None
    threads: int = 0
    scorer: Any = None


@dataclass(frozen=True)
class PositionBatch:
    """B recorded positions that may use S slots each.

    Attributes:
        candidates: (B, S, k).
        contexts: B contexts, (<= 8,) int32, the exact token last.
        wanted: (B, S) int32, the greedy output; -1 after its end.
        texts: all texts of the recording.
        numbers: (B,) int64, the text of each position.
        positions: (B,) int64, the position within its text.
        transitions: of the candidates, (B, S - 1, k, k) and so on; None without.
        rescored: (B, S, k) float64 by scorer; see `RecordedText`.
    """

    candidates: Candidates
    contexts: list[Int32Array]
    wanted: Int32Array
    texts: Sequence[RecordedText]
    numbers: Int64Array
    positions: Int64Array
    transitions: Transitions | None = None
    rescored: Mapping[Any, Float64Array] = field(default_factory=dict)

    def top(self, top_k: int) -> Candidates:
        """The top_k best candidates of each slot."""
        found = self.candidates
        return Candidates(
            np.ascontiguousarray(found.token_ids[..., :top_k]),
            np.ascontiguousarray(found.scores[..., :top_k]),
        )

    def lattice(self, options: DraftConfig) -> Candidates | LatticeInput:
        """The top_k best candidates with the scores that decoding searches with."""
        top = self.top(options.top_k)
        if self.transitions is None:
            return options.lattice_of(top)
        found = self.transitions.cut(self.candidates.token_ids.shape[1], options.top_k)
        lattice = LatticeInput(
            *(top.token_ids, top.scores, found.start, found.scores),
            unary=found.unary, normalization=found.normalization,
        )  # fmt: skip
        return options.lattice_of(lattice)

    def accept_lengths(self, paths: npt.NDArray[np.int32]) -> Int64Array:
        """(B,) the longest agreement of paths (B, p, S) with what greedy wrote."""
        accepted = np.zeros(len(paths), np.int64)
        going = np.ones(paths.shape[:2], bool)
        for slot in range(paths.shape[2]):
            going &= paths[:, :, slot] == self.wanted[:, slot, None]
            accepted += going.any(axis=1)
        return accepted


def count_nodes(paths: npt.NDArray[np.int32]) -> Int64Array:
    """Different prefixes among paths, which is what verification reads.

    Args:
        paths: (B, p, S) int32; a path ends before its first negative token.

    Returns:
        (B,) int64. Paths 1 2 and 1 3 have three prefixes: 1, 1 2 and 1 3.
    """
    count, drafts, slots = paths.shape
    nodes = np.zeros(count, np.int64)
    # first[b, i]: no earlier path has the same prefix so far
    same = np.ones((count, drafts, drafts), bool)
    before = np.tri(drafts, k=-1, dtype=bool)
    for slot in range(slots):
        tokens = paths[:, :, slot]
        same &= tokens[:, :, None] == tokens[:, None, :]
        nodes += (~(same & before).any(axis=2) & (tokens >= 0)).sum(axis=1)
    return nodes


class Proposal(NamedTuple):
    """Drafts of B positions.

    Attributes:
        paths: (B, p, S) int32; a path ends before its first negative token.
        nodes: (B,) draft tokens that verification reads, where they are known already.
    """

    paths: npt.NDArray[np.int32]
    nodes: Int64Array | None = None

    @property
    def node_counts(self) -> Int64Array:
        """(B,) int64 draft tokens that verification reads."""
        return count_nodes(self.paths) if self.nodes is None else self.nodes


Draft = Callable[[PositionBatch, Rescorers, DraftConfig], Proposal]


def draft_nothing(batch: PositionBatch, _rescorers: Rescorers, _options: DraftConfig) -> Proposal:
    """Greedy decoding: no tokens."""
    return Proposal(np.full((len(batch.wanted), 1, batch.wanted.shape[1]), _NONE, np.int32))


def draft_argmax(batch: PositionBatch, _rescorers: Rescorers, _options: DraftConfig) -> Proposal:
    """The argmax of every head: BPD."""
    return Proposal(batch.candidates.token_ids[:, None, :, 0])


def draft_oracle(batch: PositionBatch, _rescorers: Rescorers, options: DraftConfig) -> Proposal:
    """The greedy output as far as the lattice has it, then the argmax (6.3)."""
    ids = batch.candidates.token_ids[..., : options.top_k]
    holds = (ids == batch.wanted[..., None]).any(axis=-1)
    agrees = np.logical_and.accumulate(holds, axis=-1)
    return Proposal(np.where(agrees, batch.wanted, ids[..., 0])[:, None])


def draft_lattice(batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Proposal:
    """The p best paths; see `rescore_lattice`."""
    drafts = rescore_lattice(
        batch.lattice(options),
        batch.contexts,
        rescorers.lm,
        num_drafts=options.num_drafts,
        alpha=options.alpha,
        threads=rescorers.threads,
    )
    return Proposal(drafts.token_ids)


def draft_chain(batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Proposal:
    """The draft of greatest expected accepted length; see `rescore_lattice`."""
    drafts = rescore_lattice(
        batch.lattice(options),
        batch.contexts,
        rescorers.lm,
        num_drafts=1,
        objective="accept_length",
        alpha=options.alpha,
        temperature=options.temperature,
        threads=rescorers.threads,
    )
    return Proposal(drafts.token_ids)


def draft_tree(batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Proposal:
    """The tree of the most probable prefixes; see `rescore_tree`."""
    tree = rescore_tree(
        batch.lattice(options),
        batch.contexts,
        rescorers.lm,
        max_nodes=options.tree_nodes,
        alpha=options.alpha,
        temperature=options.temperature,
        threads=rescorers.threads,
    )
    nodes = tree.leaf_paths  # (B, leaves, S)
    tokens = np.take_along_axis(tree.token_ids[:, None], np.maximum(nodes, 0), axis=-1)
    paths = np.where(nodes >= 0, tokens, np.int32(_NONE))
    return Proposal(paths, tree.counts.astype(np.int64))


def draft_lookup(batch: PositionBatch, _rescorers: Rescorers, _options: DraftConfig) -> Proposal:
    """What followed the same tokens before; see `LookupDrafter`."""
    slots = batch.wanted.shape[1]
    rows = zip(batch.numbers.tolist(), batch.positions.tolist(), strict=True)
    found = [batch.texts[number].lookups[position, :slots] for number, position in rows]
    return Proposal(np.stack(found)[:, None])
