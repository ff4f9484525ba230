"""The format of z-lab's DFlash and DFlash2 drafters, of SpecForge and of LiLiCorr.

config.json has the options of Qwen3 layers, `block_size`, `num_target_layers` and `dflash_config`
with `mask_token_id` and `target_layer_ids` (0-based; the hidden state after that layer).
model.safetensors has the tensors; the embeddings are the target's. `dflash_config` also has the
options of convolutions, selector, LiLiCorr or, as SpecForge writes it, DSpark's Markov head.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.models.block_drafter.formats.checkpoint import (
    Checkpoint,
    read_checkpoint_tensors,
)
from lattice_bpd.models.block_drafter.formats.config_reader import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
)
from lattice_bpd.models.block_drafter.formats.names import refuse_other_drafters
from lattice_bpd.models.block_drafter.formats.qwen3_layers import layer_options, read_layer_options
from lattice_bpd.models.block_drafter.formats.scorer_options import (
    convolution_options,
    read_convolution,
    read_lilicorr,
    read_markov,
    read_selector,
    read_transforms,
    scorer_options,
    transform_options,
)
from lattice_bpd.models.block_drafter.formats.tensor_files import write_checkpoint
from lattice_bpd.models.block_drafter.scorer_config import (
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)

if TYPE_CHECKING:
    from lattice_bpd.models.block_drafter.module import BlockDrafter

ARCHITECTURE = "DFlashDraftModel"
_SELECTOR, _LILICORR = "DFlash2DraftModel", "LiLiCorrDraftModel"
ARCHITECTURES = (ARCHITECTURE, _SELECTOR, _LILICORR)
_PROJECTORS = ("dflash", "dflash2", "lilicorr", "dspark")


def recognizes(content: dict[str, Any]) -> bool:
    """Whether a config.json is of this format."""
    names = content.get("architectures")
    return isinstance(names, list) and any(name in ARCHITECTURES for name in names)


def read(directory: str | Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        FormatError: files that are missing, damaged, of another format, or do not fit each other.
    """
    directory = Path(directory)
    path = directory / CONFIG_NAME
    content = read_config_json(directory)
    refuse_other_drafters(path, content)
    reader = ConfigReader(path, content)
    if not recognizes(content):
        expected = " or ".join(f"[{name!r}]" for name in ARCHITECTURES)
        reader.fail("architectures", content.get("architectures"), expected)
    reader.require("model_type", ["qwen3"])
    fields = read_layer_options(reader)
    inner = reader.nested("dflash_config")
    inner.require("projector_type", _PROJECTORS)
    names = [*content["architectures"], inner.get("projector_type", None)]
    fields |= {
        "vocab_size": reader.integer("vocab_size"),
        "target_hidden_size": reader.integer("target_hidden_size", fields["hidden_size"]),
        "draft_vocab_size": reader.integer("draft_vocab_size", None),
        **read_transforms(reader, inner),
        "block_size": inner.integer("block_size", reader.integer("block_size", None, 2), 2),
        "mask_token_id": inner.integer(
            "mask_token_id", reader.integer("mask_token_id", None, 0), 0
        ),
        "hidden_layers": _read_layer_ids(reader, inner, fields["num_layers"]),
        "causal": reader.boolean("is_causal", inner.boolean("causal", None)),
        "next_token_layout": inner.boolean("sample_from_anchor", "dspark" in names),
        "convolution": read_convolution(inner),
    }
    if _LILICORR in names or "lilicorr" in names:
        fields["scorer"] = read_lilicorr(inner, fields["hidden_size"])
    elif _SELECTOR in names or "dflash2" in names or inner.has("selector_rank"):
        fields["scorer"] = read_selector(inner)
    elif "dspark" in names:
        size = fields["draft_vocab_size"] or fields["vocab_size"]
        fields["scorer"] = read_markov(inner, size)
    if fields["block_size"] is None:
        reader.fail("block_size", None, "an integer of 2 or more, here or in dflash_config")
    reader.boolean("has_own_lm_head", None)  # whether there is one is read off the tensors
    inner.finish()
    reader.finish()
    return read_checkpoint_tensors(directory, fields)


def save(drafter: BlockDrafter, directory: str | Path) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
        ValueError: the vocabulary is not known yet, or a config that the format cannot hold.
    """
    config = drafter.config
    if config.vocab_size is None:
        raise ValueError(
            "z_lab.save: the drafter's vocabulary is not known; call attach(target) before saving"
        )
    if -1 in config.hidden_layers:
        raise ValueError(
            f"z_lab.save: hidden_layers is {config.hidden_layers}; the format has no -1, the "
            "output of the embedding; save a drafter that reads layers only"
        )
    inner: dict[str, Any] = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.hidden_layers),
    }
    if config.causal is not None:
        inner["causal"] = config.causal
    if config.next_token_layout or isinstance(config.scorer, MarkovConfig):
        inner["sample_from_anchor"] = config.next_token_layout
    inner |= convolution_options(config) | scorer_options(config)
    content: dict[str, Any] = {
        "architectures": [_architecture(config)], "model_type": "qwen3", **layer_options(config),
        "vocab_size": config.vocab_size,
        "block_size": config.block_size, "dflash_config": inner, "tie_word_embeddings": False,
        "dtype": str(drafter.fc.weight.dtype).removeprefix("torch."),
    }  # fmt: skip
    if config.target_hidden_size != config.hidden_size:
        content["target_hidden_size"] = config.target_hidden_size
    if config.draft_vocab_size is not None:
        content["draft_vocab_size"] = config.draft_vocab_size
    if config.has_own_output:
        content["has_own_lm_head"] = True
    content |= transform_options(config)
    write_checkpoint(Path(directory), content, drafter.state_dict())


def _architecture(config: BlockDrafterConfig) -> str:
    if isinstance(config.scorer, SelectorConfig):
        return _SELECTOR
    return _LILICORR if isinstance(config.scorer, LiLiCorrConfig) else ARCHITECTURE


def _read_layer_ids(reader: ConfigReader, inner: ConfigReader, num_layers: int) -> tuple[int, ...]:
    """`target_layer_ids`, or the format's default; below `num_target_layers` where that is known.

    The default, for L layers of the target and n of the drafter: L // 2 if n is 1, otherwise n
    layers at equal distances from 1 to L - 3.
    """
    count = reader.integer("num_target_layers", None)
    ids: tuple[int, ...] | None = inner.integers(
        "target_layer_ids", reader.integers("target_layer_ids", None)
    )
    if ids is None:
        if count is None or count < 5:
            inner.fail("target_layer_ids", None, "a list, as num_target_layers gives no default")
        span = count - 4
        steps = range(num_layers)
        ids = (
            (count // 2,) if num_layers == 1
            else tuple(round(1 + step * span / (num_layers - 1)) for step in steps)
        )  # fmt: skip
    if count is not None and max(ids) >= count:
        inner.fail(
            "target_layer_ids", list(ids),
            f"0..{count - 1} for a target of {count} layers (ids that count the embedding as 0, as "
            "in the speculators format, are greater by one)",
        )  # fmt: skip
    return ids
