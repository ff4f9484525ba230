"""Settings: the lines of a table, each a strategy with an LM, a scorer, or neither."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.strategies.registry import DraftSources, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify.acceptance.rule import Acceptance


@dataclass(frozen=True)
class Setting:
    """One line of the table.

    Attributes:
        name: key in results.json.
        label: what the table shows; {p}, {k}, {n} and {nodes} stand for num_drafts, top_k, the
            LM's order and max_nodes.
        strategy: a name of `lattice_bpd.draft.config.STRATEGIES`.
        uses_lm: rescore with the n-gram LM.
        source: name of the LM, the scorer or the draft model to use instead of the common LM; see
            `source_of`.
        acceptance: which draft tokens are kept; None: Exact. Lossy rules are decoded live only.
        heads: draft heads to use instead of the model's own, in live decoding.
        make: builds the drafter instead of the strategy's, of source, greedy output and config.
    """

    name: str
    label: str
    strategy: str
    uses_lm: bool = False
    source: str = ""
    acceptance: Acceptance | None = None
    heads: Any = None
    make: Callable[[Any, Sequence[int], DraftConfig], Drafter] | None = None

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

    def drafter(self, source: Any, output: Sequence[int], config: DraftConfig) -> Drafter:
        """The drafter of this line for one prompt.

        Args:
            source: the LM, the scorer or the draft model, as `source_of` gives it.
            output: greedy's output after the prompt.
            config: options; their strategy is replaced by this line's.

        Raises:
            ValueError: an unknown strategy, or options out of range.
        """
        if self.make is not None:
            return self.make(source, output, config)
        config = replace(config, strategy=self.strategy)
        if self.strategy == "draft_model":
            return make_drafter(config, DraftSources(draft_model=source))
        return make_drafter(config, DraftSources(source, output=output))


_GREEDY = Setting("greedy", "greedy", "greedy")
_BPD = Setting("bpd", "BPD", "bpd")
_P_BEST_0GRAM = Setting("p_best_0gram", "{p}-best 0-gram BPD", "p_best")
_P_BEST_NGRAM = Setting("p_best_ngram", "{p}-best {n}-gram BPD", "p_best", uses_lm=True)
_NGRAM_1BEST = Setting("ngram_1best", "{n}-gram BPD (1-best)", "ngram", uses_lm=True)
CHAIN = Setting("chain", "{n}-gram chain (accept length)", "chain", uses_lm=True)
_TREE_0GRAM = Setting("tree_0gram", "{nodes}-node 0-gram tree", "tree")
_TREE = Setting("tree", "{nodes}-node {n}-gram tree", "tree", uses_lm=True)
_ORACLE = Setting("oracle", "oracle (k = {k})", "oracle")

NEURAL_SETTINGS = (
    Setting("neural", "neural BPD", "neural", source="rescorer"),
    Setting("mixture", "neural + {n}-gram BPD", "neural", uses_lm=True, source="mixture"),
)
"""One draft rescored by a small causal LM (paper 7.1), and by that and the n-gram LM together."""

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
    Setting("mixture", "mixture (size at run time)", "mixture", uses_lm=True),
    _ORACLE,
)
"""The lines of the demo's table."""
