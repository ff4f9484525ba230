"""vLLM's rejection sampler with fixed drafts, against the distribution of the target."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from conftest import in_child
from lattice_bpd_vllm.sampling import expansion_state, repair_expansion

REQUESTS, VOCAB, DRAFT = 6000, 12, (3, 7)  # two draft tokens for each request
TEMPERATURE, TOP_K, TOP_P = 0.7, 8, 0.9


def logits_of() -> torch.Tensor:
    """(2, VOCAB) of the two positions; the draft tokens are likely, but not the most likely."""
    logits = torch.linspace(-1.0, 2.0, VOCAB)[[4, 9, 1, 10, 6, 2, 8, 0, 11, 3, 7, 5]]
    return torch.stack([logits, logits.roll(4)])


def probabilities(logits: np.ndarray) -> np.ndarray:
    """softmax(logits / TEMPERATURE) of the TOP_K best tokens, of these the first TOP_P."""
    scaled = logits.astype(np.float64) / TEMPERATURE
    order = np.argsort(-scaled)[:TOP_K]
    weights = np.exp(scaled[order] - scaled[order[0]])
    weights /= weights.sum()
    kept = np.cumsum(weights) - weights < TOP_P
    result = np.zeros(len(logits))
    result[order[kept]] = weights[kept] / weights[kept].sum()
    return result


def expand_wrong(x: torch.Tensor, ends: Any, num_tokens: int, *_: Any, **__: Any) -> torch.Tensor:
    """What uninitialized memory may hold."""
    return x.new_full((num_tokens,), 3)


def run_sampler(function: str) -> np.ndarray:
    """(REQUESTS, 3) output tokens, -1 after the last; every third request is greedy."""
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler as sampler

    current_platform.import_kernels()
    if hasattr(current_platform, "register_triton_kernel_overrides"):
        current_platform.register_triton_kernel_overrides()
    state = expansion_state(sampler)
    if function == "wrong":
        sampler.expand_batch_to_tokens = expand_wrong
    elif state != "correct":
        repair_expansion(sampler)
    torch.manual_seed(0)
    greedy = torch.arange(REQUESTS) % 3 == 0
    metadata: Any = SimpleNamespace(
        temperature=torch.where(greedy, 0.0, TEMPERATURE), all_greedy=False, all_random=False,
        top_k=torch.where(greedy, VOCAB, TOP_K).int(), top_p=torch.where(greedy, 1.0, TOP_P),
        generators={},
    )  # fmt: skip
    ends = 2 * torch.arange(1, REQUESTS + 1, dtype=torch.int32)
    logits = sampler.apply_sampling_constraints(logits_of().repeat(REQUESTS, 1), ends, metadata)
    output = sampler.rejection_sample(
        torch.tensor(DRAFT, dtype=torch.int32).repeat(REQUESTS), [2] * REQUESTS, 2, ends, None,
        logits, torch.full((REQUESTS, 1), 5), metadata,
    )  # fmt: skip
    return output.numpy()


def deviations(output: np.ndarray) -> list[float]:
    """Chi-square of the sampled requests' tokens, in standard deviations, at both positions."""
    sampled = output[np.arange(REQUESTS) % 3 != 0]
    reached = [sampled[:, 0], sampled[sampled[:, 0] == DRAFT[0], 1]]
    result = []
    for tokens, logits in zip(reached, logits_of().numpy(), strict=True):
        expected = len(tokens) * probabilities(logits)
        counts = np.bincount(tokens, minlength=VOCAB)
        likely = expected > 0
        statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
        freedom = int(likely.sum()) - 1
        impossible = counts[~likely].sum()
        result.append((statistic - freedom) / np.sqrt(2 * freedom) + 1e6 * impossible)
    return result


def test_deterministic_drafts_keep_the_distribution() -> None:
    output = in_child(run_sampler, "right")
    assert len(output[(output[:, 0] == DRAFT[0])]) > 500  # draft tokens were accepted
    assert max(deviations(output)) < 5
    greedy = output[::3]
    assert (greedy[:, 0] == int(logits_of()[0].argmax())).all()
    assert (greedy[:, 1:] == -1).all()  # the draft's first token is not the best one


def test_wrong_temperatures_are_noticed() -> None:
    output = in_child(run_sampler, "wrong")
    assert max(deviations(output)) > 50
