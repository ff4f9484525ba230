"""What the formats share: options, names and shapes of tensors, and a drafter as its files hold it.

Tensors have the names of the z-lab format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lattice_bpd._core import FormatError
from lattice_bpd_drafters.config import (
    BlockDrafterConfig,
    ConvolutionConfig,
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)
from lattice_bpd_drafters.format_files import CONFIG_NAME, ConfigReader, check_tensors, read_tensors
from lattice_bpd_drafters.lilicorr import NUM_FEATURES

_MARKOV_KINDS = ("vanilla", "gated")
_TRANSFORMS = {
    "embedding_scale": "input_embedding_scale",
    "logit_scale": "output_multiplier",
    "logit_softcap": "final_logit_softcapping",
}


def read_convolution(reader: ConfigReader) -> ConvolutionConfig | None:
    """`conv_kernel_size` and `conv_group_size`: both or none.

    Raises:
        FormatError: one of them alone, or out of range.
    """
    keys = ("conv_kernel_size", "conv_group_size")
    if not any(map(reader.has, keys)):
        return None
    return ConvolutionConfig(*(reader.integer(key) for key in keys))


def read_selector(reader: ConfigReader) -> SelectorConfig:
    """The options of DFlash2's selector."""
    return SelectorConfig(reader.integer("selector_rank"), reader.integer("selector_top_k"))


def read_lilicorr(reader: ConfigReader, hidden_size: int) -> LiLiCorrConfig:
    """The options of LiLiCorr, of which none has a default.

    Lambda and the eps of unit vectors change no shape, so that only the config tells them.
    """
    reader.require("lilicorr_enabled", [True])
    return LiLiCorrConfig(
        hidden_size=reader.integer("lilicorr_hidden_size", minimum=0) or hidden_size,
        factor_size=reader.integer("lilicorr_factor_dim"),
        num_layers=reader.integer("lilicorr_num_layers", minimum=0),
        num_heads=reader.integer("lilicorr_num_heads"),
        mlp_ratio=reader.positive("lilicorr_mlp_ratio"),
        top_k=reader.integer("lilicorr_candidate_topk"),
        logit_scale=reader.positive("lilicorr_logit_scale"),
        vector_eps=reader.positive("lilicorr_vector_eps"),
    )


def read_markov(reader: ConfigReader, vocab_size: int) -> MarkovConfig:
    """The options of DSpark's Markov head; a confidence head changes no score and is left out.

    The number of candidates is no part of the formats; it is 16, or the vocabulary.

    Raises:
        FormatError: a head that depends on whole prefixes, or of an unknown kind.
    """
    kind = reader.get("markov_head_type", "vanilla")
    if kind == "rnn":
        raise FormatError(
            f"{reader.path}: is a DSpark drafter with {reader.prefix}markov_head_type 'rnn'; its "
            "logits depend on whole prefixes of the draft, which is not supported; expected "
            f"{' or '.join(map(repr, _MARKOV_KINDS))}"
        )
    reader.require("markov_head_type", _MARKOV_KINDS)
    reader.ignore("num_anchors")  # of its training
    reader.ignore("enable_confidence_head", "confidence_head_with_markov")
    return MarkovConfig(
        rank=reader.integer("markov_rank"),
        is_gated=kind == "gated",
        top_k=min(MarkovConfig.top_k, vocab_size),
    )


def read_transforms(reader: ConfigReader, inner: ConfigReader) -> dict[str, Any]:
    """Scales and the cap of logits, in the file's object or in `dflash_config`.

    Raises:
        FormatError: two different values of one of them.
    """
    found: dict[str, Any] = {"logit_scale": reader.positive("logit_scale", None)}
    for field, key in _TRANSFORMS.items():
        values = [found.get(field), reader.positive(key, None), inner.positive(key, None)]
        given = {value for value in values if value is not None}
        if len(given) > 1:
            inner.fail(key, sorted(given), "one value, here, above and in logit_scale")
        found[field] = next(iter(given), None)
    return {field: value for field, value in found.items() if value is not None}


def transform_options(config: BlockDrafterConfig) -> dict[str, Any]:
    """The options that `read_transforms` reads, in the file's object."""
    options: dict[str, Any] = {}
    if config.embedding_scale != 1.0:
        options["input_embedding_scale"] = config.embedding_scale
    if config.logit_scale != 1.0:
        options["output_multiplier" if config.logit_softcap else "logit_scale"] = config.logit_scale
    if config.logit_softcap is not None:
        options["final_logit_softcapping"] = config.logit_softcap
    return options


def convolution_options(config: BlockDrafterConfig) -> dict[str, Any]:
    """The options that `read_convolution` reads."""
    sizes = config.convolution
    if sizes is None:
        return {}
    return {"conv_kernel_size": sizes.kernel_size, "conv_group_size": sizes.group_size}


def scorer_options(config: BlockDrafterConfig) -> dict[str, Any]:
    """The options that describe the transition scores, in `dflash_config`."""
    scorer = config.scorer
    if isinstance(scorer, SelectorConfig):
        return {"selector_rank": scorer.rank, "selector_top_k": scorer.top_k}
    if isinstance(scorer, MarkovConfig):
        return {"projector_type": "dspark", **markov_options(scorer)}
    if not isinstance(scorer, LiLiCorrConfig):
        return {}
    return {
        "projector_type": "lilicorr", "lilicorr_enabled": True,
        "lilicorr_candidate_topk": scorer.top_k, "lilicorr_hidden_size": scorer.hidden_size,
        "lilicorr_factor_dim": scorer.factor_size, "lilicorr_num_layers": scorer.num_layers,
        "lilicorr_num_heads": scorer.num_heads, "lilicorr_mlp_ratio": scorer.mlp_ratio,
        "lilicorr_logit_scale": scorer.logit_scale, "lilicorr_vector_eps": scorer.vector_eps,
    }  # fmt: skip


def markov_options(scorer: MarkovConfig) -> dict[str, Any]:
    """The options that `read_markov` reads."""
    return {
        "markov_rank": scorer.rank,
        "markov_head_type": "gated" if scorer.is_gated else "vanilla",
        "enable_confidence_head": False,
    }


Shapes = dict[str, tuple[int, ...]]

# LiLiCorr's training module numbers the parts of its MLPs; its servers name them.
_NUMBERED = (
    (re.compile(r"^lilicorr\.feature_mlp\.0\."), "lilicorr.feature_norm."),
    (re.compile(r"^lilicorr\.feature_mlp\.1\."), "lilicorr.feature_mlp.up_proj."),
    (re.compile(r"^lilicorr\.feature_mlp\.3\."), "lilicorr.feature_mlp.down_proj."),
    (re.compile(r"^(lilicorr\.layers\.\d+\.mlp)\.0\."), r"\1.up_proj."),
    (re.compile(r"^(lilicorr\.layers\.\d+\.mlp)\.2\."), r"\1.down_proj."),
)


def named_parts(name: str) -> str:
    """A tensor's name in the spelling of the servers."""
    for numbered, named in _NUMBERED:
        name = numbered.sub(named, name)
    return name


def convolution_shapes(config: BlockDrafterConfig) -> Shapes:
    """The tensors of one layer's convolutions, without the prefix `layers.{i}.`."""
    sizes, shapes = config.convolution, Shapes()
    if sizes is not None:
        size, taps = config.hidden_size, sizes.kernel_size
        for name in ("attention_conv", "mlp_conv"):
            shapes[f"{name}.base_kernel"] = (2, taps, size)
            rows = 2 * taps * (size // sizes.group_size)
            shapes[f"{name}.kernel_projection.weight"] = (rows, size)
    return shapes


def scorer_shapes(config: BlockDrafterConfig) -> Shapes:
    """The tensors of the scorer."""
    scorer, size, vocab = config.scorer, config.hidden_size, config.vocab_size or 0
    if isinstance(scorer, SelectorConfig):
        return {
            "candidate_selector.predecessor_codebook": (vocab, scorer.rank),
            "candidate_selector.successor_codebook": (vocab, scorer.rank),
            "candidate_selector.hidden_projection.weight": (scorer.rank, size),
        }
    if isinstance(scorer, MarkovConfig):
        return _markov_shapes(scorer, config.draft_vocab_size or vocab, vocab, size)
    if isinstance(scorer, LiLiCorrConfig):
        shapes = _lilicorr_shapes(scorer, config.block_size, size)
        return {f"lilicorr.{name}": shape for name, shape in shapes.items()}
    return {}


def _markov_shapes(scorer: MarkovConfig, draft_size: int, vocab: int, size: int) -> Shapes:
    rank = scorer.rank
    shapes: Shapes = {
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (draft_size, rank),
    }
    if scorer.is_gated:
        shapes |= _linear("markov_head.gate_proj", size + rank, rank)
    return shapes


def _lilicorr_shapes(scorer: LiLiCorrConfig, block_size: int, size: int) -> Shapes:
    width, heads, inner = scorer.hidden_size, scorer.num_heads, scorer.inner_size
    shapes: Shapes = {
        "feature_norm.weight": (NUM_FEATURES,), "feature_norm.bias": (NUM_FEATURES,),
        "slot_embedding": (1, 1, block_size - 1, 1, width),
        "rank_embedding": (1, 1, 1, scorer.top_k, width),
        "relative_slot_bias": (heads, 2 * block_size - 1), "same_slot_bias": (heads,),
        "output_norm.weight": (width,), "anchor_norm.weight": (width,),
        **_linear("pass_hidden_proj", size, width), **_linear("context_proj", size, width),
        **_linear("feature_mlp.up_proj", NUM_FEATURES, width),
        **_linear("feature_mlp.down_proj", width, width),
        **_linear("factor_input_proj", 3 * width, width),
    }  # fmt: skip
    if width != size:
        shapes |= _linear("token_proj", size, width)
    for name in ("out_head", "in_head", "anchor_out_head"):
        shapes |= _linear(name, width, scorer.factor_size)
    for layer in range(scorer.num_layers):
        parts: Shapes = {
            "attn_norm.weight": (width,), "mlp_norm.weight": (width,),
            "attn.in_proj_weight": (3 * width, width), "attn.in_proj_bias": (3 * width,),
            **_linear("attn.out_proj", width, width), **_linear("mlp.up_proj", width, inner),
            **_linear("mlp.down_proj", inner, width),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


_CONFIDENCE_HEAD = {"confidence_head.proj.weight", "confidence_head.proj.bias"}
_OWN = {
    "embed_tokens.weight": "has_own_embedding",
    "lm_head.weight": "has_own_output",
    "mask_embedding": "has_mask_embedding",
}


@dataclass(frozen=True)
class Checkpoint:
    """What a format's `read` returns.

    Attributes:
        config: sizes and conventions.
        tensors: the state dict of `BlockDrafter(config)`, on the CPU, in the file's dtype.
    """

    config: BlockDrafterConfig
    tensors: dict[str, Tensor]


def read_checkpoint_tensors(
    directory: Path,
    options: Mapping[str, Any],
    *,
    names: Mapping[str, str] | None = None,
    unused: frozenset[str] = frozenset({"t2d"}),
) -> Checkpoint:
    """Read the tensors, complete the config by what only they tell, and check both.

    Args:
        directory: of the checkpoint.
        options: fields of BlockDrafterConfig, without has_own_embedding and the like, which are
            read off the tensors.
        names: names in the file -> names of the z-lab format, where they differ.
        unused: tensors that no drafter needs.

    Raises:
        FormatError: files that are damaged, or do not fit each other.
    """
    path, stored = read_tensors(directory)
    renamed = {named_parts((names or {}).get(name, name)): value for name, value in stored.items()}
    if len(renamed) < len(stored):
        raise FormatError(
            f"{path}: has two tensors that are {_first_twin(stored)} in other spellings; expected "
            "one of them; save the checkpoint again"
        )
    tensors = {
        name: value for name, value in renamed.items() if name not in unused | _CONFIDENCE_HEAD
    }
    fields = dict(options)
    fields |= {field: name in tensors for name, field in _OWN.items()}
    if "mask_embedding" in tensors:
        tensors["mask_embedding"] = tensors["mask_embedding"].flatten()
    if fields.get("draft_vocab_size") == fields["vocab_size"]:
        fields["draft_vocab_size"] = None
        tensors.pop("d2t", None)
    config = BlockDrafterConfig(**fields)
    try:
        config.check()
    except ValueError as error:
        raise FormatError(
            f"{directory / CONFIG_NAME}: {error}; copy the checkpoint again"
        ) from None
    count = config.num_layers
    if isinstance(config.scorer, LiLiCorrConfig):
        count = max(count, config.scorer.num_layers)
    if count > len(tensors):  # before names of that many layers are listed
        raise FormatError(
            f"{path}: has {len(tensors)} tensors; expected those of {count} layers, as "
            f"{CONFIG_NAME} says; copy the checkpoint again"
        )
    check_tensors(path, tensors, tensor_shapes(config))
    _check_d2t(path, config, tensors.get("d2t"))
    return Checkpoint(config, tensors)


def tensor_shapes(config: BlockDrafterConfig) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the state dict of `BlockDrafter(config)`."""
    size, inner, width = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_heads * width, config.num_kv_heads * width
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (size, config.feature_size), "hidden_norm.weight": (size,),
        "norm.weight": (size,),
    }  # fmt: skip
    for layer in range(config.num_layers):
        parts = {
            "input_layernorm.weight": (size,), "post_attention_layernorm.weight": (size,),
            "self_attn.q_proj.weight": (heads, size), "self_attn.k_proj.weight": (kv_heads, size),
            "self_attn.v_proj.weight": (kv_heads, size), "self_attn.o_proj.weight": (size, heads),
            "self_attn.q_norm.weight": (width,), "self_attn.k_norm.weight": (width,),
            "mlp.gate_proj.weight": (inner, size), "mlp.up_proj.weight": (inner, size),
            "mlp.down_proj.weight": (size, inner), **convolution_shapes(config),
        }  # fmt: skip
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    rows = config.draft_vocab_size or config.vocab_size or 0
    if config.has_own_embedding:
        shapes["embed_tokens.weight"] = (config.vocab_size or 0, size)
    if config.has_own_output:
        shapes["lm_head.weight"] = (rows, size)
    if config.has_mask_embedding:
        shapes["mask_embedding"] = (size,)
    if config.draft_vocab_size is not None:
        shapes["d2t"] = (rows,)
    return shapes | scorer_shapes(config)


def _first_twin(names: Iterable[str]) -> str:
    """The first name that two tensors have once they are spelled alike."""
    seen: set[str] = set()
    for name in map(named_parts, names):
        if name in seen:
            return name
        seen.add(name)
    return "equal"


def _check_d2t(path: Path, config: BlockDrafterConfig, d2t: Tensor | None) -> None:
    """Raise FormatError if a draft id's target id is outside of the vocabulary."""
    if d2t is None or config.vocab_size is None:
        return
    targets = d2t + torch.arange(len(d2t), device=d2t.device)
    if targets.min() < 0 or targets.max() >= config.vocab_size:
        raise FormatError(
            f"{path}: d2t leads to target ids {int(targets.min())}..{int(targets.max())}; "
            f"expected 0..{config.vocab_size - 1} (target id = draft id + d2t[draft id])"
        )
