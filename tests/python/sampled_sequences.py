"""Sequences of three tokens that a tiny target samples: their exact probabilities, and a test.

Sequences that decoding returned are compared with these by chi-square.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from lattice_bpd.decode import decode
from lattice_bpd.verify import Rejection
from planted_drafts import randomize

VOCAB, LENGTH, TEXTS, BATCHES = 4, 3, 400, 6
PROMPT = [1, 3, 0]
LEVEL = 1e-4 / 20  # so many distributions are tested, at most


def tiny_model(seed, spread=0.3, vocab=VOCAB):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    randomize(model, spread)
    return model


@torch.inference_mode()
def sequence_probabilities(model, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """(4^3,) float64, of all sequences of three tokens after the prompt, by transformers' warpers.

    A prefix is read alone and without a cache.
    """
    warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k is not None:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p is not None:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p is not None:
        warpers.append(MinPLogitsWarper(min_p))
    rows = {}
    for count in range(LENGTH):
        for prefix in itertools.product(range(VOCAB), repeat=count):
            ids = torch.tensor([[*PROMPT, *prefix]])
            logits = warpers(ids, model(ids).logits[:, -1].clone())[0].double()
            rows[prefix] = logits.softmax(0).tolist()
    sequences = itertools.product(range(VOCAB), repeat=LENGTH)
    return np.array([math.prod(rows[s[:n]][token] for n, token in enumerate(s)) for s in sequences])


def check_sequences(target, drafter, sampling: dict[str, Any], **options: Any) -> float:
    """Decode many times by rejection sampling; the sequences have the target's distribution.

    Returns:
        Calls of the target for each sequence.
    """
    counts, calls = np.zeros(VOCAB**LENGTH), 0
    for batch in range(BATCHES):
        rule = Rejection(**sampling, seed=list(range(batch * TEXTS, (batch + 1) * TEXTS)))
        for result in decode(
            target, [PROMPT] * TEXTS, drafter, max_new_tokens=LENGTH, acceptance=rule, **options
        ):
            first, second, third = result.token_ids
            counts[(first * VOCAB + second) * VOCAB + third] += 1
            calls += result.stats.target_calls
    assert_distribution(counts, sequence_probabilities(target, **sampling))
    return calls / counts.sum()


def assert_distribution(counts: np.ndarray, probabilities: np.ndarray) -> None:
    """By chi-square; what is expected less than 5 times is one class together."""
    expected = probabilities * counts.sum()
    assert counts[expected == 0].sum() == 0
    rare = (expected > 0) & (expected < 5)
    seen = np.append(counts[expected >= 5], counts[rare].sum())
    wanted = np.append(expected[expected >= 5], max(expected[rare].sum(), 1e-9))
    chi2 = ((seen - wanted) ** 2 / wanted).sum()
    freedom, x = len(wanted) - 1, -math.log(LEVEL)
    assert freedom > 0
    assert chi2 < freedom + 2 * math.sqrt(freedom * x) + 2 * x  # Laurent and Massart 2000, lemma 1
