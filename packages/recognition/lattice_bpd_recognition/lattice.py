"""Word lattices, and their exact search with an n-gram LM."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd_recognition.nbest import word_scorer

EPSILON = -1
"""The word number of an arc without a word."""

MAX_PATHS, MAX_ALPHA = 100_000, 65_536

Int32Array = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Lattice:
    """An acyclic graph whose arcs have a word and costs, of one utterance.

    Attributes:
        words: the words of the arcs, in alphabetical order.
        start: the start state.
        sources: (A,) the state that each arc leaves.
        targets: (A,) the state that it enters.
        word_ids: (A,) number in `words`, EPSILON for none.
        graph_costs: (A,) negative natural logs: pronunciation, transitions, the first pass's LM.
        acoustic_costs: (A,) negative natural logs of what was observed.
        final_graph: (S,) graph cost of ending in each state; inf where paths do not end.
        final_acoustic: (S,) the same, acoustic.
        alignments: of each arc, as the file has it ("" for none); None where it has none.
        final_alignments: of each state.
        utterance: its name.
        lines: of each arc, in the file; for messages.
        file: for messages.
        state_names: of each state in the file; for messages.
    """

    words: Sequence[str]
    start: int
    sources: Int32Array
    targets: Int32Array
    word_ids: Int32Array
    graph_costs: FloatArray
    acoustic_costs: FloatArray
    final_graph: FloatArray
    final_acoustic: FloatArray
    alignments: Sequence[str] | None = None
    final_alignments: Sequence[str] | None = None
    utterance: str = ""
    lines: Sequence[int] = ()
    file: str = "lattice"
    state_names: Sequence[Any] = ()

    def __post_init__(self) -> None:
        """Takes arrays of other types and lists, too.

        Raises:
            ValueError: arrays of different sizes, or states or words out of range.
        """
        for kind, size, names in (
            (np.int32, len(self.sources), ("sources", "targets", "word_ids")),
            (np.float64, len(self.sources), ("graph_costs", "acoustic_costs")),
            (np.float64, len(self.final_graph), ("final_graph", "final_acoustic")),
        ):
            for name in names:
                given = np.asarray(getattr(self, name))
                array = np.ascontiguousarray(given, dtype=kind)
                if array.shape != (size,) or (kind is np.int32 and (array != given).any()):
                    raise ValueError(
                        f"Lattice: {name} has shape {given.shape} and dtype {given.dtype}; "
                        f"expected ({size},) {np.dtype(kind)}"
                    )
                object.__setattr__(self, name, array)
        for name, ids, least, count in (
            ("start", np.array([self.start]), 0, max(self.num_states, 1)),
            ("sources", self.sources, 0, self.num_states),
            ("targets", self.targets, 0, self.num_states),
            ("word_ids", self.word_ids, EPSILON, len(self.words)),
        ):
            if len(ids) and not least <= ids.min() <= ids.max() < count:
                raise ValueError(
                    f"Lattice: {name} {ids.min()}..{ids.max()}; expected {least}..{count - 1}"
                )

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.final_graph)

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.sources)

    def fault(self) -> str | None:
        """What is wrong with the lattice, with file and line; None if nothing is.

        A cycle, a state that no path reaches, or no path from the start to a final state.
        """
        zeros = np.zeros(self.num_arcs)
        ways = np.where(np.isposinf(self.graph_costs + self.acoustic_costs), np.inf, zeros)
        ends = np.where(np.isposinf(self.final_graph + self.final_acoustic), np.inf, 0.0)
        kind, index = _core.check_word_lattice(
            self.start, self.sources, self.targets, self.word_ids, ways, ends
        )
        if kind == 0:
            return None
        if kind == 1:
            return (
                f"{self.location(index)}: the arc from state {self._name(self.sources[index])} to "
                f"{self._name(self.targets[index])} is part of a cycle; expected a lattice without "
                "cycles"
            )
        if kind == 2:
            leaving = np.flatnonzero(self.sources == index)
            where = self.location(int(leaving[0])) if len(leaving) else self.location()
            return (
                f"{where}: no path from the start {self._name(self.start)} reaches state "
                f"{self._name(index)}; remove it (fstconnect)"
            )
        return f"{self.location()}: no path ends in a final state; expected one at least"

    def _name(self, state: int) -> Any:
        return self.state_names[state] if len(self.state_names) else int(state)

    def location(self, arc: int | None = None) -> str:
        """File and line of an arc, or of the whole."""
        line = ""
        if len(self.lines):
            line = f", line {self.lines[arc if arc is not None else 0]}"
        name = f" (utterance {self.utterance})" if self.utterance else ""
        return f"{self.file}{line}{name}"


@dataclass(frozen=True)
class LatticePath:
    """A sequence of words with the cheapest path that has them.

    Attributes:
        words: its words.
        total: minus the cost that was searched for: higher is better.
        graph_cost: sum of the arcs' graph costs and the final one.
        acoustic_cost: the same, acoustic.
        log_prob: ln P of the words by the LM, with ``</s>``.
        arcs: (L,) int32 indices of the lattice's arcs, those without a word too.
        end_state: where it ends.
    """

    words: tuple[str, ...]
    total: float
    graph_cost: float
    acoustic_cost: float
    log_prob: float
    arcs: Int32Array
    end_state: int

    @property
    def text(self) -> str:
        """The words, with spaces between them."""
        return " ".join(self.words)


@dataclass(frozen=True)
class RescoredLattice:
    """The best paths of a lattice, and the lattice with the LM's scores.

    Attributes:
        paths: the best distinct word sequences, best first.
        lattice: alpha * -ln P is in its graph costs; None unless it was wanted.
    """

    paths: list[LatticePath]
    lattice: Lattice | None = field(repr=False, default=None)


class LatticeError(_core.FormatError):
    """A lattice that cannot be searched; the message has file and line."""


def rescore_lattice(
    lattice: Lattice,
    lm: NGramLM | Any,
    alpha: float,
    beta: float = 0.0,
    *,
    num_paths: int = 1,
    acoustic_scale: float = 1.0,
    graph_scale: float = 1.0,
    bos: bool = True,
    eos: bool = True,
    normalize: Callable[[str], str] | None = None,
    rescored: bool = False,
) -> RescoredLattice:
    """Finds the best distinct word sequences of a lattice with an n-gram LM, exactly.

        total(path) = - graph_scale * graph cost - acoustic_scale * acoustic cost
                      + alpha * ln P(words </s>) + beta * words

    A sequence has the total of its best path. Equal totals are ordered alphabetically by word, a
    sequence before one that it begins.

    Args:
        lattice: acyclic.
        lm: an NGramLM with words, or a kenlm_interface.Model.
        alpha: weight of the LM's natural log probability, -65536..65536. Negative: the LM's scores
            are taken out of graph costs that have them.
        beta: added for each word.
        num_paths: p, 1..100,000; fewer are returned where the lattice has fewer.
        acoustic_scale: weight of acoustic costs.
        graph_scale: weight of graph costs.
        bos: whether the words follow ``<s>``.
        eos: whether ``</s>`` is scored at the end.
        normalize: what is done to words before the LM scores them.
        rescored: whether the rescored lattice is made, too.

    Returns:
        The paths; and the lattice of all pairs of lattice state and LM state, whose graph costs
        are graph_scale times those before - alpha * ln P - beta, and whose acoustic costs are as
        before.

    Raises:
        LatticeError: a cycle, a state that no path reaches, no path, costs that are NaN or -inf or
            2**28 in sum, or more pairs than can be searched.
        ValueError: options out of range, or an LM without words.
    """
    where = "rescore_lattice"
    alpha, beta = check_number(f"{where}: alpha", alpha), check_number(f"{where}: beta", beta)
    acoustic_scale = check_number(f"{where}: acoustic_scale", acoustic_scale)
    graph_scale = check_number(f"{where}: graph_scale", graph_scale)
    num_paths = check_int(f"{where}: num_paths", num_paths, 1, MAX_PATHS)
    if abs(alpha) > MAX_ALPHA:
        raise ValueError(f"{where}: alpha is {alpha}; expected -{MAX_ALPHA}..{MAX_ALPHA}")
    scorer = word_scorer(where, lm, words=True)
    fault = lattice.fault()
    if fault is not None:
        raise LatticeError(fault)
    form = normalize or str
    symbols = np.array([scorer.symbol(form(word)) for word in lattice.words] or [0], np.int32)
    has_word = lattice.word_ids != EPSILON
    costs = _combine(graph_scale, lattice.graph_costs, acoustic_scale, lattice.acoustic_costs)
    try:
        found = _core.search_word_lattice(
            scorer, lattice.start, lattice.sources, lattice.targets, lattice.word_ids,
            np.where(has_word, symbols[lattice.word_ids], 0).astype(np.int32),
            costs - beta * has_word,
            _combine(graph_scale, lattice.final_graph, acoustic_scale, lattice.final_acoustic),
            alpha, bool(bos), bool(eos), num_paths, rescored,
        )  # fmt: skip
    except ValueError as error:  # its costs, or its size
        raise LatticeError(f"{lattice.location()}: {error}") from None
    paths = [_path(lattice, found, i) for i in range(len(found["costs"]))]
    after = _rescored(lattice, found, alpha, beta, graph_scale) if rescored else None
    return RescoredLattice(paths, after)


def rescore_lattices(
    lattices: Iterable[Lattice | LatticeError],
    lm: NGramLM | Any,
    alpha: float,
    beta: float = 0.0,
    *,
    threads: int = 0,
    **options: Any,
) -> Iterator[tuple[Lattice | None, RescoredLattice | LatticeError]]:
    """:func:`rescore_lattice` for many; one that cannot be searched does not stop the others.

    Args:
        lattices: such as a reader of lattice_files yields; errors of reading are passed on.
        lm: as for rescore_lattice; likewise alpha, beta and options.
        alpha: see lm.
        beta: see lm.
        threads: lattices that are searched at a time; 0 for one on every core.
        options: see lm.

    Yields:
        Each lattice with its result, or with the error, in their order.
    """
    scorer = word_scorer("rescore_lattices", lm, words=True)

    def work(
        lattice: Lattice | LatticeError,
    ) -> tuple[Lattice | None, RescoredLattice | LatticeError]:
        if isinstance(lattice, LatticeError):
            return None, lattice
        try:
            return lattice, rescore_lattice(lattice, scorer, alpha, beta, **options)
        except LatticeError as error:
            return lattice, error

    if threads == 0:
        has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
        threads = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    if threads <= 1:
        yield from map(work, lattices)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting = []
        for lattice in lattices:
            waiting.append(pool.submit(work, lattice))
            if len(waiting) >= 4 * threads:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _combine(
    graph: float, graph_costs: FloatArray, acoustic: float, costs: FloatArray
) -> FloatArray:
    """The weighted sum, inf where either cost is."""
    total = np.zeros(len(costs))
    for scale, values in ((graph, graph_costs), (acoustic, costs)):
        total += np.where(
            np.isposinf(values), np.inf, scale * np.where(np.isposinf(values), 0, values)
        )
    return total


def _path(lattice: Lattice, found: dict[str, Any], index: int) -> LatticePath:
    begin, end = found["begins"][index : index + 2]
    arcs = found["arcs"][begin:end]
    state = int(found["end_states"][index])
    return LatticePath(
        tuple(lattice.words[word] for word in lattice.word_ids[arcs] if word != EPSILON),
        -float(found["costs"][index]),
        float(lattice.graph_costs[arcs].sum() + lattice.final_graph[state]),
        float(lattice.acoustic_costs[arcs].sum() + lattice.final_acoustic[state]),
        float(found["log_probs"][index]),
        arcs,
        state,
    )


def _rescored(
    lattice: Lattice, found: dict[str, Any], alpha: float, beta: float, graph_scale: float
) -> Lattice:
    arcs, states = found["pair_arcs"], found["pair_states"]
    has_word = lattice.word_ids[arcs] != EPSILON
    graph = graph_scale * lattice.graph_costs[arcs]
    ends = lattice.final_graph[states]
    ends = np.where(np.isposinf(ends), np.inf, graph_scale * np.where(np.isposinf(ends), 0, ends))
    ali, final_ali = lattice.alignments, lattice.final_alignments
    return Lattice(
        lattice.words, 0, found["pair_sources"], found["pair_targets"], lattice.word_ids[arcs],
        graph - alpha * found["pair_log_probs"] * has_word - beta * has_word,
        lattice.acoustic_costs[arcs],
        ends - alpha * found["pair_end_log_probs"],
        lattice.final_acoustic[states],
        None if ali is None else [ali[arc] for arc in arcs],
        None if final_ali is None else [final_ali[state] for state in states],
        lattice.utterance, file=lattice.file,
    )  # fmt: skip
