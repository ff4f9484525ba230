"""Every drafter on every target, layout and batch: the output of the model's own `generate`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import (
    ARCHITECTURES,
    POSITIONS,
    VOCAB,
    WINDOW,
    model_of,
    plain_greedy,
    random_model,
    random_prompts,
    small_lm,
)
from lattice_bpd import DraftConfig, NGramLM
from lattice_bpd.decode import Drafter, generate
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.models import VocabularyHeads
from lattice_bpd.verify import PrefixTree
from lattice_bpd_drafters.draft_model import DraftModelDrafter
from lattice_bpd_drafters.medusa_heads import MedusaHeads
from planted_drafts import plain_continuation

KINDS = [*ARCHITECTURES, "trained"]
LAYOUTS = ["tree", "rows"]
NEW = 24
SMALL: dict[str, Any] = {"top_k": 6, "num_drafts": 5, "max_nodes": 14, "alpha": 0.5}
Options = dict[str, Any]


def strategy(name: str, lm: Any = small_lm, **options: Any) -> Callable[[str], Options]:
    """A strategy by its name, with the target's own heads."""
    config = DraftConfig(name, **{**SMALL, **options})
    return lambda _: {"drafter": config, "lm": lm and lm()}


def draft_model(kind: str = "gpt2", **options: Any) -> Callable[[str], Options]:
    options = {"draft_length": 4, "top_k": 4, **options}
    return lambda _: {"drafter": DraftModelDrafter(random_model(kind).base, **options)}


def heads(make: Callable[[Any], Any], name: str = "p_best") -> Callable[[str], Options]:
    """The target with other heads."""

    def options(kind: str) -> Options:
        torch.manual_seed(1)
        source = make(model_of(kind).base)
        if isinstance(source, torch.nn.Module):
            for weight in source.parameters():
                weight.data.normal_(0.0, 0.3)
        return {**strategy(name)(kind), "heads": source}

    return options


def sequential_heads(kind: str) -> Options:
    """Multi-token prediction by a function: each slot's state is made of the previous slot's."""
    base: Any = model_of(kind).base
    embed, project = base.get_input_embeddings(), base.get_output_embeddings()

    def heads(hidden: torch.Tensor, exact_tokens: torch.Tensor) -> torch.Tensor:
        states, tokens, logits = hidden, exact_tokens, []
        for _ in range(3):
            states = states + embed(tokens)
            logits.append(project(states))
            tokens = logits[-1].argmax(dim=-1)
        return torch.stack(logits, dim=1)

    return {**strategy("bpd")(kind), "heads": heads}


def two_lms() -> list[NGramLM]:
    return [small_lm(), small_lm(2)]


DRAFTERS: dict[str, Callable[[str], Options]] = {
    **{name: strategy(name) for name in STRATEGIES if name not in ("neural", "draft_model")},
    **{f"{name} alone": strategy(name, None) for name in ("p_best", "tree", "chain", "mixture")},
    "neural": strategy("neural", lambda: model_of("gpt2").base),
    "tree at 2": strategy("tree", temperature=2.0),
    "mixture of all": strategy("mixture", two_lms, max_nodes=5),
    "mixture, text": strategy("mixture", two_lms, sources=("text",)),
    "mixture, LMs by cost": strategy("mixture", two_lms, sources=("lm",), max_nodes="auto"),
    "draft model": strategy(
        "draft_model", lambda: model_of("trained").base, draft_length=4, max_nodes="auto"
    ),
    "draft chain": draft_model(shape="chain"),
    "draft beam": draft_model("llama", max_nodes=9),
    "draft samples": draft_model("mistral", shape="sampled", draws=[3, 2, 1]),
    "sampled draft tree": draft_model("gemma2", shape="sampled_tree", max_nodes=9),
    "Medusa": heads(lambda _: MedusaHeads(32, VOCAB, 3, 2)),
    "a function": sequential_heads,
    "heads of a few ids": heads(
        lambda _: VocabularyHeads([3, 40, 7, 21], 32, VOCAB, num_slots=3, inner_size=16), "tree"
    ),
}


@functools.cache
def own_output(kind: str, prompt: tuple[int, ...]) -> list[int]:
    return plain_continuation(model_of(kind).base, list(prompt), max_new_tokens=NEW)


def decoder(kind: str, name: str, **given: Any) -> Callable[..., Any]:
    model = model_of(kind)
    options = {"heads": model.heads, "max_new_tokens": NEW, **DRAFTERS[name](kind), **given}
    return lambda texts, **more: generate(model.base, texts, **{**options, **more})


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_output_is_that_of_the_models_own_generate(kind, name, layout):
    texts, run = random_prompts(8, seed=1), decoder(kind, name, layout=layout)
    wanted = [own_output(kind, tuple(text)) for text in texts]
    results = run(texts)
    assert [result.token_ids for result in results] == wanted
    for result in results:
        assert (result.finish, result.stats.tokens) == ("length", NEW)
        assert result.stats.draft_failures == {}
    calls = sum(result.stats.target_calls for result in results)
    assert calls <= 8 * NEW
    if kind == "trained" and name in ("bpd", "p_best", "tree", "chain"):
        assert calls < 8 * NEW / 1.5  # drafts were accepted
    if kind not in ("trained", "gemma2"):
        return
    for limit in (1, 2, 6):
        result = run(texts[0], max_new_tokens=limit)
        assert (result.token_ids, result.finish) == (wanted[0][:limit], "length")
    for index in (1, 7):
        stop = wanted[1][index]
        for result, whole in zip(run(texts[:3], stop_token_ids=[stop]), wanted, strict=False):
            ends = stop in whole
            assert result.token_ids == (whole[: whole.index(stop) + 1] if ends else whole)
            assert result.finish == ("stop_token" if ends else "length")


@pytest.mark.parametrize("name", [name for name in DRAFTERS if name != "neural"])
@pytest.mark.parametrize("kind", ["gpt2", "mistral"])
def test_texts_end_with_the_positions(kind, name):
    rng, run = np.random.default_rng(2), decoder(kind, name, max_new_tokens=30)
    left = [0, 1, 3, 9, 60]
    texts = [rng.integers(0, VOCAB, POSITIONS - most).tolist() for most in left]
    for text, result, most in zip(texts, run(texts), left, strict=True):
        count = min(most + 1, 30)  # the last token is never read
        assert result.token_ids == plain_greedy(model_of(kind), text, count)
        assert result.finish == ("positions" if count < 30 else "length")
    alone = run(texts[2], max_new_tokens=4)
    assert (len(alone.token_ids), alone.finish) == (4, "length")


@pytest.mark.parametrize("kind", ["mistral", "gemma2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_texts_beyond_the_window(layout, kind):
    texts = [text * 3 for text in random_prompts(3, seed=6)]
    assert max(map(len, texts)) > 2 * WINDOW
    wanted = [plain_greedy(model_of(kind), text, 12) for text in texts]
    run = decoder(kind, "tree", layout=layout, max_new_tokens=12)
    assert [result.token_ids for result in run(texts)] == wanted
    assert [run(text).token_ids for text in texts] == wanted


class RandomTrees(Drafter):
    """Trees of any shape around the coming tokens, or none; notes how much of each is right."""

    def __init__(self, coming: list[int], seed: int) -> None:
        self.coming, self.rng = coming, np.random.default_rng(seed)
        self.accepted: list[int] = []

    def propose(self, states):
        return [self.draft(state) for state in states]

    def draft(self, state) -> PrefixTree | None:
        coming = self.coming[len(state.new_tokens) :]
        if self.rng.random() < 0.15:
            self.accepted.append(0)
            return None
        size = int(self.rng.choice([0, 1, 4, 30]))
        parents = [int(self.rng.integers(-1, node)) for node in range(size)]
        tokens, depths = [], []
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            right = depths[-1] < len(coming) and self.rng.random() < 0.6
            tokens.append(coming[depths[-1]] if right else int(self.rng.integers(0, VOCAB)))
        length, node = 0, -1
        while length < state.max_draft_length:
            equal = [n for n in range(size) if (parents[n], tokens[n]) == (node, coming[length])]
            if not equal:
                break
            length, node = length + 1, equal[0]  # of equal siblings the first counts
        self.accepted.append(length)
        return PrefixTree.from_nodes(state.tokens[-1], tokens, parents, 99)  # too deep at times


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_any_random_tree_is_lossless(kind, layout, seed):
    texts = random_prompts(4, seed)
    wanted = [own_output(kind, tuple(text)) for text in texts]
    for together in (texts, texts[:1]):
        trees = [RandomTrees(coming, seed) for coming in wanted[: len(together)]]
        results = generate(model_of(kind).base, together, trees, layout=layout, max_new_tokens=NEW)
        for result, tree, coming in zip(results, trees, wanted, strict=False):
            assert result.token_ids == coming
            accepted = result.stats.accept_lengths
            assert accepted[: len(tree.accepted)] == tree.accepted
            assert not any(accepted[len(tree.accepted) :])  # nothing is drafted for the last token
