"""Drafting strategies by name: how each drafts in a replay, and its drafter in live decoding.

greedy, bpd, oracle                       no rescoring, and what hindsight could do
ngram_1best, p_best_ngram, tree           heads and n-gram LM
p_best_0gram, tree_0gram                  the same on the heads alone
count_trie                                raw n-gram counts instead of an LM (DART's way)
prompt_lookup                             no heads: what followed the last tokens before
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lattice_bpd import NGramLM, rescore_lattice, rescore_tree
from lattice_bpd.evaluate.count_trie import CountTrie, CountTrieDrafter, grow_tree
from lattice_bpd.evaluate.prompt_lookup import PromptLookupDrafter
from lattice_bpd.evaluate.settings import (
    STANDARD_SETTINGS,
    TREE_SETTINGS,
    DraftOptions,
    Setting,
)
from lattice_bpd.lattice.logits import Candidates
from lattice_bpd.token_ids import Int32Array, Int64Array

if TYPE_CHECKING:
    from lattice_bpd.decode import Drafter
    from lattice_bpd.evaluate.record.texts import RecordedText

_NONE = -2  # behind the end of a path; no token, and not what stands behind the end of a text


@dataclass(frozen=True)
class Rescorers:
    """What strategies rescore with.

    Attributes:
        lm: n-gram LM.
        trie: raw counts of a corpus.
        threads: for rescoring; 0 for all cores.
    """

    lm: NGramLM | None = None
    trie: CountTrie | None = None
    threads: int = 0


@dataclass(frozen=True)
class PositionBatch:
    """B recorded positions that may use S slots each.

    Attributes:
        candidates: (B, S, k).
        contexts: B contexts, (<= 8,) int32, the exact token last.
        wanted: (B, S) int32, what greedy wrote; -1 behind the end of its output.
        texts: all texts of the recording.
        numbers: (B,) int64, the text of each position.
        positions: (B,) int64, the position within its text.
    """

    candidates: Candidates
    contexts: list[Int32Array]
    wanted: Int32Array
    texts: Sequence[RecordedText]
    numbers: Int64Array
    positions: Int64Array

    def top(self, top_k: int) -> Candidates:
        """The top_k best candidates of each slot."""
        found = self.candidates
        return Candidates(
            np.ascontiguousarray(found.token_ids[..., :top_k]),
            np.ascontiguousarray(found.scores[..., :top_k]),
        )

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


Draft = Callable[[PositionBatch, Rescorers, DraftOptions], Proposal]
MakeDrafter = Callable[[Rescorers, Sequence[int], DraftOptions], "Drafter"]


@dataclass(frozen=True)
class Strategy:
    """A way of drafting.

    Attributes:
        name: in results.json and on the command line.
        label: in tables; {p}, {k}, {n} and {nodes} stand for num_drafts, top_k, order, max_nodes.
        draft: paths (B, p, S) int32 of a batch; -1 and -2 are no tokens.
        make_drafter: the drafter of live decoding for one prompt, given greedy's output behind it.
        knobs: the fields of DraftOptions that matter to it.
        uses_lm: needs an n-gram LM.
        uses_trie: needs raw counts.
    """

    name: str
    label: str
    draft: Draft
    make_drafter: MakeDrafter
    knobs: tuple[str, ...] = ()
    uses_lm: bool = False
    uses_trie: bool = False

    def check(self, rescorers: Rescorers, options: DraftOptions, top_k: int) -> None:
        """Raise ValueError where something is missing or out of range; top_k is the recording's."""
        if self.uses_lm and rescorers.lm is None:
            raise ValueError(
                f"strategy {self.name} needs an n-gram LM; give one (lm, --lm), or take "
                f"{', '.join(s.name for s in STRATEGIES.values() if not s.uses_lm)}"
            )
        if self.uses_trie and rescorers.trie is None:
            raise ValueError(
                f"strategy {self.name} needs raw n-gram counts; give a text to count (trie, "
                "--count-text)"
            )
        if "top_k" in self.knobs and not 1 <= options.top_k <= top_k:
            raise ValueError(
                f"top_k is {options.top_k}; expected 1..{top_k}, the candidates that were "
                "recorded; record again with a larger --top-k"
            )
        for knob in ("num_drafts", "max_nodes"):
            if knob in self.knobs and getattr(options, knob) < 1:
                raise ValueError(f"{knob} is {getattr(options, knob)}; expected 1 or more")
        if "temperature" in self.knobs and not 0.0 < options.temperature < np.inf:
            raise ValueError(f"temperature is {options.temperature}; expected a number above 0")

    def kept(self, options: DraftOptions) -> dict[str, Any]:
        """The options that matter."""
        return {knob: getattr(options, knob) for knob in self.knobs}


def strategy_of(setting: Setting) -> Strategy:
    """The strategy of a line of the table, whatever its name."""
    kind = setting.strategy

    def make_drafter(
        rescorers: Rescorers, continuation: Sequence[int], options: DraftOptions
    ) -> Drafter:
        return setting.drafter(rescorers.lm, continuation, options)

    draft, knobs = _KINDS[kind]
    if kind == "lattice" and not setting.many:
        draft = _with_one_draft(draft)
        knobs = tuple(knob for knob in knobs if knob != "num_drafts")
    if not setting.uses_lm:
        draft = _without_lm(draft)
        knobs = tuple(knob for knob in knobs if knob != "alpha")
    return Strategy(setting.name, setting.label, draft, make_drafter, knobs, setting.uses_lm)


def find_strategies(names: Iterable[str]) -> list[Strategy]:
    """Strategies by name.

    Raises:
        ValueError: an unknown name; the message has the nearest one.
    """
    found = []
    for name in names:
        if name not in STRATEGIES:
            near = difflib.get_close_matches(name, STRATEGIES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"unknown strategy {name!r}; {hint}expected one of {', '.join(STRATEGIES)}"
            )
        found.append(STRATEGIES[name])
    return found


def _with_one_draft(draft: Draft) -> Draft:
    return lambda batch, rescorers, options: draft(batch, rescorers, replace(options, num_drafts=1))


def _without_lm(draft: Draft) -> Draft:
    return lambda batch, rescorers, options: draft(batch, replace(rescorers, lm=None), options)


def _draft_nothing(batch: PositionBatch, _rescorers: Rescorers, _options: DraftOptions) -> Proposal:
    return Proposal(np.full((len(batch.wanted), 1, batch.wanted.shape[1]), _NONE, np.int32))


def _draft_argmax(batch: PositionBatch, _rescorers: Rescorers, _options: DraftOptions) -> Proposal:
    return Proposal(batch.candidates.token_ids[:, None, :, 0])


def _draft_oracle(batch: PositionBatch, _rescorers: Rescorers, options: DraftOptions) -> Proposal:
    """What greedy wrote as far as the lattice holds it, the argmax from there on (6.3)."""
    ids = batch.candidates.token_ids[..., : options.top_k]
    holds = (ids == batch.wanted[..., None]).any(axis=-1)
    agrees = np.logical_and.accumulate(holds, axis=-1)
    return Proposal(np.where(agrees, batch.wanted, ids[..., 0])[:, None])


def _draft_lattice(batch: PositionBatch, rescorers: Rescorers, options: DraftOptions) -> Proposal:
    drafts = rescore_lattice(
        batch.top(options.top_k),
        batch.contexts,
        rescorers.lm,
        num_drafts=options.num_drafts,
        alpha=options.alpha,
        threads=rescorers.threads,
    )
    return Proposal(drafts.token_ids)


def _draft_tree(batch: PositionBatch, rescorers: Rescorers, options: DraftOptions) -> Proposal:
    found = batch.top(options.top_k)
    if options.temperature != 1.0:
        found = replace(found, scores=found.scores / np.float32(options.temperature))
    tree = rescore_tree(
        found,
        batch.contexts,
        rescorers.lm,
        max_nodes=options.max_nodes,
        alpha=options.alpha / options.temperature,
        threads=rescorers.threads,
    )
    nodes = tree.leaf_paths  # (B, leaves, S)
    tokens = np.take_along_axis(tree.token_ids[:, None], np.maximum(nodes, 0), axis=-1)
    paths = np.where(nodes >= 0, tokens, np.int32(_NONE))
    return Proposal(paths, tree.counts.astype(np.int64))


def _draft_counts(batch: PositionBatch, rescorers: Rescorers, options: DraftOptions) -> Proposal:
    trie = rescorers.trie
    assert trie is not None
    found, slots = batch.top(options.top_k), batch.wanted.shape[1]
    rows: list[list[list[int]]] = []
    nodes = np.zeros(len(batch.wanted), np.int64)
    for row, context in enumerate(batch.contexts):
        tree = grow_tree(
            trie, found.token_ids[row], found.scores[row], context[-trie.order :].tolist(),
            max_nodes=options.max_nodes, alpha=options.alpha,
        )  # fmt: skip
        nodes[row] = len(tree.token_ids)
        rows.append([[tree.token_ids[n] for n in leaf] for leaf in tree.leaf_nodes()])
    paths = np.full((len(rows), max(1, *map(len, rows)), slots), _NONE, np.int32)
    for row, leaves in enumerate(rows):
        for place, tokens in enumerate(leaves):
            paths[row, place, : len(tokens)] = tokens
    return Proposal(paths, nodes)


def _draft_lookup(batch: PositionBatch, _rescorers: Rescorers, _options: DraftOptions) -> Proposal:
    slots = batch.wanted.shape[1]
    rows = zip(batch.numbers.tolist(), batch.positions.tolist(), strict=True)
    found = [batch.texts[number].lookups[position, :slots] for number, position in rows]
    return Proposal(np.stack(found)[:, None])


_KINDS: dict[str, tuple[Draft, tuple[str, ...]]] = {
    "greedy": (_draft_nothing, ()),
    "bpd": (_draft_argmax, ()),
    "lattice": (_draft_lattice, ("top_k", "num_drafts", "alpha")),
    "tree": (_draft_tree, ("top_k", "max_nodes", "alpha", "temperature")),
    "oracle": (_draft_oracle, ("top_k",)),
}

_BASELINES = (
    Strategy(
        "count_trie",
        "{nodes}-node raw-count trie",
        _draft_counts,
        lambda rescorers, _continuation, options: CountTrieDrafter(
            rescorers.trie, top_k=options.top_k, max_nodes=options.max_nodes, alpha=options.alpha
        ),
        ("top_k", "max_nodes", "alpha"),
        uses_trie=True,
    ),
    Strategy(
        "prompt_lookup",
        "prompt lookup",
        _draft_lookup,
        lambda _rescorers, _continuation, _options: PromptLookupDrafter(),
    ),
)


def _registry() -> dict[str, Strategy]:
    """All strategies, greedy first and the oracle last."""
    lines = {setting.name: setting for setting in (*STANDARD_SETTINGS, *TREE_SETTINGS)}
    oracle = lines.pop("oracle")
    found = [*map(strategy_of, lines.values()), *_BASELINES, strategy_of(oracle)]
    return {strategy.name: strategy for strategy in found}


STRATEGIES = _registry()
"""Every strategy by name."""
