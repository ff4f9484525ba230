"""The acceptance rule `Sampled` for the sampling settings of a GenerationConfig."""

from __future__ import annotations

from typing import Any

import torch

from lattice_bpd.verify.acceptance.sampling import Sampled, SampledSelector


class ProcessedSampling(Sampled):
    """Sampled for logits that transformers' processors have warped already.

    The processors apply temperature, top-k, top-p and others, so tokens are sampled from the
    softmax of the processed logits. Drafters draft at the same temperature.

    Args:
        temperature: of the processors.
        seed: see Sampled.
    """

    def start(self, sequence: int, prompt: Any) -> SampledSelector:
        """See Acceptance."""
        return SampledSelector(self.warp, self.key_of(sequence, prompt), is_warped=True)


def sampling_rule(temperature: float | None, count: int) -> ProcessedSampling:
    """The rule for sampling `count` texts, with seeds from torch's default generator.

    Args:
        temperature: of the settings; None: 1.
        count: number of texts.
    """
    seeds = torch.randint(0, 2**63 - 1, (count,)).tolist()
    return ProcessedSampling(1.0 if temperature is None else float(temperature), seed=seeds)
