"""Sampling by the settings of a GenerationConfig, with the acceptance rule `Sampled`."""

from __future__ import annotations

from typing import Any

import torch

from lattice_bpd.verify.acceptance.sampling import Sampled, SampledChooser


class ProcessedSampling(Sampled):
    """Sampled, for logits that transformers' own processors have warped already.

    The processors end in temperature, top-k, top-p and the like, so the draw is from the softmax of
    what they give. The temperature is kept for drafters, which draft at the same one.

    Args:
        temperature: that the processors apply.
        seed: see Sampled.
    """

    def start(self, sequence: int, prompt: Any) -> SampledChooser:
        """See Acceptance."""
        return SampledChooser(self.warp, self.key_of(sequence, prompt), is_warped=True)


def sampling_rule(temperature: float | None, count: int) -> ProcessedSampling:
    """The rule that samples `count` texts, with seeds from torch's default generator.

    Args:
        temperature: of the settings; None: 1.
        count: texts.
    """
    seeds = torch.randint(0, 2**63 - 1, (count,)).tolist()
    return ProcessedSampling(1.0 if temperature is None else float(temperature), seed=seeds)
