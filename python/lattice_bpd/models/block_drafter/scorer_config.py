"""The sizes of what block drafters add to DFlash: convolutions and transition scores."""

from __future__ import annotations

from dataclasses import dataclass


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
            raise _error(self, "group_size", f"a divisor of hidden_size {hidden_size}")


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
        has_confidence: there is a confidence head.
        confidence_reads_token: the confidence head reads the previous token's vector too.
        top_k: k, candidates of a slot; the model was trained on the whole vocabulary.
    """

    rank: int
    is_gated: bool = False
    has_confidence: bool = False
    confidence_reads_token: bool = False
    top_k: int = 16

    def check(self) -> None:
        """Raise ValueError for sizes below 1, or options of a confidence head without one."""
        _check_sizes(self, ("rank", "top_k"))
        if self.confidence_reads_token and not self.has_confidence:
            raise _error(self, "confidence_reads_token", "has_confidence with it")


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
            raise _error(self, "num_layers", "0 or more")
        if self.hidden_size % self.num_heads:
            raise _error(self, "num_heads", f"a divisor of hidden_size {self.hidden_size}")
        for name in ("mlp_ratio", "logit_scale", "vector_eps"):
            if not getattr(self, name) > 0.0:
                raise _error(self, name, "a number above 0")
        if self.inner_size < 1:
            raise _error(self, "mlp_ratio", "1 / hidden_size or more")


ScorerConfig = SelectorConfig | MarkovConfig | LiLiCorrConfig


def _check_sizes(config: object, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise _error(config, name, "1 or more")


def _error(config: object, name: str, expected: str) -> ValueError:
    value = getattr(config, name)
    return ValueError(f"{type(config).__name__}: {name} is {value!r}; expected {expected}")
