"""Rescoring inside a decoding loop of your own: numpy in, drafts out; no torch anywhere.

    python examples/own_loop.py

The "model" is a table that knows the next token; its heads guess each position by itself.
"""

import numpy as np

from lattice_bpd import NGramLM, rescore_lattice

VOCAB, SLOTS, LENGTH = 50, 4, 60
rng = np.random.default_rng(0)
lm = NGramLM.train([np.arange(3000) * 7 % VOCAB], 2, vocab_size=VOCAB, smoothing="witten_bell")


def target(tokens: list[int]) -> int:
    """The next token."""
    return int((tokens[-1] + 7) % VOCAB)


def head_logits(tokens: list[int]) -> np.ndarray:
    """(SLOTS, VOCAB) float32, unsure."""
    logits = rng.normal(size=(SLOTS, VOCAB)).astype(np.float32)
    logits[np.arange(SLOTS), (tokens[-1] + 7 * np.arange(1, SLOTS + 1)) % VOCAB] += 2.0
    return logits


tokens, steps = [3], 0
while len(tokens) < LENGTH:
    drafts = rescore_lattice(head_logits(tokens), tokens, lm, top_k=8, num_drafts=4, alpha=0.5)
    kept: list[int] = []
    for draft in drafts.token_ids[0].tolist():  # a real model verifies all in one call
        accepted: list[int] = []
        while len(accepted) < SLOTS and draft[len(accepted)] == target(tokens + accepted):
            accepted.append(draft[len(accepted)])
        kept = max(kept, accepted, key=len)
    tokens, steps = [*tokens, *kept, target(tokens + kept)], steps + 1
print(f"{len(tokens) - 1} tokens in {steps} steps: {(len(tokens) - 1) / steps:.2f} tokens a step")
