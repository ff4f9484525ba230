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
from lattice_bpd.draft.rescore import rescore_lattice
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd.verify import Rejection, Sampled
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
        self.seen: list[tuple[list[int], LatticeInput]] = []

    def read_states(self, states: Sequence[Any]) -> LatticeInput:
        rows = [self._row(list(state.tokens)) for state in states]
        parts = (torch.tensor(np.array(part)) for part in zip(*rows, strict=True))
        lattice = LatticeInput(*parts, **self.options)
        self.seen += [(list(state.tokens), lattice) for state in states]
        return lattice

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


def test_drafts_are_those_of_the_search() -> None:
    heads = PairHeads(unary="included", normalization="local")
    drafts: list[tuple[int, ...]] = []
    result = generate(
        build_target("llama"), PROMPTS[0], "ngram", heads=heads, lm=lm(), max_new_tokens=COUNT
    )
    for tokens, lattice in heads.seen:
        best = rescore_lattice(lattice, [tokens], lm(), num_drafts=1).token_ids[0, 0].tolist()
        drafts.append(tuple(best))
        following = TEXTS[0][len(tokens) : len(tokens) + SLOTS]
        agreed = len(list(itertools.takewhile(bool, map(int.__eq__, best, following))))
        if len(TEXTS[0]) - len(tokens) > SLOTS:  # near the limit the lattice has fewer slots
            assert result.stats.accept_lengths[len(drafts) - 1] == agreed
    assert len(set(drafts)) > 3


@pytest.mark.parametrize("normalization", ["local", "global"])
def test_normalization_of_plain_logits(normalization: str) -> None:
    """The option changes the search, not the output."""
    heads = PairHeads()

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(int(hidden.abs().sum() * 1e4) % 2**31)
        return torch.randn(len(hidden), 3, VOCAB, generator=generator)

    found = generate(build_target("llama"), PROMPTS, "tree", heads=logits, lm=lm(),
                     max_new_tokens=COUNT, normalization=normalization)  # fmt: skip
    assert [result.token_ids for result in found] == generated("llama")
    assert not heads.seen


@pytest.mark.parametrize("rule", [Sampled(temperature=0.5), Rejection(temperature=0.5)])
def test_rules_that_sample(rule: Any) -> None:
    strategy = "sampled" if isinstance(rule, Rejection) else "tree"
    heads = PairHeads(unary="included", normalization="local")
    results = generate(build_target("llama"), PROMPTS, strategy, heads=heads, lm=lm(), top_k=3,
                       max_new_tokens=COUNT, acceptance=rule)  # fmt: skip
    assert all(len(result.token_ids) == COUNT and result.lossless for result in results)


def test_cut_keeps_the_candidates_of_greatest_unary_score() -> None:
    rng = np.random.default_rng(0)
    token_ids = np.stack([rng.permutation(20)[:6] for _ in range(8)]).reshape(2, 4, 6)
    lattice = LatticeInput(
        token_ids, rng.normal(size=(2, 4, 6)).astype(np.float32),
        rng.normal(size=(2, 6)).astype(np.float32),
        rng.normal(size=(2, 3, 6, 6)).astype(np.float32),
    )  # fmt: skip
    as_torch = LatticeInput(*(torch.tensor(getattr(lattice, name)) for name in
                              ("token_ids", "scores", "start", "transitions")))  # fmt: skip
    for whole in (lattice, as_torch):
        cut = whole.cut(3, 4)
        assert tuple(cut.token_ids.shape) == (2, 3, 4)
        for row, slot in itertools.product(range(2), range(3)):
            order = np.argsort(-lattice.scores[row, slot])[:4]
            assert cut.token_ids[row, slot].tolist() == token_ids[row, slot, order].tolist()
            if slot:
                before = np.argsort(-lattice.scores[row, slot - 1])[:4]
                expected = lattice.transitions[row, slot - 1][np.ix_(before, order)]
                np.testing.assert_array_equal(cut.transitions[row, slot - 1], expected)
            else:
                np.testing.assert_array_equal(cut.start[row], lattice.start[row, order])
    assert lattice.cut(9, 9).token_ids.tolist() == token_ids.tolist()


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
