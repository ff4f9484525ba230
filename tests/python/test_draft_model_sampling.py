"""Draws of a draft model under rejection: sequences have the target's own distribution."""

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lattice_bpd import verify
from lattice_bpd.decode import decode
from lattice_bpd.decode.drafters import DraftModelDrafter

VOCAB, LENGTH, TEXTS = 4, 3, 400
PROMPT = [1, 3, 0]
LEVEL = 1e-4 / 3  # three distributions are tested

if not hasattr(verify, "Rejection"):
    pytest.skip("no acceptance rule that samples", allow_module_level=True)


def tiny_model(seed, spread):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, spread)
    return model


@torch.inference_mode()
def sequence_probabilities(model, temperature):
    """(4^3,) float64, of all sequences of three tokens behind the prompt."""
    found = []
    for tokens in itertools.product(range(VOCAB), repeat=LENGTH):
        logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0].double() / temperature
        shares = logits.log_softmax(-1)[len(PROMPT) - 1 : -1]
        found.append(math.exp(sum(float(shares[n, token]) for n, token in enumerate(tokens))))
    return np.array(found)


@pytest.mark.parametrize("draws", [[1, 1], [3, 2], [2, 1]])
def test_draws_of_a_draft_model_leave_the_targets_distribution(draws):
    target, small = tiny_model(0, 0.3), tiny_model(5, 0.3)
    drafter = DraftModelDrafter(small, shape="sampled", draws=draws, top_k=VOCAB, seed=11)
    counts, calls = np.zeros(VOCAB**LENGTH), 0
    for batch in range(12):
        rule = verify.Rejection(1.6, seed=list(range(batch * TEXTS, (batch + 1) * TEXTS)))
        found = decode(target, [PROMPT] * TEXTS, drafter, max_new_tokens=LENGTH, acceptance=rule)
        for result in found:
            first, second, third = result.token_ids
            counts[(first * VOCAB + second) * VOCAB + third] += 1
            calls += result.stats.target_calls
    expected = sequence_probabilities(target, 1.6) * counts.sum()
    assert expected.min() > 5
    chi2 = ((counts - expected) ** 2 / expected).sum()
    freedom, x = len(counts) - 1, -math.log(LEVEL)
    assert chi2 < freedom + 2 * math.sqrt(freedom * x) + 2 * x  # Laurent and Massart 2000, lemma 1
    assert calls < 2.9 * counts.sum()  # drafts were accepted
