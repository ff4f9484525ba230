"""Drafters by the name of their strategy, and of a drafter.json, which `build` and `tune` write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lattice_bpd.decode.drafters.call_costs import ModelCosts
from lattice_bpd.decode.drafters.chain import ChainDrafter
from lattice_bpd.decode.drafters.drafter import Drafter, NoDrafter
from lattice_bpd.decode.drafters.mixture import MixtureDrafter
from lattice_bpd.decode.drafters.p_best import ArgmaxDrafter, PBestDrafter
from lattice_bpd.decode.drafters.scorer import ScorerDrafter
from lattice_bpd.decode.drafters.tree import SampledTreeDrafter, TreeDrafter
from lattice_bpd.draft.config import STRATEGIES, DraftConfig
from lattice_bpd.draft.gates import Gates
from lattice_bpd.draft.mixture import TextStore
from lattice_bpd.extensions import DRAFTERS, load_extension
from lattice_bpd.lm.ngram import NGramLM

_CAUSAL_LM = "a small causal LM with the target's tokenizer"


@dataclass(frozen=True)
class DraftSources:
    """The LMs, models and data that drafters are built from.

    Attributes:
        lm: n-gram LM over the target's token ids; of "neural" also a TransitionScorer or a
            small causal LM of `transformers`, of "draft_model" only such a causal LM; of "mixture"
            also a list of n-gram LMs.
        has_heads: whether the model has draft heads.
        store: texts served before, for "mixture"; None: none.
        gates: weights of the sources of "mixture", perhaps for several lists of sources, of which
            those that fit best are used (`Gates.fitting`); none: the defaults.
        costs: measured costs of the model's calls, for "mixture"; None: none yet.
    """

    lm: Any = None
    has_heads: bool = True
    store: TextStore | None = None
    gates: Sequence[Gates] = ()
    costs: ModelCosts | None = None


def make_drafter(config: DraftConfig, sources: DraftSources | None = None) -> Drafter:
    """The drafter of a strategy.

    Args:
        config: strategy and options.
        sources: LM and other data that the strategy uses. An n-gram LM that it does not use is
            ignored, so that one LM can serve several configs.

    Raises:
        ValueError: a source that is missing.
        TypeError: an LM of another type.
        ImportError: the strategy is of a distribution that is not installed.
    """
    sources = sources or DraftSources()
    _check_sources(config.strategy, sources)
    return _BUILDERS[config.strategy](config, sources)


def _check_sources(strategy: str, sources: DraftSources) -> None:
    """Raise for a source that is missing or of another type."""
    info, lm = STRATEGIES[strategy], sources.lm
    if "lm" in info.needs and lm is None:
        needed = {"draft_model": _CAUSAL_LM, "neural": f"{_CAUSAL_LM}, or a TransitionScorer"}
        raise ValueError(
            f"make_drafter: strategy {strategy!r} needs an LM; give lm=, "
            f"{needed.get(strategy, 'NGramLM.load(path)')}"
        )
    if strategy == "draft_model":
        _check_causal_lm(lm)
    elif strategy == "mixture" and isinstance(lm, (list, tuple)):
        for one in lm:
            _check_ngram_lm(one)
    elif strategy != "neural":
        _check_ngram_lm(lm)
    if "heads" in info.needs and not sources.has_heads:
        raise ValueError(
            f"make_drafter: strategy {strategy!r} needs draft heads and the model has none; give "
            "heads= (--heads DIR on the command line), such as load_heads(folder), or a callable "
            "that turns hidden states (B, D) into logits (B, H, V); without heads use 'mixture', "
            "or 'draft_model' with lm="
        )


def _check_ngram_lm(lm: Any) -> None:
    if lm is None or isinstance(lm, NGramLM):
        return
    hint = f"NGramLM.load({lm!r})" if isinstance(lm, str) else "NGramLM.load(path)"
    raise TypeError(
        f"make_drafter: lm is a {type(lm).__name__}; expected an NGramLM; load one with {hint} "
        "(a causal LM is for 'draft_model' and 'neural', a scorer for 'neural')"
    )


def _check_causal_lm(lm: Any) -> None:
    if isinstance(lm, nn.Module):
        return
    hint = "; an n-gram LM is for 'mixture' or 'ngram'" if isinstance(lm, NGramLM) else ""
    raise TypeError(
        f"make_drafter: lm is a {type(lm).__name__}; expected for 'draft_model' {_CAUSAL_LM}; load "
        f"one with AutoModelForCausalLM.from_pretrained{hint}"
    )


def _mixture(config: DraftConfig, sources: DraftSources) -> Drafter:
    """All sources that are given, or those that the config names."""
    lm = sources.lm
    lms = [] if lm is None else list(lm) if isinstance(lm, (list, tuple)) else [lm]
    given = {
        "heads": sources.has_heads, "lm": lms, "text": True, "store": sources.store, "target": True,
    }  # fmt: skip
    for name in config.sources or ():
        if not given[name]:
            raise ValueError(
                f"make_drafter: sources has {name!r}, and there is none; give {name}=, or leave it "
                "out of sources"
            )
    used = [name for name in given if config.sources is None or name in config.sources]
    return MixtureDrafter(
        lms if "lm" in used else (),
        heads=sources.has_heads and "heads" in used,
        text="text" in used,
        store=sources.store if "store" in used else None,
        target="target" in used,
        max_nodes=config.max_nodes,
        top_k=config.top_k,
        gates=sources.gates,
        costs=sources.costs,
    )


_BUILDERS: dict[str, Callable[[DraftConfig, DraftSources], Drafter]] = {
    "greedy": lambda _config, _sources: NoDrafter(),
    "mixture": _mixture,
    "bpd": lambda _config, _sources: ArgmaxDrafter(),
    "ngram": lambda config, sources: PBestDrafter(sources.lm, config),
    "neural": lambda config, sources: ScorerDrafter(sources.lm, config),
    "p_best": lambda config, sources: PBestDrafter(sources.lm, config),
    "chain": lambda config, sources: ChainDrafter(sources.lm, config),
    "tree": lambda config, sources: TreeDrafter(sources.lm, config),
    "sampled": lambda config, sources: SampledTreeDrafter(sources.lm, config),
    "draft_model": lambda config, sources: load_extension(DRAFTERS, "draft_model")(
        sources.lm, config
    ),
}
