"""Settings: the lines of a table, each a strategy with or without the LM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice_bpd import NGramLM
from lattice_bpd.decode import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
    TreeDrafter,
)


@dataclass(frozen=True)
class DraftOptions:
    """Numbers of a strategy; each takes those that it knows.

    Attributes:
        top_k: k, candidates of a slot.
        num_drafts: p of a list.
        max_nodes: N of a tree.
        alpha: weight of the LM.
        temperature: of a tree; see TreeDrafter.
    """

    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int = 36
    alpha: float = 0.5
    temperature: float = 1.0


@dataclass(frozen=True)
class Setting:
    """One line of the table.

    Attributes:
        name: key in results.json.
        label: what the table shows; {p}, {k}, {n} and {nodes} stand for num_drafts, top_k, the
            LM's order and max_nodes.
        strategy: "greedy", "bpd", "lattice", "tree" or "oracle".
        uses_lm: rescore with the n-gram LM.
        many: verify num_drafts drafts rather than one.
    """

    name: str
    label: str
    strategy: str
    uses_lm: bool = False
    many: bool = False

    def drafter(
        self, lm: NGramLM | None, continuation: Sequence[int], options: DraftOptions
    ) -> Drafter:
        """The drafter of this line for one prompt, whose greedy output is `continuation`."""
        if self.strategy == "greedy":
            return NoDrafter()
        if self.strategy == "bpd":
            return BlockDrafter()
        if self.strategy == "oracle":
            return OracleDrafter(continuation, top_k=options.top_k)
        used = lm if self.uses_lm else None
        if self.strategy == "tree":
            return TreeDrafter(
                used,
                top_k=options.top_k,
                max_nodes=options.max_nodes,
                alpha=options.alpha,
                temperature=options.temperature,
            )
        return LatticeDrafter(
            used,
            top_k=options.top_k,
            num_drafts=options.num_drafts if self.many else 1,
            alpha=options.alpha,
        )


_GREEDY = Setting("greedy", "greedy", "greedy")
_BPD = Setting("bpd", "BPD", "bpd")
_P_BEST_0GRAM = Setting("p_best_0gram", "{p}-best 0-gram BPD", "lattice", many=True)
_P_BEST_NGRAM = Setting("p_best_ngram", "{p}-best {n}-gram BPD", "lattice", uses_lm=True, many=True)
_ORACLE = Setting("oracle", "oracle (k = {k})", "oracle")

STANDARD_SETTINGS = (
    _GREEDY,
    _BPD,
    _P_BEST_0GRAM,
    Setting("ngram_1best", "{n}-gram BPD (1-best)", "lattice", uses_lm=True),
    _P_BEST_NGRAM,
    _ORACLE,
)
"""The lines of table 4 of Kim et al. 2024 without neural rescoring, greedy decoding first."""

TREE_SETTINGS = (
    _GREEDY,
    _BPD,
    _P_BEST_0GRAM,
    _P_BEST_NGRAM,
    Setting("tree_0gram", "{nodes}-node 0-gram tree", "tree"),
    Setting("tree", "{nodes}-node {n}-gram tree", "tree", uses_lm=True),
    _ORACLE,
)
"""Lists against trees, both with and without the LM."""
