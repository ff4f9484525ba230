"""The parts of a drafter from its folder: heads, n-gram LMs, options, gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lattice_bpd.decode.drafter_file import DrafterFile, find_lm, read_drafter_file
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.draft.gates import Gates
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.models.checkpoint import has_heads, load_heads
from lattice_bpd_vllm.options import CONFIG_KEY, DrafterOptions

_CHAIN_OF_STRATEGY = {
    "mixture": "mixture", "bpd": "argmax", "p_best": "best", "chain": "chain", "tree": "chain",
}  # fmt: skip


@dataclass(frozen=True)
class DrafterParts:
    """What a drafter is made of.

    Attributes:
        heads: draft heads or a BlockDrafter, on the CPU; None: there are none, for "mixture" only.
        lms: n-gram LMs; one at most but for "mixture", none for "argmax".
        config: options of the search; `sources` of "mixture".
        draft: "mixture", "chain", "best" or "argmax".
        vocab_size: V that LMs and drafter.json expect of the target; None: any.
        gates: of drafter.json, for "mixture", by lists of sources.
        vocab_source: what `vocab_size` is of, for error messages.
    """

    heads: Any
    lms: tuple[NGramLM, ...]
    config: DraftConfig
    draft: str
    vocab_size: int | None
    gates: Sequence[Gates] = ()
    vocab_source: str = ""


def load_parts(options: DrafterOptions) -> DrafterParts:
    """Reads the files of a drafter.

    Raises:
        OSError: a file cannot be read, or a folder is not there.
        FormatError: a file is missing or damaged.
        ValueError: drafter.json says not to draft, heads or LM do not fit it, a source that is
            needed is missing, or options that the draft form does not use.
    """
    for name, given in (("directory", options.directory), ("heads", options.heads)):
        if given is not None and not Path(given).is_dir():
            raise FileNotFoundError(
                f"{CONFIG_KEY}: {name} {given} is not there, or is no folder; expected the folder "
                "of a drafter, on the machine of the worker"
            )
    file, path = _read_file(options)
    draft = options.draft or _draft_of(file, path)
    options.check_used(draft)
    config = _read_config(options, file, draft)
    for name in ("heads", "lm"):
        if draft == "mixture" and name not in (config.sources or (name,)):
            options.refuse((name,), f"and sources has no {name!r}; add it, or leave {name} out")
    folder = _find_heads(options, file, draft, config)
    heads = None if folder is None else load_heads(folder)
    if heads is None:
        options.refuse(("top_k",), "and there are no heads, whose candidates it counts")
    lms = _read_lms(options, file, path, draft, config)
    if file is not None and heads is not None and file.num_slots not in (0, int(heads.num_slots)):
        raise ValueError(
            f"{path}: is for {file.num_slots} slots, the heads have {heads.num_slots}; give the "
            "heads that it was tuned with"
        )
    sizes = {
        **{f"LM {name}": lm.vocab_size for name, lm in lms},
        "drafter.json": None if file is None else file.vocab_size,
        "the heads": getattr(getattr(heads, "config", heads), "vocab_size", None),
    }
    known = {name: size for name, size in sizes.items() if size is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in known.items())
        raise ValueError(f"{CONFIG_KEY}: vocabularies differ: {listed}; expected one size")
    vocab_size = next(iter(known.values()), None)
    gates = () if file is None else Gates.read(file.gates)
    return DrafterParts(
        heads, tuple(lm for _, lm in lms), config, draft, vocab_size, gates, " and ".join(known)
    )


def _read_config(options: DrafterOptions, file: DrafterFile | None, draft: str) -> DraftConfig:
    config = DraftConfig("mixture" if draft == "mixture" else "chain")
    given = {
        name: getattr(options, name)
        for name in ("top_k", "alpha", "temperature", "sources")
        if getattr(options, name) is not None
    }
    return DraftConfig.make(CONFIG_KEY, config if file is None else file.config, given)


def _find_heads(
    options: DrafterOptions, file: DrafterFile | None, draft: str, config: DraftConfig
) -> Path | None:
    """The folder of the heads; None: "mixture" without heads.

    Raises:
        ValueError: no heads where they are needed, a folder that has no part of a drafter, or heads
            that need a target with a network that vLLM's lacks.
    """
    given = options.heads or options.directory
    folder = None if given is None else Path(given)
    if draft == "mixture":
        is_used = config.sources is None or "heads" in config.sources
        is_needed = is_used and (config.sources is not None or options.heads is not None)
    else:
        is_used = is_needed = True
    if is_needed and folder is None:
        needs = f"draft {draft!r} needs" if draft != "mixture" else "sources has"
        raise ValueError(
            f"{CONFIG_KEY}: {needs} heads, and neither directory nor heads is given; expected "
            'their folder: {"directory": "/path/of/the/drafter"}'
        )
    if folder is None or not is_used:
        return None
    if not is_needed and not has_heads(folder):
        if file is None:
            raise ValueError(
                f"{CONFIG_KEY}: directory {folder} has neither draft heads nor drafter.json; "
                "expected a folder that `lattice-bpd build`, `tune` or `heads train` wrote, or "
                "none, to draft from the text so far"
            )
        return None
    if (folder / "first_head.json").is_file():
        raise ValueError(
            f"{folder}: head 1 has a network of its own, which vLLM's target lacks, so outputs "
            "would differ; expected heads of a target without one; train without --first-head"
        )
    return folder


def _read_file(options: DrafterOptions) -> tuple[DrafterFile | None, Path]:
    path = Path(options.directory or "") / "drafter.json"
    if options.directory is None or not path.is_file():
        return None, path
    file = read_drafter_file(path)
    if file.config.strategy not in ("greedy", *_CHAIN_OF_STRATEGY):
        raise ValueError(
            f"{path}: strategy {file.config.strategy!r}, which this drafter does not have; "
            f"expected one of {', '.join(_CHAIN_OF_STRATEGY)}; tune again with --chain-only"
        )
    return file, path


def _draft_of(file: DrafterFile | None, path: Path) -> str:
    if file is None:
        return "mixture"
    if file.config.strategy == "greedy":
        raise ValueError(
            f"{path}: strategy 'greedy', since no draft paid when it was tuned; serve without "
            "--speculative-config, or set the option draft"
        )
    return _CHAIN_OF_STRATEGY[file.config.strategy]


def _read_lms(
    options: DrafterOptions, file: DrafterFile | None, path: Path, draft: str, config: DraftConfig
) -> list[tuple[str, NGramLM]]:
    """The LMs that the draft form uses, and their files."""
    is_needed = draft == "mixture" and "lm" in (config.sources or ())
    if draft == "argmax" or (draft == "mixture" and config.sources is not None and not is_needed):
        return []
    if options.lm is not None:
        files = [options.lm] if isinstance(options.lm, str) else options.lm
        for name in files:
            if not Path(name).is_file():
                raise FileNotFoundError(
                    f"{CONFIG_KEY}: lm {name} is not there, or is no file; expected an n-gram LM, "
                    "as build or ngram train write it, on the machine of the worker"
                )
        lms = [(name, NGramLM.load(name)) for name in files]
    elif file is not None:
        listed = file.lms or ([] if file.lm is None else [file.lm])
        lms = [
            (Path(one["file"]).name, cast(NGramLM, find_lm(replace(file, lm=one), path)))
            for one in listed
        ]
    else:
        lms = []
    if draft != "mixture" and len(lms) > 1:
        raise ValueError(
            f"{CONFIG_KEY}: found {len(lms)} LMs; expected one at most for draft {draft!r}; "
            "'mixture' drafts from several"
        )
    if is_needed and not lms:
        raise ValueError(
            f"{CONFIG_KEY}: sources has 'lm', and there is none; give lm, or leave it out"
        )
    return lms


def reads_layers(heads: Any) -> bool:
    """Whether heads are a block drafter, which reads hidden states of several layers."""
    return hasattr(heads, "read_context")
