"""Samples of lattices with transition scores: sequences keep the target's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters import SampledTreeDrafter
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify import Rejection
from sampled_sequences import LENGTH, PROMPT, VOCAB, check_sequences, tiny_model

SLOTS, TOP_K = 3, 3
LM = NGramLM.train([[1, 2, 3, 0, 0, 2] * 20], 2, vocab_size=VOCAB, smoothing="witten_bell")


class PairHeads:
    """Three of the four tokens in each slot, with scores that depend on the length of the text."""

    num_slots = SLOTS

    def __init__(self, unary: str, normalization: str) -> None:
        self.options: Any = {"unary": unary, "normalization": normalization}

    def read_states(self, states: Sequence[Any]) -> LatticeInput:
        rngs = [np.random.default_rng(len(state.tokens)) for state in states]
        ids = [[rng.permutation(VOCAB)[:TOP_K] for _ in range(SLOTS)] for rng in rngs]

        def scores(*shape: int) -> torch.Tensor:
            drawn = [rng.normal(0.0, 0.7, shape) for rng in rngs]
            return torch.tensor(np.array(drawn), dtype=torch.float32)

        return LatticeInput(
            torch.tensor(np.array(ids)), scores(SLOTS, TOP_K), scores(TOP_K),
            scores(SLOTS - 1, TOP_K, TOP_K), **self.options,
        )  # fmt: skip


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], NGramLM | None]] = {
    "included, local": ({"temperature": 1.6}, {"max_nodes": 3}, None),
    "added, global": ({"temperature": 1.6}, {"max_nodes": 5}, None),
    "included, local, LM": ({"temperature": 0.7}, {"max_nodes": 6, "alpha": 0.8}, LM),
    "replaced, local": ({"temperature": 2.5, "top_p": 0.8}, {"max_nodes": 4}, None),
    "replaced, global, LM": ({"temperature": 2.0, "top_k": 2}, {"max_nodes": 4}, LM),
}


@pytest.mark.parametrize("way", WAYS)
def test_samples_leave_the_targets_distribution(way: str) -> None:
    sampling, options, lm = WAYS[way]
    unary, normalization = way.split(", ")[:2]
    drafter = SampledTreeDrafter(lm, top_k=TOP_K, **options)
    heads = PairHeads(unary, normalization)
    assert check_sequences(tiny_model(0), drafter, sampling, heads=heads) < 2.9


def test_rows_that_are_the_targets_own_are_always_accepted() -> None:
    """Where the conditional rows are the target's distribution, every sample is kept."""
    target = tiny_model(0)

    class OwnRows:
        num_slots = LENGTH - 1

        @torch.inference_mode()
        def read_states(self, states: Sequence[Any]) -> LatticeInput:
            return LatticeInput(*map(torch.stack, zip(*map(self._row, states), strict=True)),
                                unary="included", normalization="local")  # fmt: skip

        def _row(self, state: Any) -> tuple[torch.Tensor, ...]:
            text = list(state.tokens)
            ids = torch.arange(VOCAB).repeat(LENGTH - 1, 1)
            start = target(torch.tensor([text])).logits[0, -1]
            after = [target(torch.tensor([[*text, a]])).logits[0, -1] for a in range(VOCAB)]
            return ids, torch.zeros(LENGTH - 1, VOCAB), start, torch.stack(after)[None]

    for temperature in (0.6, 1.0, 3.0):
        results = generate(
            target, [PROMPT] * 12, SampledTreeDrafter(None, top_k=VOCAB, max_nodes=LENGTH - 1),
            heads=OwnRows(), max_new_tokens=LENGTH + 1, acceptance=Rejection(temperature, seed=3),
            stop_token_ids=[],
        )  # fmt: skip
        assert {tuple(result.stats.accept_lengths) for result in results} == {(LENGTH - 1,)}
