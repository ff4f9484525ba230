"""Options of convolutions and transition scores in config.json."""

from __future__ import annotations

from typing import Any

from lattice_bpd._core import FormatError
from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.models.block_drafter.formats.config_reader import ConfigReader
from lattice_bpd.models.block_drafter.scorer_config import (
    ConvolutionConfig,
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)

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
    """The options of DSpark's Markov and confidence heads.

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
    has_confidence = reader.boolean("enable_confidence_head", False)
    reads_token = reader.boolean("confidence_head_with_markov", False)
    return MarkovConfig(
        rank=reader.integer("markov_rank"),
        is_gated=kind == "gated",
        has_confidence=has_confidence,
        confidence_reads_token=has_confidence and reads_token,
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
        "enable_confidence_head": scorer.has_confidence,
        "confidence_head_with_markov": scorer.confidence_reads_token,
    }
