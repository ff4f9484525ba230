"""Decoding with heads that score transitions: the output of generate, drafts, samples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.decode.drafters import SampledTreeDrafter
from lattice_bpd.draft.config import DraftConfig
from lattice_bpd.lattice.lattice_input import LatticeInput
from sampled_sequences import VOCAB as SYMBOLS
from sampled_sequences import check_sequences, tiny_model
from target_models import COUNT, PROMPTS, VOCAB, build_target, generated

TEXTS = [prompt + new for prompt, new in zip(PROMPTS, generated("llama"), strict=True)]
SLOTS, TOP_K = 4, 5


class PairHeads:
    """Candidates at random; where the text is known, its own token among them, which transitions
    alone favor."""

    def __init__(self, texts: Sequence[list[int]] = TEXTS, **options: Any) -> None:
        self.texts, self.options = texts, options
        self.vocab, self.num_slots, self.top_k = (VOCAB, SLOTS, TOP_K) if texts else (4, 3, 3)

    def read_states(self, states: Sequence[Any]) -> LatticeInput:
        rows = [self._row(list(state.tokens)) for state in states]
        parts = (torch.tensor(np.array(part)) for part in zip(*rows, strict=True))
        return LatticeInput(*parts, **self.options)

    def _row(self, tokens: list[int]) -> tuple[np.ndarray, ...]:
        rng, slots, k = np.random.default_rng(len(tokens)), self.num_slots, self.top_k
        token_ids = np.array([rng.permutation(self.vocab)[:k] for _ in range(slots)])
        scores = rng.normal(0.0, 1.0, (slots, k)).astype(np.float32)
        start = rng.normal(0.0, 0.6, k).astype(np.float32)
        transitions = rng.normal(0.0, 0.6, (slots - 1, k, k)).astype(np.float32)
        text = next((t for t in self.texts if t[: len(tokens)] == tokens), None)
        if text is not None:
            before = -1
            for slot, token in enumerate(text[len(tokens) : len(tokens) + slots]):
                if token not in token_ids[slot]:
                    token_ids[slot, rng.integers(k)] = token
                right = token_ids[slot].tolist().index(token)
                (transitions[slot - 1, before] if slot else start)[right] += 3.0
                before = right
        return token_ids, scores, start, transitions


def lm() -> NGramLM:
    texts = [np.array(text, np.int32) for text in TEXTS]
    return NGramLM.train(texts * 2, 3, vocab_size=VOCAB, smoothing="witten_bell")


@pytest.mark.parametrize("strategy", ["bpd", "ngram", "p_best", "chain", "tree", "mixture"])
@pytest.mark.parametrize("count", [1, 3])
def test_output_is_that_of_generate(strategy: str, count: int) -> None:
    for unary, normalization in itertools.product(("included", "added"), ("local", "global")):
        config = DraftConfig(strategy, num_drafts=4, max_nodes=12, alpha=0.1)
        heads = PairHeads(unary=unary, normalization=normalization)
        found = generate(
            build_target("llama"), PROMPTS[:count], config, heads=heads, max_new_tokens=COUNT,
            lm=None if strategy == "bpd" else lm(),
        )  # fmt: skip
        assert [result.token_ids for result in found] == generated("llama")[:count]
        if strategy not in ("bpd", "mixture"):
            assert sum(sum(result.stats.accept_lengths) for result in found) > 10 * count


SMALL_LM = NGramLM.train([[1, 2, 3, 0, 0, 2] * 20], 2, vocab_size=SYMBOLS, smoothing="witten_bell")
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], NGramLM | None]] = {
    "included, local": ({"temperature": 1.6}, {"max_nodes": 3}, None),
    "added, global": ({"temperature": 1.6}, {"max_nodes": 5}, None),
    "included, local, LM": ({"temperature": 0.7}, {"max_nodes": 6, "alpha": 0.8}, SMALL_LM),
    "replaced, local": ({"temperature": 2.5, "top_p": 0.8}, {"max_nodes": 4}, None),
    "replaced, global, LM": ({"temperature": 2.0, "top_k": 2}, {"max_nodes": 4}, SMALL_LM),
}


@pytest.mark.parametrize("way", WAYS)
def test_samples_leave_the_targets_distribution(way: str) -> None:
    sampling, options, lm = WAYS[way]
    unary, normalization = way.split(", ")[:2]
    drafter = SampledTreeDrafter(lm, top_k=3, **options)
    heads: Any = PairHeads((), unary=unary, normalization=normalization)
    assert check_sequences(tiny_model(0), drafter, sampling, heads=heads) < 2.9


def test_logits_of_candidates_in_numpys_arrays() -> None:
    ids, scores = np.array([[[3, 7, 5], [0, 9, 2]]]), np.float32([[[1.0, -2.0, 0.5], [3.0, 1, 0]]])
    expected = np.full((1, 2, 8), -np.inf, np.float32)  # 9 is an id of the heads alone
    expected[0, 0, [3, 7, 5]], expected[0, 1, [0, 2]] = [1.0, -2.0, 0.5], [3.0, 0]
    for lattice in (LatticeInput(ids, scores), LatticeInput(*map(torch.tensor, (ids, scores)))):
        np.testing.assert_array_equal(lattice.to_logits(8), expected)
