"""Lossless sampling: the output has the distribution of plain sampling, or is the same, by seed.

Sampled    the target draws its own token at each place, with noise that belongs to the place; a
           draft token is accepted if it is that token. Right for any draft, and the same tokens
           as plain sampling with the same seed (Gumbel coupling: Daliri, Musco, Suresh 2024).
Rejection  draft tokens are draws; each is accepted with probability min(1, r/q), r the target's
           distribution less what rejected draws have covered (Leviathan et al. 2023; without
           replacement: Jeon et al. 2024). Right for drafts that were drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from lattice_bpd import _core
from lattice_bpd.verify.acceptance.warp import Warp
from lattice_bpd.verify.verification import Offer

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
        object.__setattr__(self, "warp", Warp(temperature, top_k, top_p, min_p))
        object.__setattr__(self, "seed", seed)

    def __str__(self) -> str:
        """Name and numbers in the form that `parse_acceptance` reads."""
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
        """The key of a text's noise: of seed and prompt, so that its place in a batch is nothing.

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


class _Drawing:
    """What both choosers keep of their text."""

    ended = False

    def __init__(self, warp: Warp, key: int) -> None:
        self.warp, self.key, self.position = warp, key, 0


class Sampled(_Sampling):
    """Sample, and keep a draft token if and only if it is the target's own draw.

    The draw of a place is argmax of log p + Gumbel noise, and the noise is a function of seed,
    prompt, place and token. So the output does not depend on drafts, batch size or form, up to
    rounding of the target's logits: it is what plain sampling, strategy "greedy" under this rule,
    gives with the same seed. `TreeDrafter` knows the noise and drafts what it favours.

    Args:
        temperature: divides the logits, above 0.
        top_k: sample among so many most likely tokens; None: all.
        top_p: sample among the fewest most likely tokens that hold this probability, (0, 1].
        min_p: sample among tokens of at least this share of the most likely one's probability.
        seed: any int, or one for each text of a batch. Texts of the same prompt and seed come out
            the same.

    Raises:
        ValueError: a number out of range.
    """

    name: ClassVar[str] = "sampled"
    lossless: ClassVar[bool] = True
    guarantee: ClassVar[str] = "the tokens that plain sampling gives with the same seed"

    def start(self, sequence: int, prompt: Sequence[int]) -> SampledChooser:
        """See Acceptance."""
        return SampledChooser(self.warp, self.key_of(sequence, prompt))


class SampledChooser(_Drawing):
    """Draws the tokens of one text; see Sampled.

    Args:
        warp: the distribution to sample from.
        key: of the noise.
        is_warped: whether `choose` is given logits that are warped already.

    Attributes:
        warp: the distribution to sample from.
        key: of the noise.
        position: tokens drawn so far, and so the place of the next one.
    """

    def __init__(self, warp: Warp, key: int, *, is_warped: bool = False) -> None:
        super().__init__(warp, key)
        self._applied = Warp() if is_warped else warp

    def choose(self, logits: Tensor, offer: Offer) -> int:  # noqa: ARG002
        """See `lattice_bpd.verify.Chooser`."""
        token = _core.sample_token(self._applied.apply(logits), 1.0, self.key, self.position)
        self.position += 1
        return token


class Rejection(_Sampling):
    """Sample, and keep drawn draft tokens by multi-draft rejection without replacement.

    For drafts that were drawn (`DrawnTreeDrafter`): accepts more of them than Sampled where they
    come close to the target's distribution and the noise is not known. Tokens that were not drawn
    are kept if they are the target's own draw.

    Args:
        temperature: see Sampled, as for all arguments.
        top_k: see there.
        top_p: see there.
        min_p: see there.
        seed: see there; the output depends on the drafts too, its distribution does not.

    Raises:
        ValueError: a number out of range.
    """

    name: ClassVar[str] = "rejection"
    lossless: ClassVar[bool] = True
    guarantee: ClassVar[str] = "the distribution of plain sampling, exactly"

    def start(self, sequence: int, prompt: Sequence[int]) -> RejectionChooser:
        """See Acceptance."""
        return RejectionChooser(self.warp, self.key_of(sequence, prompt))


class RejectionChooser(_Drawing):
    """Accepts and draws the tokens of one text; see Rejection.

    Attributes:
        warp: the distribution to sample from.
        key: of the random numbers; that of drafts must differ.
        position: tokens chosen so far.
    """

    def choose(self, logits: Tensor, offer: Offer) -> int:
        """See `lattice_bpd.verify.Chooser`."""
        drawn_from = offer.drawn_from
        draws = [] if drawn_from is None else offer.token_ids
        token_ids, probabilities = ((), ()) if drawn_from is None else drawn_from
        token = _core.choose_draw(
            self.warp.apply(logits),
            np.array(draws, np.int32),
            np.asarray(token_ids, np.int32),
            np.asarray(probabilities, np.float64),
            self.key,
            self.position,
        )
        self.position += 1
        return token
