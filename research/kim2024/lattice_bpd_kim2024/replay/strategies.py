"""Strategies by name, for replays and live decoding.

greedy, bpd, oracle                       no rescoring, and what hindsight could do
ngram_1best, p_best_ngram, chain, tree    heads and n-gram LM
neural, mixture                           heads and a small causal LM, alone and with the n-gram LM
p_best_0gram, tree_0gram                  the same on the heads alone
prompt_lookup                             no heads: what followed the last tokens before
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lattice_bpd.decode.drafters.drafter import Drafter
from lattice_bpd.decode.strategies import DraftSources, make_drafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.verify.acceptance.rules import Acceptance
from lattice_bpd_kim2024.live.oracle import OracleDrafter
from lattice_bpd_kim2024.replay.lookup_drafter import LookupDrafter
from lattice_bpd_kim2024.replay.positions import (
    Draft,
    PositionBatch,
    Proposal,
    Rescorers,
    draft_argmax,
    draft_chain,
    draft_lattice,
    draft_lookup,
    draft_nothing,
    draft_oracle,
    draft_tree,
)
from lattice_bpd_kim2024.replay.scorers import draft_along, draft_rescored, has_read

if TYPE_CHECKING:
    from lattice_bpd.decode.drafters.drafter import Drafter


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
    """

    name: str
    label: str
    strategy: str
    uses_lm: bool = False
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

    def drafter(self, source: Any, output: Sequence[int], config: DraftConfig) -> Drafter:
        """The drafter of this line for one prompt.

        Args:
            source: the LM, the scorer or the draft model, as `source_of` gives it.
            output: greedy's output after the prompt.
            config: options; their strategy is replaced by this line's.

        Raises:
            ValueError: an unknown strategy, or options out of range.
        """
        if self.strategy == "oracle":
            return OracleDrafter(output, top_k=config.top_k)
        return make_drafter(replace(config, strategy=self.strategy), DraftSources(source))


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


MakeDrafter = Callable[[Rescorers, Sequence[int], DraftConfig], "Drafter"]


@dataclass(frozen=True)
class Strategy:
    """A way of drafting.

    Attributes:
        name: in results.json and on the command line.
        label: in tables; {p}, {k}, {n} and {nodes} stand for num_drafts, top_k, order, max_nodes.
        draft: paths (B, p, S) int32 of a batch; -1 and -2 are no tokens.
        make_drafter: the drafter of live decoding for one prompt, given its greedy output.
        option_names: the fields of DraftConfig that matter to it.
        uses_lm: needs an n-gram LM, which may be a part of the scorer.
        uses_scorer: needs a scorer, such as a NeuralScorer.
        draft_along: instead of `draft` where only accepted lengths matter and the scorer has read
            the recorded texts; see `evaluate.replay.scorers`.
    """

    name: str
    label: str
    draft: Draft
    make_drafter: MakeDrafter
    option_names: tuple[str, ...] = ()
    uses_lm: bool = False
    uses_scorer: bool = False
    draft_along: Draft | None = None

    def propose(self, batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Proposal:
        """Drafts whose accepted lengths and numbers of tokens are those of decoding."""
        is_read = has_read(batch.rescored, rescorers.scorer)
        draft = self.draft_along if self.draft_along is not None and is_read else self.draft
        return draft(batch, rescorers, options)

    def check(self, rescorers: Rescorers, options: DraftConfig, top_k: int) -> None:
        """Raise ValueError where something is missing or out of range; top_k is the recording's."""
        if self.uses_lm and not self.uses_scorer and rescorers.lm is None:
            raise ValueError(
                f"strategy {self.name} needs an n-gram LM; give one (lm, --lm), or take "
                f"{', '.join(s.name for s in STRATEGIES.values() if not s.uses_lm)}"
            )
        if self.uses_scorer and rescorers.scorer is None:
            raise ValueError(
                f"strategy {self.name} needs a scorer, such as a small causal LM on the target's "
                "token ids; give one (scorer, --rescorer)"
            )
        if "top_k" in self.option_names and not 1 <= options.top_k <= top_k:
            raise ValueError(
                f"top_k is {options.top_k}; expected 1..{top_k}, the candidates that were "
                "recorded; record again with a larger --top-k"
            )

    def kept(self, options: DraftConfig) -> dict[str, Any]:
        """The options that matter."""
        return {name: getattr(options, name) for name in self.option_names}


def strategy_of(setting: Setting) -> Strategy:
    """The strategy of a line of the table, whatever its name.

    Raises:
        ValueError: a kind of drafting that needs more than a recording, or a rule whose text is
            not greedy's.
    """
    kind = setting.strategy
    if kind not in _KINDS:
        raise ValueError(
            f"setting {setting.name} drafts by {kind!r}, which cannot be replayed; expected one of "
            f"{', '.join(_KINDS)}; decode it live (compare_strategies)"
        )

    if setting.acceptance is not None and setting.acceptance.name != "exact":
        raise ValueError(
            f"setting {setting.name} keeps drafts by {setting.acceptance}, so that its text is not "
            "the recorded one; expected the exact rule; decode it live (compare_strategies)"
        )
    uses_scorer = kind == "neural"
    uses_lm = setting.uses_lm or (bool(setting.source) and not uses_scorer)

    def make_drafter(
        rescorers: Rescorers, continuation: Sequence[int], options: DraftConfig
    ) -> Drafter:
        lm = rescorers.lm if uses_lm else None
        return setting.drafter(rescorers.scorer if uses_scorer else lm, continuation, options)

    draft, option_names = _KINDS[kind]
    if not uses_lm and not uses_scorer:
        draft = _without_lm(draft)
        option_names = tuple(name for name in option_names if name != "alpha")
    return Strategy(
        setting.name, setting.label, draft, make_drafter, option_names, uses_lm,
        uses_scorer=uses_scorer, draft_along=draft_along if uses_scorer else None,
    )  # fmt: skip


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


def _draft_best_path(batch: PositionBatch, rescorers: Rescorers, options: DraftConfig) -> Any:
    return draft_lattice(batch, rescorers, replace(options, num_drafts=1))


def _without_lm(draft: Draft) -> Draft:
    return lambda batch, rescorers, options: draft(batch, replace(rescorers, lm=None), options)


_KINDS: dict[str, tuple[Draft, tuple[str, ...]]] = {
    "greedy": (draft_nothing, ()),
    "bpd": (draft_argmax, ()),
    "ngram": (_draft_best_path, ("top_k", "alpha")),
    "neural": (draft_rescored, ("top_k", "alpha")),
    "p_best": (draft_lattice, ("top_k", "num_drafts", "alpha")),
    "chain": (draft_chain, ("top_k", "alpha", "temperature")),
    "tree": (draft_tree, ("top_k", "max_nodes", "alpha", "temperature")),
    "oracle": (draft_oracle, ("top_k",)),
}

_PROMPT_LOOKUP = Strategy(
    "prompt_lookup", "prompt lookup", draft_lookup, lambda *_options: LookupDrafter()
)


def _registry() -> dict[str, Strategy]:
    """All strategies, greedy first and the oracle last."""
    settings = (*STANDARD_SETTINGS[:2], *NEURAL_SETTINGS, *STANDARD_SETTINGS, CHAIN, *TREE_SETTINGS)
    lines = {setting.name: setting for setting in settings}
    oracle = lines.pop("oracle")
    replayable = [strategy_of(line) for line in lines.values() if line.strategy in _KINDS]
    found = [*replayable, _PROMPT_LOOKUP, strategy_of(oracle)]
    return {strategy.name: strategy for strategy in found}


STRATEGIES = _registry()
"""Every strategy by name."""
