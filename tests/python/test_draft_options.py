"""Options and sources that a strategy does not use or lacks, and whose name errors begin with."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, model_of, small_lm
from lattice_bpd import DraftConfig
from lattice_bpd.decode import (
    CustomGenerate,
    DraftSources,
    TreeDrafter,
    decode,
    generate,
    make_drafter,
)
from lattice_bpd.decode.drafters import NoDrafter, PBestDrafter, ScorerDrafter
from lattice_bpd.decode.huggingface.generate import read_config
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.verify.acceptance import TopKMatch

PROMPT = [3, 8, 13]
VALUES: dict[str, Any] = {
    "top_k": 4, "num_drafts": 3, "max_nodes": 9, "alpha": 0.7, "temperature": 1.5,
    "draft_length": 6, "beam": 5, "normalization": "local", "sources": ("text",),
}  # fmt: skip
WITHOUT_LM = [name for name, info in STRATEGIES.items() if not info.uses("lm")]
NEEDS_HEADS = [name for name, info in STRATEGIES.items() if "heads" in info.needs]


def sources_of(strategy: str) -> DraftSources:
    """What the strategy needs."""
    needs = STRATEGIES[strategy].needs
    model = model_of("llama").base if "draft_model" in needs else None
    return DraftSources(small_lm() if "lm" in needs else None, model)


def test_values_has_every_option() -> None:
    names = [one.name for one in fields(DraftConfig) if one.name != "strategy"]
    assert list(VALUES) == names
    assert all(getattr(DraftConfig, name) != value for name, value in VALUES.items())


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


def test_drafters_refuse_unused_options() -> None:
    with pytest.raises(ValueError, match=r"^PBestDrafter: .*'p_best' does not use max_nodes;"):
        PBestDrafter(None, max_nodes=4)
    with pytest.raises(ValueError, match=r"^TreeDrafter: .*'tree' does not use beam;"):
        TreeDrafter(None, beam=4)
    with pytest.raises(ValueError, match=r"^ScorerDrafter: .*'p_best' does not use temperature;"):
        ScorerDrafter(small_lm(), temperature=2.0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_config_may_hold_options_of_other_strategies(strategy: str) -> None:
    unused = {
        name: value for name, value in VALUES.items() if name not in STRATEGIES[strategy].options
    }
    config = DraftConfig(strategy, **unused)
    assert config.options == DraftConfig(strategy).options
    assert read_config("generate", config, {}) is not None
    assert type(make_drafter(config, sources_of(strategy))) is type(
        make_drafter(DraftConfig(strategy), sources_of(strategy))
    )


def test_an_unknown_option_is_not_reported_as_the_strategy() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'stratgy'; expected of top_k, ") as caught:
        generate(model_of("llama"), PROMPT, stratgy="tree")
    assert "strategy" not in str(caught.value)
    with pytest.raises(TypeError, match="expected the strategy as the argument `drafter`"):
        generate(model_of("llama"), PROMPT, strategy="tree")
    with pytest.raises(TypeError, match=r"TreeDrafter: unknown option 'strategy'"):
        TreeDrafter(None, strategy="p_best")


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


def test_sources_given_with_a_drafter_are_refused() -> None:
    small = model_of("llama").base
    for sources in ({"lm": small_lm()}, {"draft_model": small}):
        with pytest.raises(TypeError, match=rf"^generate: {next(iter(sources))} given with a draf"):
            generate(model_of("llama"), PROMPT, TreeDrafter(None), **sources)
        with pytest.raises(TypeError, match=rf"^CustomGenerate: {next(iter(sources))} given with"):
            CustomGenerate(None, NoDrafter(), **sources)


@pytest.mark.parametrize("strategy", NEEDS_HEADS)
def test_without_heads_others_are_suggested(strategy: str) -> None:
    base = model_of("llama").base
    message = (
        f"strategy '{strategy}' needs draft heads and the model has none; give heads= .*"
        r"without heads use 'mixture', or 'draft_model'"
    )
    lm = sources_of(strategy).lm
    with pytest.raises(ValueError, match=f"^generate: {message}"):
        generate(base, PROMPT, strategy, lm=lm, max_new_tokens=2)
    if strategy != "oracle":  # refused as such
        with pytest.raises(ValueError, match=f"^CustomGenerate: {message}"):
            base.generate(
                torch.tensor([PROMPT]),
                custom_generate=CustomGenerate(None, strategy, lm=lm),
                max_new_tokens=4,
            )


def test_a_draft_model_of_another_type_is_named() -> None:
    with pytest.raises(TypeError, match=r"^generate: draft_model is a NGramLM; .*give .* as lm="):
        generate(model_of("llama").base, PROMPT, "draft_model", draft_model=small_lm())
    with pytest.raises(TypeError, match=r"^generate: draft_model is a str; .*from_pretrained$"):
        generate(model_of("llama").base, PROMPT, "draft_model", draft_model="small")


def test_a_strategy_in_the_position_of_the_heads_is_named() -> None:
    with pytest.raises(TypeError, match=r"heads is 'tree', .*CustomGenerate\(drafter='tree'\)"):
        CustomGenerate("tree")


def test_generation_settings_are_no_drafting_options() -> None:
    message = r"^generate: {0} is a generation .*generation_config=GenerationConfig\({0}=..\)"
    with pytest.raises(TypeError, match=message.format("do_sample") + ".*Sampled"):
        generate(model_of("llama"), PROMPT, do_sample=True, temperature=0.7)
    with pytest.raises(TypeError, match=message.format("num_beams") + "$"):
        generate(model_of("llama"), PROMPT, num_beams=2)
    with pytest.raises(TypeError, match=r"pass it as model\.generate\(.., do_sample=..\)"):
        CustomGenerate(model_of("llama").head_logits, do_sample=True)


class NotHeads:
    """No callable."""


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"heads": NotHeads()}, r"heads is a NotHeads; .*, or DraftHeads$"),
    "heads by name": (
        {"heads": "my-heads"},
        r"heads is a str; .*load_heads\('my-heads'\)",
    ),
    "acceptance": ({"acceptance": TopKMatch}, "acceptance is"),
    "certificate": ({"certificate": "yes"}, "certificate is 'yes'"),
    "constraint": ({"constraint": 3}, "constraint is a int"),
    "max_new_tokens": ({"max_new_tokens": 0}, "max_new_tokens is 0; expected 1 or more"),
    "stop_token_ids": ({"stop_token_ids": [VOCAB]}, f"a stop token id is {VOCAB}"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_begin_with_the_function_that_was_called(case: str) -> None:
    options, message = ERRORS[case]
    base = model_of("llama").base
    for function, drafter in ((generate, "greedy"), (decode, NoDrafter())):
        with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: {message}"):
            function(base, PROMPT, drafter, **options)


def test_errors_of_prompts_and_drafters_begin_with_the_function_that_was_called() -> None:
    base = model_of("llama").base

    class Wrong(NoDrafter):
        def propose(self, states: Any) -> Any:  # noqa: ARG002
            return 3

    for function in (generate, decode):
        with pytest.raises(ValueError, match=f"^{function.__name__}: prompt: found token id 48"):
            function(base, [VOCAB], NoDrafter())
        with pytest.raises(TypeError, match=rf"^{function.__name__}: Wrong\.propose returned a in"):
            function(base, PROMPT, Wrong())
        with pytest.raises(ValueError, match=f"^{function.__name__}: 1 drafters for 2 prompts"):
            function(base, [PROMPT, PROMPT], [NoDrafter()])
        with pytest.raises(TypeError, match=f"^{function.__name__}: model is a dict; expected a"):
            function({}, PROMPT, NoDrafter())
    with pytest.raises(TypeError, match=r"^CustomGenerate: acceptance is <class"):
        CustomGenerate(acceptance=TopKMatch)
    method = CustomGenerate(None, Wrong())
    with pytest.raises(TypeError, match=r"^CustomGenerate: Wrong\.propose returned a int"):
        base.generate(torch.tensor([PROMPT]), custom_generate=method, max_new_tokens=4)
    with pytest.raises(TypeError, match=r"^make_drafter: lm is a str; expected an NGramLM"):
        make_drafter(DraftConfig("tree"), DraftSources("corpus.lm"))
