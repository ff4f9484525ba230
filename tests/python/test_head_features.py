"""Heads that read the outputs of decoder layers get them for every token that the target read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from lattice_bpd.decode import generate
from lattice_bpd_conformance.check import InformedHeads
from target_models import COUNT, PROMPTS, VOCAB, build_target, generated


class WatchingHeads(InformedHeads):
    """Informed heads that keep the features that they are given."""

    def __init__(self, *args: Any, layers: tuple[int, ...]) -> None:
        super().__init__(*args)
        self.hidden_layers = layers

    def read_states(self, states: Sequence[Any]) -> Tensor:
        for state in states:
            state.memory = [*(state.memory or []), state.take_features()]
            assert sum(map(len, state.memory)) == len(state.tokens) - 1
            self.seen[tuple(state.tokens[:-1])] = torch.cat(state.memory)
        return super().read_states(states)

    seen: dict[tuple[int, ...], Tensor]


def check(kind: str, count: int, layers: tuple[int, ...], **options: Any) -> None:
    """Features along decoded texts against one plain forward over each."""
    model, prompts = build_target(kind), PROMPTS[:count]
    texts = [prompt + new for prompt, new in zip(PROMPTS, generated(kind), strict=True)][:count]
    heads = WatchingHeads(texts, VOCAB, layers=layers)
    heads.seen = {}
    results = generate(
        model, prompts, options.pop("drafter", "tree"), heads=heads, max_new_tokens=COUNT, **options
    )
    assert [result.token_ids for result in results] == generated(kind)[:count]
    assert any(any(result.stats.accept_lengths) for result in results)
    assert len(heads.seen) > 2 * count
    for tokens, features in heads.seen.items():
        with torch.inference_mode():
            output = model(torch.tensor([tokens]), output_hidden_states=True)
        expected = torch.cat([output.hidden_states[layer + 1][0] for layer in layers], dim=-1)
        torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["tree", "rows"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "bert", "gemma2"])
def test_features_are_those_of_a_plain_forward(kind: str, layout: str) -> None:
    check(kind, 1, (0,), layout=layout)
    check(kind, 3, (-1, 0, 1), layout=layout)


def test_layers_that_the_target_does_not_have() -> None:
    model = build_target("llama")
    heads = WatchingHeads([[1, 2]], VOCAB, layers=(0, 7))
    with pytest.raises(ValueError, match=r"read layers \(0, 7\) of LlamaForCausalLM, which has"):
        generate(model, PROMPTS[0], heads=heads)
