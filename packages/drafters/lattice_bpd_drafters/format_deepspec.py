"""The format of DeepSpec's DSpark drafters.

config.json has all options at the top level: those of Qwen3 layers, `block_size`, `mask_token_id`,
`target_layer_ids` (0-based, -1 for the embedding) and the Markov head's. Every output of a block
predicts the next token unless `sample_from_anchor` is false.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lattice_bpd_drafters.config import MarkovConfig
from lattice_bpd_drafters.format_checkpoint import (
    Checkpoint,
    markov_options,
    read_checkpoint_tensors,
    read_markov,
)
from lattice_bpd_drafters.format_files import (
    CONFIG_NAME,
    ConfigReader,
    read_config_json,
    refuse_other_drafters,
    write_checkpoint,
)
from lattice_bpd_drafters.format_z_lab import layer_options, read_layer_options

if TYPE_CHECKING:
    from lattice_bpd_drafters.block_drafter import BlockDrafter

ARCHITECTURE = "Qwen3DSparkModel"


def recognizes(content: dict[str, Any]) -> bool:
    """Whether a config.json is of this format."""
    names = content.get("architectures")
    return isinstance(names, list) and ARCHITECTURE in names


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
        reader.fail("architectures", content.get("architectures"), f"[{ARCHITECTURE!r}]")
    fields = read_layer_options(reader)
    fields |= {
        "vocab_size": reader.integer("vocab_size"),
        "target_hidden_size": reader.integer("target_hidden_size", fields["hidden_size"]),
        "draft_vocab_size": reader.integer("draft_vocab_size", None),
        "logit_scale": reader.positive("logit_scale", 1.0),
        "block_size": reader.integer("block_size"),
        "mask_token_id": reader.integer("mask_token_id", minimum=0),
        "hidden_layers": reader.integers("target_layer_ids", minimum=-1),
        "causal": reader.boolean("is_causal", None),
        "next_token_layout": reader.boolean("sample_from_anchor", True),
    }
    count = reader.integer("num_target_layers", None)
    if count is not None and max(fields["hidden_layers"]) >= count:
        reader.fail("target_layer_ids", list(fields["hidden_layers"]), f"-1..{count - 1}")
    fields["scorer"] = read_markov(reader, fields["draft_vocab_size"] or fields["vocab_size"])
    reader.finish()
    return read_checkpoint_tensors(directory, fields)


def save(drafter: BlockDrafter, directory: str | Path) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Raises:
        OSError: the directory cannot be written.
        ValueError: a drafter that the format cannot hold.
    """
    config = drafter.config
    is_plain = config.convolution is None and config.logit_softcap is None
    if not isinstance(config.scorer, MarkovConfig) or not is_plain or config.embedding_scale != 1.0:
        raise ValueError(
            "deepspec.save: the drafter has no Markov head, or it has convolutions, a cap of the "
            "logits or an embedding scale, which the format does not have; save it in the z-lab "
            "format"
        )
    content: dict[str, Any] = {
        "architectures": [ARCHITECTURE], "model_type": "qwen3", **layer_options(config),
        "vocab_size": config.vocab_size, "block_size": config.block_size,
        "mask_token_id": config.mask_token_id, "target_layer_ids": list(config.hidden_layers),
        "sample_from_anchor": config.next_token_layout, **markov_options(config.scorer),
        "tie_word_embeddings": False,
        "dtype": str(drafter.fc.weight.dtype).removeprefix("torch."),
    }  # fmt: skip
    if config.causal is not None:
        content["is_causal"] = config.causal
    if config.target_hidden_size != config.hidden_size:
        content["target_hidden_size"] = config.target_hidden_size
    if config.draft_vocab_size is not None:
        content["draft_vocab_size"] = config.draft_vocab_size
    if config.logit_scale != 1.0:
        content["logit_scale"] = config.logit_scale
    write_checkpoint(Path(directory), content, drafter.state_dict())
