"""Options and sources that a strategy does not use or lacks, and whose name errors begin with."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")


from blockwise_models import model_of, small_lm
from lattice_bpd import DraftConfig
from lattice_bpd.decode import (
    CustomGenerate,
    generate,
)
from lattice_bpd.decode.huggingface.generate import read_config
from lattice_bpd.draft.config import STRATEGIES

PROMPT = [3, 8, 13]
VALUES: dict[str, Any] = {
    "top_k": 4, "num_drafts": 3, "max_nodes": 9, "alpha": 0.7, "temperature": 1.5,
    "draft_length": 6, "beam": 5, "normalization": "local", "sources": ("text",),
}  # fmt: skip
WITHOUT_LM = [name for name, info in STRATEGIES.items() if not info.uses("lm")]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_options_by_keyword_override_the_config_if_they_are_used(strategy: str) -> None:
    for name, value in VALUES.items():
        for drafter in (strategy, DraftConfig(strategy)):
            if name in STRATEGIES[strategy].options:
                config = read_config("generate", drafter, {name: value})
                assert config == DraftConfig(strategy, **{name: value})
            else:
                message = f"^generate: strategy '{strategy}' does not use {name}; leave it out"
                with pytest.raises(ValueError, match=message):
                    read_config("generate", drafter, {name: value})


@pytest.mark.parametrize("strategy", WITHOUT_LM)
def test_an_lm_that_is_not_used_is_refused_by_name_and_ignored_with_a_config(strategy: str) -> None:
    message = f"strategy '{strategy}' does not use an LM; leave lm out, or use 'mixture'"
    with pytest.raises(ValueError, match=f"^generate: {message}"):
        generate(model_of("llama"), PROMPT, strategy, lm=small_lm(), max_new_tokens=8)
    with pytest.raises(ValueError, match=f"^CustomGenerate: {message}"):
        CustomGenerate(drafter=strategy, lm=small_lm())
    uses_model = STRATEGIES[strategy].uses("draft_model")
    sources = {"draft_model": model_of("gpt2").base} if uses_model else {}
    config = DraftConfig(strategy)
    results = [
        generate(model_of("llama"), PROMPT, config, lm=lm, max_new_tokens=8, **sources)
        for lm in (None, small_lm())
    ]
    assert results[0].token_ids == results[1].token_ids
    assert results[0].stats.accept_lengths == results[1].stats.accept_lengths
