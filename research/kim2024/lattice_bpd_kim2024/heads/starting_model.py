"""The initial model of a head training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from lattice_bpd._core import FormatError
from lattice_bpd.models.checkpoint import load_target
from lattice_bpd.models.heads import BLOCKWISE_FILES, BlockwiseHeads
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.first_head import attach_first_head
from lattice_bpd_kim2024.heads.job import HeadJob
from lattice_bpd_kim2024.heads.run_folder import fingerprint, read_record
from lattice_bpd_kim2024.heads.trainer import seeded
from lattice_bpd_kim2024.llama2c import load_llama2c
from lattice_bpd_kim2024.small_models import build_small_gpt

_NUM_HEADS = 9
_SMALL = ("hidden_size", "num_layers", "num_attention_heads", "max_positions")


def load_base(path: Path, *, full_precision: bool) -> PreTrainedModel:
    """Loads a trained target.

    Args:
        path: folder of a causal LM of transformers or of a BlockwiseLM, or a llama2.c .bin file.
        full_precision: as float32, for training; else in the dtype of the files.

    Raises:
        FormatError: damaged files.
        OSError: no such file or folder.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder; expected a trained target")
    if path.is_file():
        return load_llama2c(path)
    return load_target(path, dtype=torch.float32) if full_precision else load_target(path)


def attach_heads(base: PreTrainedModel, job: HeadJob, seed: int) -> BlockwiseLM:
    """The target with the job's heads, which are always float32, and head 1's network.

    Raises:
        ValueError: heads of another target, or of other sizes than the job's.
        FormatError: damaged head files.
    """
    folder = _heads_folder(job)
    if job.has_first_head:
        with seeded(seed + 1):
            attach_first_head(base, job.inner_size)
    if folder is None:
        with seeded(seed):
            model = BlockwiseLM(base, job.num_heads or _NUM_HEADS, job.inner_size)
    else:
        heads = BlockwiseHeads.from_pretrained(folder)
        _check_heads(heads, folder, base, job)
        model = BlockwiseLM(base, heads=heads)
    cast(BlockwiseHeads, model.heads).float()
    return model.eval()


def _heads_folder(job: HeadJob) -> Path | None:
    """The folder of the initial heads; None for new heads."""
    if job.heads is not None:
        return None if job.heads == "new" else Path(job.heads)
    if job.base is not None and (Path(job.base) / BLOCKWISE_FILES.config_name).is_file():
        return Path(job.base)
    return None


def _check_heads(heads: BlockwiseHeads, folder: Path, base: PreTrainedModel, job: HeadJob) -> None:
    for name in ("num_heads", "inner_size"):
        expected, actual = getattr(job, name), getattr(heads, name)
        if expected is not None and expected != actual:
            raise ValueError(
                f"{folder}: the heads have {name} {actual}; expected {expected}; leave the option "
                "out, or start with new heads (--heads new)"
            )
    record = read_record(folder)
    trained_on = None if record is None else record["base_fingerprint"]
    if record is not None and record["finished"] and trained_on != fingerprint(base):
        raise ValueError(
            f"{folder}: the heads were trained on another base than {job.base} (its weights "
            "differ); give that base, or start with new heads (--heads new)"
        )


def build_untrained(job: HeadJob, vocab_size: int, seed: int) -> BlockwiseLM:
    """Builds the model of job.config with random weights.

    Args:
        job: see HeadJob for config, num_heads and inner_size.
        vocab_size: V of the text; that of the configuration may be larger.
        seed: seed of the weights.

    Raises:
        FormatError: not the configuration of a model.
        ValueError: inconsistent sizes.
        OSError: it cannot be read.
    """
    sizes = {} if job.config is None else _read_config(Path(job.config))
    num_heads = job.num_heads or _NUM_HEADS
    stated = sizes.pop("vocab_size", vocab_size)
    if not isinstance(stated, int) or stated < vocab_size:
        raise ValueError(
            f"{job.config}: vocab_size is {stated!r}, the text has {vocab_size} token ids; "
            "expected at least as many; leave it out to take the tokenizer's"
        )
    length = job.chosen_options.get("sequence_length", 0)
    try:
        with seeded(seed):
            if "model_type" in sizes:
                settings = AutoConfig.for_model(**sizes, vocab_size=stated)
                base = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                    settings, dtype=torch.float32
                )
            else:
                base = _build_small(stated, num_heads, {"max_positions": max(256, length), **sizes})
            model = BlockwiseLM(base, num_heads, job.inner_size).eval()
            if job.has_first_head:
                attach_first_head(model.base, job.inner_size)
        with torch.no_grad():
            ids = torch.zeros(1, 2, dtype=torch.int64, device="cpu")
            model.base(input_ids=ids)  # fails here if sizes are inconsistent
        return model
    except Exception as error:  # transformers raises various types
        raise FormatError(
            f"{job.config}: no causal LM can be built of it ({error}); expected the config.json of "
            f"a model of transformers, with model_type, or sizes: {', '.join(_SMALL)}"
        ) from error


def _build_small(vocab_size: int, num_heads: int, sizes: dict[str, Any]) -> PreTrainedModel:
    wrong = [name for name, value in sizes.items() if name not in _SMALL or type(value) is not int]
    if wrong:
        raise ValueError(f"{wrong[0]} is {sizes[wrong[0]]!r}")
    return build_small_gpt(vocab_size, num_heads=num_heads, **sizes).base


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: not JSON ({error}); expected a configuration") from error
    if not isinstance(config, dict):
        raise FormatError(f"{path}: a JSON {type(config).__name__}; expected an object")
    return config
