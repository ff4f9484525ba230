"""The format of DFlash and DSpark drafters of vLLM's speculators library.

config.json has `speculators_model_type`, the options of Qwen3 layers in `transformer_layer_config`,
and `aux_hidden_state_layer_ids`, in which 0 is the output of the embedding: greater by one than
layer ids elsewhere. model.safetensors usually has embeddings of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lattice_bpd_drafters.config import SLIDING, MarkovConfig
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

KIND, MARKOV_KIND = "dflash", "dspark"
_TRAINING_ONLY = frozenset({"t2d", "verifier_lm_head.weight", "verifier_norm.weight"})


def recognizes(content: dict[str, Any]) -> bool:
    """Whether a config.json is of this format."""
    return content.get("speculators_model_type") in (KIND, MARKOV_KIND)


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
    kind = reader.get("speculators_model_type", None)
    if not recognizes(content):
        reader.fail("speculators_model_type", content.get("speculators_model_type"), repr(KIND))
    layers = reader.nested("transformer_layer_config")
    layers.require("model_type", ["qwen3"])
    fields = read_layer_options(layers)
    fields |= {
        "vocab_size": layers.integer("vocab_size"),
        "target_hidden_size": reader.integer("target_hidden_size", fields["hidden_size"]),
        "draft_vocab_size": reader.integer("draft_vocab_size", None),
        "block_size": reader.integer("block_size", minimum=2),
        "mask_token_id": reader.integer("mask_token_id", minimum=0),
        "hidden_layers": tuple(one - 1 for one in reader.integers("aux_hidden_state_layer_ids")),
        "causal": None,
        "next_token_layout": reader.boolean("sample_from_anchor", False),
    }
    if reader.boolean("sliding_window_non_causal", False):
        fields["causal"] = False
    if kind == MARKOV_KIND:
        fields["scorer"] = read_markov(reader, fields["draft_vocab_size"] or fields["vocab_size"])
    layers.finish()
    # Versions, and the method and target that its own library uses.
    reader.ignore("speculators_version", "speculators_config")
    reader.finish()
    return read_checkpoint_tensors(directory, fields, unused=_TRAINING_ONLY)


def save(drafter: BlockDrafter, directory: str | Path, *, verifier: str | None = None) -> None:
    """Write config.json and model.safetensors into a folder, which is made where it is missing.

    Args:
        drafter: the drafter.
        directory: of the checkpoint.
        verifier: name or path of the target, which servers of the format look up.

    Raises:
        OSError: the directory cannot be written.
        ValueError: the vocabulary is not known yet, or a config that the format cannot hold.
    """
    config = drafter.config
    _check_config(drafter)
    kind = KIND if config.scorer is None else MARKOV_KIND
    content: dict[str, Any] = {
        "architectures": ["DFlashSpeculator" if kind == KIND else "DSparkSpeculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.5.0",
        "speculators_config": _speculators_config(kind, config.num_slots, verifier),
        "transformer_layer_config": {
            "model_type": "qwen3", **layer_options(config), "vocab_size": config.vocab_size
        },
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "block_size": config.block_size, "target_hidden_size": config.target_hidden_size,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.hidden_layers],
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": SLIDING in config.layer_types
        and not any(map(config.is_causal, range(config.num_layers))),
        "sample_from_anchor": config.next_token_layout, "tie_word_embeddings": False,
        "dtype": str(drafter.fc.weight.dtype).removeprefix("torch."),
    }  # fmt: skip
    if isinstance(config.scorer, MarkovConfig):
        content |= markov_options(config.scorer)
    tensors = dict(drafter.state_dict())
    if drafter.d2t is not None:
        rows = torch.arange(len(drafter.d2t), device=drafter.d2t.device)
        tensors["t2d"] = torch.zeros(config.vocab_size or 0, dtype=torch.bool, device="cpu")
        tensors["t2d"][drafter.to_target_ids(rows).cpu()] = True
    write_checkpoint(Path(directory), content, tensors)


def _check_config(drafter: BlockDrafter) -> None:
    """Raise ValueError for what the format cannot say."""
    config = drafter.config
    if config.vocab_size is None:
        raise ValueError(
            "speculators.save: the drafter's vocabulary is not known; call attach(target) before "
            "saving"
        )
    # The format: full layers are bidirectional, sliding ones causal unless the option says not.
    layers = range(config.num_layers)
    is_causal = [config.is_causal(layer) for layer in layers]
    is_known = not any(is_causal) or is_causal == [config.is_sliding(layer) for layer in layers]
    is_other = not isinstance(config.scorer, MarkovConfig | None) or config.convolution is not None
    is_scaled = config.logit_softcap is not None or config.embedding_scale != 1.0
    if (
        is_other or is_scaled or not is_known
        or config.has_mask_embedding or config.logit_scale != 1.0
    ):  # fmt: skip
        raise ValueError(
            "speculators.save: the drafter has causal full-attention layers, a mask embedding, a "
            "logit scale or cap, an embedding scale, convolutions or a selector, which the format "
            "does not have; save it in the z-lab format"
        )


def _speculators_config(kind: str, num_slots: int, verifier: str | None) -> dict[str, Any]:
    """How servers of the format use the drafter: one chain of all slots."""
    method = {"proposal_type": "greedy", "speculative_tokens": num_slots}
    return {
        "algorithm": kind, "proposal_methods": [method], "default_proposal_method": "greedy",
        "verifier": {"name_or_path": verifier, "architectures": []},
    }  # fmt: skip
