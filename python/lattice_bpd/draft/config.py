"""Drafting strategies and their options: declared, documented and checked here only."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from lattice_bpd.arguments import check_int, check_number
from lattice_bpd.lattice.lattice_input import LatticeInput, Normalization
from lattice_bpd.lattice.logits import Candidates

TREE_NODES = 36  # draft tokens of a tree with max_nodes "auto"
MIXTURE_SOURCES = ("heads", "lm", "text", "store", "target")
MAX_NODES = 1 << 12  # kMaxTreeNodes of cpp/lattice_bpd/draft/find_tree.h


class StrategyInfo(NamedTuple):
    """Description, options and requirements of a strategy.

    Attributes:
        summary: for help texts and tables.
        options: the fields of DraftConfig that it uses.
        needs: those of "heads" and "lm" that it requires.
        takes: those that are optional.
    """

    summary: str
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()

    def uses(self, source: str) -> bool:
        """Whether it can draft from "heads" or "lm"."""
        return source in self.needs + self.takes


_PATHS = ("top_k", "alpha", "normalization")
_TREE = ("max_nodes", "temperature", *_PATHS)

STRATEGIES: Mapping[str, StrategyInfo] = {
    "greedy": StrategyInfo("no drafts"),
    "bpd": StrategyInfo("the most likely token of each head", needs=("heads",)),
    "ngram": StrategyInfo("the best path with the LM", _PATHS, ("heads", "lm")),
    "neural": StrategyInfo(
        "the path that a neural LM scores best, slot by slot", ("top_k", "alpha"),
        ("heads", "lm"),
    ),
    "p_best": StrategyInfo(
        "the num_drafts best paths", ("num_drafts", *_PATHS), ("heads",), ("lm",)
    ),
    "chain": StrategyInfo(
        "the draft of greatest expected accepted length", ("temperature", *_PATHS), ("heads",),
        ("lm",),
    ),
    "mixture": StrategyInfo(
        "the most probable prefixes of heads, LMs, the text so far and the target's predictions",
        ("sources", "max_nodes", "top_k"), (), ("heads", "lm"),
    ),
    "tree": StrategyInfo("the max_nodes most probable prefixes", _TREE, ("heads",), ("lm",)),
    "sampled": StrategyInfo("paths sampled as one tree, for Rejection", _TREE, ("heads",), ("lm",)),
    "draft_model": StrategyInfo(
        "a small causal LM's greedy or sampled continuation; a tree if max_nodes is given",
        ("draft_length", "top_k", "max_nodes", "temperature"), ("lm",),
    ),
}  # fmt: skip
"""Every strategy by name, in the order of tables and help texts."""


@dataclass(frozen=True)
class DraftConfig:
    """Drafting options: a strategy and its parameters.

    Fields that the strategy does not use are ignored, so that one config can serve several
    strategies. Options given by name, to a function or on the command line, raise a ValueError if
    the strategy does not use them (`check_used`).

    Attributes:
        strategy: a name of `STRATEGIES`.
        top_k: k, candidates of each slot, 1 to the vocabulary size.
        num_drafts: p, drafts of "p_best", 1..4096.
        max_nodes: N, draft tokens of a tree, 1..4096. "auto": 36; for "mixture" by the measured
            cost of calls, 0 to 64; for "draft_model" a chain.
        alpha: weight of the LM's natural log probabilities.
        temperature: divides the scores of chains and trees; above 1 a tree is wider and less deep.
        draft_length: longest draft of "draft_model"; None: 5.
        normalization: "global": whole paths are ranked by their scores; "local": the scores of a
            slot's candidates, LM included, are normalized by softmax after every prefix; None: the
            heads' own, which is global unless they score transitions.
        sources: what "mixture" drafts from, of "heads", "lm", "text" (the text so far), "store"
            (texts served before) and "target" (what the target predicted at tokens that it has
            read); None: all that there are.

    Raises:
        TypeError: a value of another type.
        ValueError: an unknown strategy, or a value out of range.
    """

    strategy: str = "mixture"
    top_k: int = 16
    num_drafts: int = 16
    max_nodes: int | str = "auto"
    alpha: float = 0.5
    temperature: float = 1.0
    draft_length: int | None = None
    normalization: str | None = None
    sources: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Raise for values out of range."""
        if self.strategy not in STRATEGIES:
            near = difflib.get_close_matches(str(self.strategy), STRATEGIES, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"strategy is {self.strategy!r}; {hint}expected one of {', '.join(STRATEGIES)}"
            )
        for name in ("top_k", "num_drafts", "max_nodes", "draft_length"):
            value = getattr(self, name)
            if name == "max_nodes" and value == "auto":
                continue
            if value is not None or name in ("top_k", "num_drafts", "max_nodes"):
                most = MAX_NODES if name in ("num_drafts", "max_nodes") else None
                check_int(name, value, 1, most)
        for name in ("alpha", "temperature"):
            check_number(name, getattr(self, name), positive=name == "temperature")
        self._check_sources()
        if self.normalization not in (None, "global", "local"):
            raise ValueError(
                f"normalization is {self.normalization!r}; expected 'global', 'local' or None"
            )

    def _check_sources(self) -> None:
        if self.sources is None:
            return
        object.__setattr__(self, "sources", tuple(self.sources))
        unknown = [name for name in self.sources or () if name not in MIXTURE_SOURCES]
        if unknown or not self.sources:
            found = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"sources: found {found}; expected of {', '.join(MIXTURE_SOURCES)}")

    @property
    def tree_nodes(self) -> int:
        """max_nodes, with "auto" the default of trees."""
        return TREE_NODES if isinstance(self.max_nodes, str) else self.max_nodes

    @property
    def options(self) -> dict[str, Any]:
        """The options that the strategy uses."""
        return {name: getattr(self, name) for name in STRATEGIES[self.strategy].options}

    def lattice_of(
        self, outputs: Candidates | LatticeInput, top_k: int | None = None
    ) -> Candidates | LatticeInput:
        """The lattices that are searched: k candidates of each slot, with this normalization.

        Args:
            outputs: (B, H, K) of the heads.
            top_k: k, of a LatticeInput; None: the config's.
        """
        if isinstance(outputs, LatticeInput):
            outputs = outputs.cut(outputs.num_slots, self.top_k if top_k is None else top_k)
        elif self.normalization == "local":
            outputs = LatticeInput(outputs.token_ids, outputs.scores)
        else:
            return outputs
        if self.normalization in (None, outputs.normalization):
            return outputs
        return replace(outputs, normalization=cast("Normalization", self.normalization))

    @classmethod
    def make(
        cls, where: str, config: DraftConfig | str | None, options: Mapping[str, Any]
    ) -> DraftConfig:
        """A config with some options replaced.

        Args:
            where: the caller's name, for error messages.
            config: the config; the name of a strategy or None: its defaults.
            options: values by name, all but the strategy.

        Raises:
            TypeError: an unknown option; or as the class.
            ValueError: as the class.
        """
        known = [one.name for one in fields(cls) if one.name != "strategy"]
        unknown = [name for name in options if name not in known]
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}=? " if near else ""
            raise TypeError(
                f"{where}: unknown option {unknown[0]!r}; {hint}expected of {', '.join(known)}"
            )
        try:
            base = cls(config) if isinstance(config, str) else config or cls()
            return replace(base, **options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from None


def find_drafter_file(path: str | Path) -> Path:
    """The drafter.json of a folder; another path is that of the file itself.

    Raises:
        FileNotFoundError: it does not exist, or is a folder without drafter.json.
    """
    file = path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such folder or file; expected what build -o wrote")
    if path.is_dir() and not (file := path / "drafter.json").is_file():
        raise FileNotFoundError(
            f"{path}: no drafter.json in this folder; expected one that lattice-bpd build -o "
            "wrote, or the file itself"
        )
    return file


def check_used(where: str, strategy: str, options: Iterable[str]) -> None:
    """Raise ValueError for an option that the strategy does not use.

    Args:
        where: the caller's name, for error messages.
        strategy: a name of `STRATEGIES`.
        options: fields of DraftConfig that the user passed by name.
    """
    for name in options:
        if name not in STRATEGIES[strategy].options:
            users = [repr(key) for key, info in STRATEGIES.items() if name in info.options]
            sampling = "; that of sampling is part of the acceptance rule"
            raise ValueError(
                f"{where}: strategy {strategy!r} does not use {name}; leave it out, or use "
                f"{' or '.join(users)}{sampling if name == 'temperature' else ''}"
            )
