"""Settings: the lines of a table, each a strategy with an LM, a scorer, or neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lattice_bpd.decode.adaptive.controller import Controller
from lattice_bpd.decode.drafters.basic import (
    BlockDrafter,
    Drafter,
    LatticeDrafter,
    NoDrafter,
    OracleDrafter,
)
from lattice_bpd.decode.drafters.draft_model.drafter import DraftModelDrafter
from lattice_bpd.decode.drafters.lookup import LookupDrafter
from lattice_bpd.decode.drafters.scorer import ScorerDrafter
from lattice_bpd.decode.drafters.tree import TreeDrafter
from lattice_bpd.decode.strategies.model_strategies import make_model_drafter
from lattice_bpd.verify.acceptance.rule import Acceptance


@dataclass(frozen=True)
class DraftOptions:
    """Numbers of a strategy; each takes those that it knows.

    Attributes:
        top_k: k, candidates of a slot.
        num_drafts: p of a list.
        max_nodes: N of a tree.
        alpha: weight of the LM or the scorer.
        temperature: of a tree; see TreeDrafter.
        beam: of a scorer; see ScorerDrafter.
        cache: of a list or a tree; see TreeDrafter.
    """

    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int = 36
    alpha: float = 0.5
    temperature: float = 1.0
    beam: int | None = None
    cache: bool | int = False


@dataclass(frozen=True)
class Setting:
    """One line of the table.

    Attributes:
        name: key in results.json.
        label: what the table shows; {p}, {k}, {n} and {nodes} stand for num_drafts, top_k, the
            LM's order and max_nodes.
        strategy: "greedy", "bpd", "lattice", "tree", "auto" (trees whose size a Controller
            chooses), "scorer", "draft_model" (its source is the draft model, whose chain is
            drafted), "lookup", "combined" (heads, their continuation by the LM and lookup),
            "oracle", or another key of MAKERS.
        uses_lm: rescore with the n-gram LM.
        many: verify num_drafts drafts rather than one.
        source: name of the LM or the scorer to use instead of the common LM; see `source_of`.
        acceptance: which draft tokens are kept; None: Exact. Lossy rules are decoded live only.
    """

    name: str
    label: str
    strategy: str
    uses_lm: bool = False
    many: bool = False
    source: str = ""
    acceptance: Acceptance | None = None

    def source_of(self, lm: Any, sources: Mapping[str, Any] | None) -> Any:
        """What this line rescores with: `sources[source]`, the common LM, or None.

        Args:
            lm: the common LM.
            sources: LMs and scorers by name.

        Raises:
            ValueError: there is none of that name.
        """
        if not self.source:
            return lm if self.uses_lm else None
        if self.source not in (sources or {}):
            raise ValueError(
                f"setting {self.name!r} uses the source {self.source!r}; expected one of "
                f"{sorted(sources or {})}; give it in sources="
            )
        return (sources or {})[self.source]

    def drafter(self, source: Any, continuation: Sequence[int], options: DraftOptions) -> Drafter:
        """The drafter of this line for one prompt.

        Args:
            source: the LM or the scorer, as `source_of` gives it.
            continuation: greedy's output behind the prompt.
            options: numbers of the strategy.

        Raises:
            ValueError: an unknown strategy, or options out of range.
        """
        if self.strategy not in MAKERS:
            raise ValueError(
                f"setting {self.name!r} has strategy {self.strategy!r}; expected one of "
                f"{', '.join(MAKERS)}; add yours to MAKERS"
            )
        return MAKERS[self.strategy](self, source, continuation, options)


Maker = Callable[[Setting, Any, Sequence[int], DraftOptions], Drafter]


def _make_tree(
    setting: Setting, source: Any, _: Sequence[int], options: DraftOptions
) -> TreeDrafter:
    del setting
    return TreeDrafter(
        source,
        top_k=options.top_k,
        max_nodes=options.max_nodes,
        alpha=options.alpha,
        temperature=options.temperature,
        cache=options.cache,
    )


def _make_auto(
    setting: Setting, source: Any, continuation: Sequence[int], options: DraftOptions
) -> Drafter:
    return Controller(_make_tree(setting, source, continuation, options))


def _make_lattice(
    setting: Setting, source: Any, _: Sequence[int], options: DraftOptions
) -> Drafter:
    drafts = options.num_drafts if setting.many else 1
    return LatticeDrafter(
        source,
        top_k=options.top_k,
        num_drafts=drafts,
        alpha=options.alpha,
        cache=options.cache,
    )


def _make_scorer(setting: Setting, source: Any, _: Sequence[int], options: DraftOptions) -> Drafter:
    return ScorerDrafter(
        source,
        top_k=options.top_k,
        num_drafts=options.num_drafts if setting.many else 1,
        alpha=options.alpha,
        beam=options.beam,
    )


def _make_draft_model(
    setting: Setting, source: Any, _: Sequence[int], options: DraftOptions
) -> Drafter:
    del setting, options
    return DraftModelDrafter(source)


def _make_combined(
    setting: Setting, source: Any, _: Sequence[int], options: DraftOptions
) -> Drafter:
    del setting
    return make_model_drafter(
        "combined",
        lm=source,
        draft_model=None,
        num_slots=None,
        has_heads=True,
        top_k=options.top_k,
        max_nodes=options.max_nodes,
        alpha=options.alpha,
        temperature=options.temperature,
        cache=options.cache,
    )


MAKERS: dict[str, Maker] = {
    "greedy": lambda *_: NoDrafter(),
    "bpd": lambda *_: BlockDrafter(),
    "lattice": _make_lattice,
    "tree": _make_tree,
    "auto": _make_auto,
    "scorer": _make_scorer,
    "draft_model": _make_draft_model,
    "lookup": lambda *_: LookupDrafter(),
    "combined": _make_combined,
    "oracle": lambda _setting, _source, continuation, options: OracleDrafter(
        continuation, top_k=options.top_k
    ),
}
"""How each strategy makes its drafter; add your own to give it lines in a table."""

_GREEDY = Setting("greedy", "greedy", "greedy")
_BPD = Setting("bpd", "BPD", "bpd")
_P_BEST_0GRAM = Setting("p_best_0gram", "{p}-best 0-gram BPD", "lattice", many=True)
_P_BEST_NGRAM = Setting("p_best_ngram", "{p}-best {n}-gram BPD", "lattice", uses_lm=True, many=True)
_NGRAM_1BEST = Setting("ngram_1best", "{n}-gram BPD (1-best)", "lattice", uses_lm=True)
_TREE_0GRAM = Setting("tree_0gram", "{nodes}-node 0-gram tree", "tree")
_TREE = Setting("tree", "{nodes}-node {n}-gram tree", "tree", uses_lm=True)
_ORACLE = Setting("oracle", "oracle (k = {k})", "oracle")

STANDARD_SETTINGS = (
    _GREEDY,
    _BPD,
    _P_BEST_0GRAM,
    _NGRAM_1BEST,
    _P_BEST_NGRAM,
    _ORACLE,
)
"""The lines of table 4 of Kim et al. 2024 without neural rescoring, greedy decoding first."""

TREE_SETTINGS = (
    _GREEDY,
    _BPD,
    _P_BEST_0GRAM,
    _P_BEST_NGRAM,
    _TREE_0GRAM,
    _TREE,
    _ORACLE,
)
"""Lists against trees, both with and without the LM."""

DEMO_SETTINGS = (
    _GREEDY,
    _BPD,
    _P_BEST_0GRAM,
    _NGRAM_1BEST,
    _P_BEST_NGRAM,
    _TREE_0GRAM,
    _TREE,
    Setting("adaptive", "{nodes}-node tree, n-gram cache", "tree", uses_lm=True),
    Setting("auto", "auto (tree size at run time)", "auto", uses_lm=True),
    _ORACLE,
)
"""The lines of the demo's table; "adaptive" needs `DraftOptions(cache=True)`."""
