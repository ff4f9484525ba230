"""The acceptance rule `Sampled` for the sampling settings of a GenerationConfig."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lattice_bpd.verify.acceptance.sampling import Sampled, SampledSelector

_LEAST = 1e-9  # transformers takes a top_p of 0 and a min_p of 1, both the most likely token


class ProcessedSampling(Sampled):
    """Sampled for logits that transformers' processors have warped already.

    The processors apply temperature, top-k, top-p and others, so tokens are sampled from the
    softmax of the processed logits. Drafters use the rule's own settings, which are those of the
    processors.

    Args:
        temperature: of the processors, as for top_k, top_p and min_p.
        seed: see Sampled.
    """

    def start(self, sequence: int, prompt: Any) -> SampledSelector:
        """See Acceptance."""
        return SampledSelector(self.warp, self.key_of(sequence, prompt), is_warped=True)


def sampling_rule(setting: Callable[[str], Any], count: int) -> ProcessedSampling:
    """The rule for sampling `count` texts, with seeds from torch's default generator.

    Args:
        setting: returns a setting of the generation config by its name; None: the default.
        count: number of texts.
    """
    seeds = torch.randint(0, 2**63 - 1, (count,), device="cpu").tolist()
    temperature, top_p, min_p = (setting(name) for name in ("temperature", "top_p", "min_p"))
    return ProcessedSampling(
        1.0 if temperature is None else float(temperature),
        top_k=setting("top_k") or None,
        top_p=1.0 if top_p is None else max(float(top_p), _LEAST),
        min_p=0.0 if min_p is None else min(float(min_p), 1.0 - _LEAST),
        seed=seeds,
    )
