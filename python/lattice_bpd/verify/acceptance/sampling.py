"""Lossless acceptance rules for sampling.

Sampled    samples the target's token at each position with shared Gumbel noise and accepts a draft
           token if it is that token. Works with any drafts; the output is the same tokens as plain
           sampling with the same seed (Gumbel coupling: Daliri, Musco, Suresh 2024).
Rejection  accepts a sampled draft token with probability min(1, r/q), r being the target's
           distribution minus what rejected samples have covered (Leviathan et al. 2023; without
           replacement: Jeon et al. 2024). Needs sampled drafts; the output has the distribution of
           plain sampling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.arguments import check_int
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.greedy import DraftCandidates

Seed = int | Sequence[int]


@dataclass(frozen=True, init=False)
class _Sampling:
    """What both rules share.

    Attributes:
        warp: the distribution to sample from.
        seed: an int for all texts, or one for each of a batch.
    """

    warp: Warp
    seed: Seed

    name: ClassVar[str]

    def __init__(
        self,
        temperature: float = 1.0,
        *,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: Seed = 0,
    ) -> None:
        object.__setattr__(self, "warp", Warp(float(temperature), top_k, top_p, min_p))
        if not hasattr(seed, "__len__"):
            seed = check_int("sampling: seed", seed, -(1 << 63))
        object.__setattr__(self, "seed", seed)

    def __str__(self) -> str:
        """Name and numbers as `parse_acceptance` reads them."""
        plain, warp = Warp(), self.warp
        named = [
            f"{key}={getattr(warp, key)}"
            for key in ("top_k", "top_p", "min_p")
            if getattr(warp, key) != getattr(plain, key)
        ]
        if isinstance(self.seed, int):
            named.append(f"seed={self.seed}")
        return f"{self.name}:{','.join([str(warp.temperature), *named])}"

    def key_of(self, sequence: int, prompt: Sequence[int]) -> int:
        """The key of a text's noise, from seed and prompt but not its index in the batch.

        Raises:
            ValueError: fewer seeds than texts.
        """
        seed = self.seed
        if not isinstance(seed, int):
            if sequence >= len(seed):
                raise ValueError(
                    f"sampling: found {len(seed)} seeds for {sequence + 1} texts or more; expected "
                    "one for each, or an int for all"
                )
            seed = seed[sequence]
        content = str(int(seed)).encode() + b"\0" + np.asarray(prompt, np.int64).tobytes()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class _TextState:
    """What both selectors keep of their text.

    Args:
        warp: the distribution to sample from.
        key: of the random numbers, which must differ from that of sampled drafts.
        is_warped: whether `choose` gets logits that are warped already.

    Attributes:
        warp: see Args, as for key.
        position: tokens selected so far, the position of the next one.
    """

    ended = False

    def __init__(self, warp: Warp, key: int, *, is_warped: bool = False) -> None:
        self.warp, self.key, self.position = warp, key, 0
        self._applied = Warp() if is_warped else warp

    def distribution(self, logits: Tensor) -> npt.NDArray[np.float32]:
        """(V,) logits of the distribution that tokens are sampled from, of the target's (V,)."""
        return self._applied.apply(logits)


class Sampled(_Sampling):
    """Sample, and accept a draft token if and only if it is the target's sample.

    The sample is the argmax of log p + Gumbel noise, and the noise is a function of seed, prompt,
    position and token. So, up to rounding of the target's logits, the output does not depend on
    drafts, batch size or verification layout: it is that of plain sampling (strategy "greedy"
    under this rule) with the same seed. `TreeDrafter` shares the noise.

    Args:
        temperature: divides the logits, above 0.
        top_k: see Warp, as for top_p and min_p.
        top_p: see there.
        min_p: see there.
        seed: any int, or one for each text of a batch. Equal prompts with equal seeds give equal
            outputs.

    Raises:
        ValueError: a number out of range.
    """

    name: ClassVar[str] = "sampled"
    lossless: ClassVar[bool] = True
    guarantee: ClassVar[str] = "the tokens that plain sampling gives with the same seed"

    def start(self, sequence: int, prompt: Sequence[int]) -> SampledSelector:
        """See Acceptance."""
        return SampledSelector(self.warp, self.key_of(sequence, prompt))


class SampledSelector(_TextState):
    """Samples the tokens of one text; see Sampled."""

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int:  # noqa: ARG002
        """See `lattice_bpd.verify.greedy.TokenSelector`."""
        token = _core.sample_token(self.distribution(logits), 1.0, self.key, self.position)
        self.position += 1
        return token


@dataclass(frozen=True, init=False)
class Rejection(_Sampling):
    """Sample, with multi-draft rejection sampling without replacement of sampled drafts.

    For sampled drafts (`SampledTreeDrafter`, `DraftModelDrafter`): accepts more of them than
    Sampled if their distribution is close to the target's and the noise is not shared. Other draft
    tokens are accepted if they are the target's sample.

    Args:
        temperature: see Sampled, as for all other arguments.
        top_k: see there.
        top_p: see there.
        min_p: see there.
        seed: see there; the output depends on the drafts too, its distribution does not.
        lenience: l, above 0, at most 1 (Leviathan et al. 2023, A.5). Below 1 a sampled draft token
            is accepted with probability min(1, p / (l q)): more of them, so the output has another
            distribution, in which no token is more than 1 / l times as probable as under plain
            sampling after the same text.

    Raises:
        ValueError: a number out of range.

    Attributes:
        lenience: see Args.
    """

    lenience: float

    name: ClassVar[str] = "rejection"

    def __init__(
        self,
        temperature: float = 1.0,
        *,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: Seed = 0,
        lenience: float = 1.0,
    ) -> None:
        super().__init__(temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
        if not 0.0 < lenience <= 1.0:
            raise ValueError(f"sampling: lenience is {lenience}; expected above 0, at most 1")
        object.__setattr__(self, "lenience", lenience)

    def __str__(self) -> str:
        """See _Sampling."""
        text = super().__str__()
        return text if self.lossless else f"{text},lenience={self.lenience}"

    @property
    def lossless(self) -> bool:
        """Whether lenience is 1."""
        return self.lenience == 1.0

    @property
    def guarantee(self) -> str:
        """See Acceptance."""
        if self.lossless:
            return "the distribution of plain sampling, exactly"
        return f"no token more than {1.0 / self.lenience:g} times as probable as in plain sampling"

    def start(self, sequence: int, prompt: Sequence[int]) -> RejectionSelector:
        """See Acceptance."""
        return RejectionSelector(self.warp, self.key_of(sequence, prompt), self.lenience)


class RejectionSelector(_TextState):
    """Accepts and samples the tokens of one text, with the lenience of the rule; see Rejection."""

    def __init__(self, warp: Warp, key: int, lenience: float = 1.0) -> None:
        super().__init__(warp, key)
        self._lenience = lenience

    def choose(self, logits: Tensor, candidates: DraftCandidates) -> int:
        """See `lattice_bpd.verify.greedy.TokenSelector`."""
        sampled_from = candidates.sampled_from
        draws = [] if sampled_from is None else candidates.token_ids
        token_ids, probabilities = ((), ()) if sampled_from is None else sampled_from
        token = _core.rejection_sample(
            self.distribution(logits),
            np.array(draws, np.int32),
            np.asarray(token_ids, np.int32),
            np.asarray(probabilities, np.float64),
            self.key,
            self.position,
            self._lenience,
        )
        self.position += 1
        return token
