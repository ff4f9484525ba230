"""The parts of a drafter from its folder: heads, n-gram LM, options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lattice_bpd.decode.strategies.drafter_file import DrafterFile, find_lm, read_drafter_file
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.models.block_drafter.module import BlockDrafter
from lattice_bpd.models.block_drafter.selector import CandidateSelector
from lattice_bpd.models.checkpoint import load_heads, load_selector
from lattice_bpd.models.first_head import FIRST_HEAD_FILES
from lattice_bpd_vllm.options import CONFIG_KEY, DrafterOptions

_CHAIN_OF_STRATEGY = {"bpd": "argmax", "p_best": "best", "chain": "chain", "tree": "chain"}


@dataclass(frozen=True)
class DrafterParts:
    """What a drafter is made of.

    Attributes:
        heads: draft heads or a BlockDrafter, on the CPU.
        lm: n-gram LM; None: there is none, or "argmax", which uses none.
        config: options of the search.
        draft: "chain", "best" or "argmax".
        vocab_size: V that LM and drafter.json expect of the target; None: any.
        selector: transition scores that were trained on the heads, or None.
    """

    heads: Any
    lm: NGramLM | None
    config: DraftConfig
    draft: str
    vocab_size: int | None
    selector: CandidateSelector | None = None


def load_parts(options: DrafterOptions) -> DrafterParts:
    """Reads the files of a drafter.

    Raises:
        OSError: a file cannot be read.
        FormatError: a file is missing or damaged.
        ValueError: drafter.json says not to draft, heads or LM do not fit it, or options that the
            draft form does not use.
    """
    folder = Path(options.heads or options.directory or "")
    if (folder / FIRST_HEAD_FILES.config_name).is_file():
        raise ValueError(
            f"{folder}: head 1 has a network of its own, which vLLM's target lacks, so outputs "
            "would differ; expected heads of a target without one; train without --first-head"
        )
    heads = load_heads(folder)
    selector = load_selector(folder, heads)
    file, path = _read_file(options)
    draft = options.draft or _draft_of(file, path)
    options.check_used(draft)
    lm = None if draft == "argmax" else _read_lm(options, file, path)
    config = DraftConfig("chain") if file is None else file.config
    given = {
        name: getattr(options, name)
        for name in ("top_k", "alpha", "temperature", "ngram_cache")
        if getattr(options, name) is not None
    }
    config = DraftConfig.make(CONFIG_KEY, config, given)
    if file is not None and int(heads.num_slots) != file.num_slots:
        raise ValueError(
            f"{path}: is for {file.num_slots} slots, the heads have {heads.num_slots}; give the "
            "heads that it was tuned with"
        )
    _check_weights(heads, selector, config, path, folder)
    sizes = {
        "the LM": None if lm is None else lm.vocab_size,
        "drafter.json": None if file is None else file.vocab_size,
        "the heads": getattr(getattr(heads, "config", heads), "vocab_size", None),
        "the selector": None if selector is None else selector.vocab_size,
    }
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in known.items())
        raise ValueError(f"{CONFIG_KEY}: vocabularies differ: {listed}; expected one size")
    return DrafterParts(heads, lm, config, draft, next(iter(known.values()), None), selector)


def _check_weights(
    heads: Any, selector: CandidateSelector | None, config: DraftConfig, path: Path, folder: Path
) -> None:
    """Raise ValueError for weights of head logits where the drafter gives candidates instead."""
    is_block = isinstance(heads, BlockDrafter) and heads.config.scorer is not None
    if config.weighs_heads and (is_block or selector is not None):
        source = "block drafter" if is_block else "selector"
        raise ValueError(
            f"{path}: head_scales and entropy_weight are for logits, and the {source} in {folder} "
            "gives candidates with scores of its own; tune without them"
        )


def _read_file(options: DrafterOptions) -> tuple[DrafterFile | None, Path]:
    path = Path(options.directory or "") / "drafter.json"
    if options.directory is None or not path.is_file():
        return None, path
    file = read_drafter_file(path)
    if file.config.strategy == "neural":
        raise ValueError(
            f"{path}: strategy 'neural', which this drafter does not have; expected one of "
            f"{', '.join(_CHAIN_OF_STRATEGY)}; tune again with --chain-only"
        )
    return file, path


def _draft_of(file: DrafterFile | None, path: Path) -> str:
    if file is None:
        return "chain"
    if file.config.strategy == "greedy":
        raise ValueError(
            f"{path}: strategy 'greedy', since no draft paid when it was tuned; serve without "
            "--speculative-config, or set the option draft"
        )
    return _CHAIN_OF_STRATEGY[file.config.strategy]


def _read_lm(options: DrafterOptions, file: DrafterFile | None, path: Path) -> NGramLM | None:
    if options.lm is not None:
        return NGramLM.load(options.lm)
    if file is None or file.lm is None:
        return None
    return cast(NGramLM, find_lm(file, path))
