"""Names and shapes of the tensors of convolutions and transition scores."""

from __future__ import annotations

import re

from lattice_bpd.models.block_drafter.config import BlockDrafterConfig
from lattice_bpd.models.block_drafter.lilicorr import NUM_FEATURES
from lattice_bpd.models.block_drafter.scorer_config import (
    LiLiCorrConfig,
    MarkovConfig,
    SelectorConfig,
)

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
    if scorer.has_confidence:
        shapes |= _linear("confidence_head.proj", size + rank * scorer.confidence_reads_token, 1)
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
