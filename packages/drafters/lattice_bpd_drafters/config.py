"""Sizes and conventions of a block drafter, and checks of its target.

Block drafters add convolutions and transition scores to DFlash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from lattice_bpd.vocabulary import check_same_ids


@dataclass(frozen=True)
class ConvolutionConfig:
    """Grouped dynamic convolutions around both sublayers of each layer (DFlash2).

    Attributes:
        kernel_size: taps T, the position itself included.
        group_size: channels that share a dynamic tap, a divisor of D.
    """

    kernel_size: int
    group_size: int

    def check(self, hidden_size: int) -> None:
        """Raise ValueError for sizes that do not fit a drafter of width D."""
        _check_sizes(self, ("kernel_size", "group_size"))
        if hidden_size % self.group_size:
            raise _size_error(self, "group_size", f"a divisor of hidden_size {hidden_size}")


@dataclass(frozen=True)
class SelectorConfig:
    """The low-rank selector of DFlash2; see CandidateSelector.

    Attributes:
        rank: r, of the codebooks.
        top_k: k, candidates of a slot.
    """

    rank: int
    top_k: int

    def check(self) -> None:
        """Raise ValueError for sizes below 1."""
        _check_sizes(self, ("rank", "top_k"))


@dataclass(frozen=True)
class MarkovConfig:
    """The Markov head of DSpark; see MarkovHead.

    Attributes:
        rank: r, of the table of token pairs.
        is_gated: the previous token's vector is multiplied by a gate that reads the slot's state.
        top_k: k, candidates of a slot; the model was trained on the whole vocabulary.
    """

    rank: int
    is_gated: bool = False
    top_k: int = 16

    def check(self) -> None:
        """Raise ValueError for sizes below 1."""
        _check_sizes(self, ("rank", "top_k"))


@dataclass(frozen=True)
class LiLiCorrConfig:
    """The contextual factors of LiLiCorr; see LiLiCorrScorer.

    Attributes:
        hidden_size: w, width of the layers over candidates.
        factor_size: width of the vectors whose cosine is a score.
        num_layers: attention layers over all candidates, 0 or more.
        num_heads: attention heads of a layer, a divisor of hidden_size.
        mlp_ratio: width of a layer's MLP / hidden_size.
        top_k: k, the most candidates of a slot.
        logit_scale: lambda, factor on the cosines.
        vector_eps: smallest length that a vector is divided by.
    """

    hidden_size: int
    factor_size: int
    num_layers: int
    num_heads: int
    mlp_ratio: float
    top_k: int
    logit_scale: float
    vector_eps: float

    @property
    def inner_size(self) -> int:
        """Width of a layer's MLP."""
        return int(self.hidden_size * self.mlp_ratio)

    def check(self) -> None:
        """Raise ValueError for values that do not fit together."""
        _check_sizes(self, ("hidden_size", "factor_size", "num_heads", "top_k"))
        if self.num_layers < 0:
            raise _size_error(self, "num_layers", "0 or more")
        if self.hidden_size % self.num_heads:
            raise _size_error(self, "num_heads", f"a divisor of hidden_size {self.hidden_size}")
        for name in ("mlp_ratio", "logit_scale", "vector_eps"):
            if not getattr(self, name) > 0.0:
                raise _size_error(self, name, "a number above 0")
        if self.inner_size < 1:
            raise _size_error(self, "mlp_ratio", "1 / hidden_size or more")


ScorerConfig = SelectorConfig | MarkovConfig | LiLiCorrConfig


def _check_sizes(config: object, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise _size_error(config, name, "1 or more")


def _size_error(config: object, name: str, expected: str) -> ValueError:
    value = getattr(config, name)
    return ValueError(f"{type(config).__name__}: {name} is {value!r}; expected {expected}")


FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class BlockDrafterConfig:
    """Sizes and conventions of a BlockDrafter.

    Attributes:
        hidden_size: D, the width of the drafter's layers.
        num_layers: layers of the drafter, 1 or more.
        num_heads: attention heads of a layer.
        num_kv_heads: heads of keys and values, a divisor of num_heads.
        head_dim: width of a head, even.
        intermediate_size: width of the MLP.
        vocab_size: V of the target; None: not known before `attach`, in files that do not say it.
        target_hidden_size: width of one hidden state of the target.
        hidden_layers: the target's layers whose outputs are read, from 0; -1 is the output of the
            embedding. Layer i is `hidden_states[i + 1]` of a forward of `transformers` with
            output_hidden_states=True. A feature is their concatenation in this order.
        block_size: K, tokens of a block, the anchor included.
        mask_token_id: the token that fills the block after the anchor; None only where the drafter
            has a mask embedding.
        next_token_layout: False: the output at a mask predicts the token at its own position, so
            there are K - 1 slots (fill-in). True: every output predicts the next token, K slots.
        causal: whether a block position sees only those up to itself. None: causal in sliding
            layers, bidirectional in the others (the convention of servers for files that say
            nothing).
        layer_types: "full_attention" or "sliding_attention" of each layer; empty: all full.
        sliding_window: w; in sliding layers a position sees those less than w away from it, so
            w - 1 earlier ones. None if no layer is sliding.
        rms_norm_eps: of all norms.
        rope_theta: base of the rotary embedding.
        draft_vocab_size: rows of its own output embedding where these are fewer than V; their
            target ids come from the tensor `d2t`. None: V.
        has_own_embedding: it has an input embedding; otherwise it uses the target's.
        has_own_output: it has an output embedding; otherwise it uses the target's.
        has_mask_embedding: it has a vector for masks; otherwise they are embedded as tokens.
        logit_scale: factor on the logits.
        logit_softcap: c, for logits c * tanh(z / c) after the scale; None: no cap.
        embedding_scale: factor on the block's input embeddings, the anchor's included.
        convolution: of the convolutions around the sublayers; None: there are none.
        scorer: of the transition scores; None: the slots are independent.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int | None
    target_hidden_size: int
    hidden_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int | None
    next_token_layout: bool = False
    causal: bool | None = None
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    draft_vocab_size: int | None = None
    has_own_embedding: bool = False
    has_own_output: bool = False
    has_mask_embedding: bool = False
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    convolution: ConvolutionConfig | None = None
    scorer: ScorerConfig | None = None

    @property
    def num_slots(self) -> int:
        """H, predicted positions of a block."""
        return self.block_size if self.next_token_layout else self.block_size - 1

    @property
    def feature_size(self) -> int:
        """Width of a feature, n * target_hidden_size."""
        return len(self.hidden_layers) * self.target_hidden_size

    def is_sliding(self, layer: int) -> bool:
        """Whether a layer sees only a window."""
        return bool(self.layer_types) and self.layer_types[layer] == SLIDING

    def is_causal(self, layer: int) -> bool:
        """Whether a layer is causal within the block."""
        return self.is_sliding(layer) if self.causal is None else self.causal

    def check(self) -> None:
        """Raise ValueError, naming the field, for values that do not fit together."""
        sizes = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
                 "intermediate_size", "vocab_size", "target_hidden_size")  # fmt: skip
        for name in sizes:
            if (name, self.vocab_size) != ("vocab_size", None) and getattr(self, name) < 1:
                raise _error(name, getattr(self, name), "1 or more")
        if self.num_heads % self.num_kv_heads:
            raise _error("num_kv_heads", self.num_kv_heads, f"a divisor of {self.num_heads}")
        if self.head_dim % 2:
            raise _error("head_dim", self.head_dim, "an even number, for the rotary embedding")
        if self.num_slots < 1:
            raise _error("block_size", self.block_size, "2 or more, or 1 in the next-token layout")
        if not self.hidden_layers or min(self.hidden_layers) < -1:
            raise _error("hidden_layers", self.hidden_layers, "one layer or more, from 0 or -1")
        numbers = ("rms_norm_eps", "rope_theta", "logit_scale", "embedding_scale", "logit_softcap")
        for name in numbers:
            value = getattr(self, name)
            if value is not None and not value > 0.0:
                raise _error(name, value, "a number above 0")
        self._check_layer_types()
        self._check_tokens()
        self._check_scorer()

    def _check_scorer(self) -> None:
        if self.convolution is not None:
            self.convolution.check(self.hidden_size)
        if self.scorer is None:
            return
        self.scorer.check()
        size = self.draft_vocab_size or self.vocab_size
        if size is not None and self.scorer.top_k > size:
            raise _error("scorer.top_k", self.scorer.top_k, f"1..{size}, the vocabulary")
        if not isinstance(self.scorer, LiLiCorrConfig):
            if self.vocab_size is None:
                raise _error("vocab_size", None, "a number, as it scores pairs of tokens")
        elif self.next_token_layout or self.target_hidden_size != self.hidden_size:
            raise ValueError(
                "BlockDrafterConfig: the scorer is LiLiCorr's; expected the fill-in layout and "
                "hidden_size as the target's"
            )

    def _check_layer_types(self) -> None:
        if self.layer_types and len(self.layer_types) != self.num_layers:
            raise _error("layer_types", self.layer_types, f"{self.num_layers} of them, or none")
        for kind in self.layer_types:
            if kind not in (FULL, SLIDING):
                raise _error("layer_types", self.layer_types, f"{FULL!r} and {SLIDING!r} only")
        if SLIDING in self.layer_types and (self.sliding_window or 0) < 1:
            raise _error("sliding_window", self.sliding_window, "1 or more for sliding layers")

    def _check_tokens(self) -> None:
        if self.vocab_size is None:
            if self.has_own_embedding or self.has_own_output or self.draft_vocab_size is not None:
                raise _error("vocab_size", None, "a number, as it has embeddings of its own")
        elif self.draft_vocab_size is not None:
            if not 1 <= self.draft_vocab_size <= self.vocab_size:
                raise _error("draft_vocab_size", self.draft_vocab_size, f"1..{self.vocab_size}")
            if not self.has_own_output:
                raise _error("draft_vocab_size", self.draft_vocab_size, "has_own_output with it")
        if self.mask_token_id is None:
            if not self.has_mask_embedding:
                raise _error("mask_token_id", None, "a token, or has_mask_embedding")
        elif not self.has_mask_embedding:
            last = self.mask_token_id if self.vocab_size is None else self.vocab_size - 1
            if not 0 <= self.mask_token_id <= last:
                raise _error("mask_token_id", self.mask_token_id, f"0..{last}")


def _error(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"BlockDrafterConfig: {name} is {value!r}; expected {expected}")


_ADVICE = "give the target that it was trained for"


def checked_embeddings(
    target: PreTrainedModel, config: BlockDrafterConfig
) -> tuple[nn.Module, nn.Module]:
    """The input and output embeddings of a target that fits a drafter.

    Raises:
        ValueError: a target of another vocabulary or width, or with too few layers.
    """
    text = target.config.get_text_config()
    num_layers, width = int(text.num_hidden_layers), int(text.hidden_size)
    if max(config.hidden_layers) >= num_layers:
        raise ValueError(
            f"BlockDrafter: reads the target's layers {config.hidden_layers}; the target has "
            f"{num_layers}, expected 0..{num_layers - 1}; {_ADVICE}"
        )
    if width != config.target_hidden_size:
        raise ValueError(
            f"BlockDrafter: reads hidden states of width {config.target_hidden_size}; those of "
            f"the target have {width}; {_ADVICE}"
        )
    embedding: Any = target.get_input_embeddings()
    output: Any = target.get_output_embeddings()  # type: ignore[no-untyped-call]
    _check(embedding, "input", config, is_own=config.has_own_embedding)
    _check(output, "output", config, is_own=config.has_own_output)
    return embedding, output


def _check(module: Any, kind: str, config: BlockDrafterConfig, *, is_own: bool) -> None:
    if module is None:
        raise ValueError(f"BlockDrafter: the target has no {kind} embedding; expected a causal LM")
    rows, width = module.weight.shape
    size = config.vocab_size or rows
    if rows != size and not is_own:
        check_same_ids("BlockDrafter", "drafter", size, rows)
    elif rows != size:
        raise ValueError(
            f"BlockDrafter: has a vocabulary of {config.vocab_size:,} tokens and the target's "
            f"{kind} embedding {rows:,} rows; {_ADVICE}"
        )
    if not is_own and width != config.hidden_size:
        raise ValueError(
            f"BlockDrafter: is {config.hidden_size} wide and the target's {kind} embedding "
            f"{width}; expected the same, or a drafter with an {kind} embedding of its own"
        )
