"""Outputs with drafts are those of plain vLLM, and calls those of this library's own loop."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import (
    SCENES,
    SHORT,
    long_prompts,
    run_bfloat16,
    run_compiled,
    run_folders,
    run_forms,
    run_prefixes,
    run_scenes,
    run_small,
)

from conftest import FOLDER, in_child

FORMS: dict[str, dict[str, Any]] = {
    "chain": {},
    "best": {"draft": "best", "alpha": 1.0},
    "argmax": {"draft": "argmax"},
}


FOLDERS = ("block", "block_pairs", "medusa")  # the first one reads more layers than heads do


@pytest.fixture(scope="module")
def forms() -> dict[str, Any]:
    return in_child(run_forms, FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_calls_are_those_of_the_own_loop(
    form: str, forms: dict[str, Any], expected: dict[str, Any]
) -> None:
    check_calls(form, forms[form], expected)


def check_calls(form: str, answers: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    for answer in answers:  # load 1, 4, 16
        assert answer["outputs"] == expected["outputs"]
        assert answer["target_calls"] == expected["calls"][form]
        assert answer["tokens"] == sum(map(len, expected["outputs"]))
        assert answer["draft_tokens"] == answer["verified_tokens"] > answer["accepted_tokens"] > 0
        assert answer["failures"] == 0


def test_the_mixture_s_outputs_are_those_of_plain_vllm(expected: dict[str, Any]) -> None:
    """Heads, LM and text; LM and text; the text alone. Calls depend on the engine's times."""
    lm = str(FOLDER / "drafter" / "stories.lm")
    for options in ({"draft": "mixture"}, {"directory": None, "lm": lm}, {"directory": None}):
        for answer in in_child(run_forms, {"mixture": {}}, options)["mixture"]:
            assert answer["outputs"] == expected["outputs"]
            assert answer["failures"] == 0
            assert answer["tokens"] > answer["target_calls"]
            assert answer["predictions"] > answer["verified_tokens"] > 0


@pytest.fixture(scope="module")
def folders() -> dict[str, Any]:
    return in_child(run_folders, FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_calls_of_other_drafters_are_those_of_the_own_loop(
    name: str, folders: dict[str, Any], expected: dict[str, Any]
) -> None:
    check_calls(name, folders[name], expected)


def test_prefixes_of_other_requests_are_drafted_from() -> None:
    """A block drafter reads cached prefixes, so that calls are those without a prefix cache."""
    options = {"directory": str(FOLDER / "block")}
    (cached, hits), (plain, none) = (
        in_child(run_prefixes, options, is_cached) for is_cached in (True, False)
    )
    assert (hits > 500, none) == (True, 0)
    for name in ("outputs", "target_calls", "accepted_tokens"):
        assert [one[name] for one in cached] == [one[name] for one in plain]


@pytest.fixture(scope="module")
def plain_scenes() -> dict[str, Any]:
    return in_child(run_scenes, None)


@pytest.fixture(scope="module")
def drafted_scenes() -> dict[str, Any]:
    return in_child(run_scenes, {"check": False})


@pytest.mark.parametrize("scene", SCENES)
def test_outputs_are_those_of_plain_vllm(
    scene: str, plain_scenes: dict[str, Any], drafted_scenes: dict[str, Any]
) -> None:
    assert drafted_scenes[scene] == plain_scenes[scene]
    assert drafted_scenes[f"{scene} drafts"] > 0


@pytest.fixture(scope="module")
def plain_small() -> dict[str, Any]:
    return in_child(run_small, None)


@pytest.mark.parametrize("folder", ["drafter", "block_pairs"])
def test_small_engine_with_preemption_chunks_prefixes_and_the_last_position(
    folder: str, plain_small: dict[str, Any], expected: dict[str, Any]
) -> None:
    plain, drafted = plain_small, in_child(run_small, {"directory": str(FOLDER / folder)})
    assert drafted["repeated"] == plain["repeated"]
    assert drafted["mixed"] == plain["mixed"]
    for prompt, output in zip(long_prompts(expected["prompts"]), plain["repeated"][0], strict=True):
        assert len(prompt) + len(output) == SHORT  # texts end at the last position
    assert drafted["preemptions"] > 0
    assert drafted["prefix_hits"] > 0
    counters = drafted["counters"]
    assert counters["failures"] == 0
    assert counters["accepted_tokens"] > 0
    # what vLLM verifies is what was proposed: no zeros near the last position
    assert drafted["verified"] <= counters["draft_tokens"]


NEAR_TIE = 0.2  # nats; bfloat16 rounds logits of about 16 to 1/16


def first_difference(one: list[int], other: list[int]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


def test_outputs_in_bfloat16_differ_at_near_ties_only() -> None:
    """By plain vLLM's own log probabilities, whose texts at load 1 and 16 differ in such places."""
    plain = in_child(run_bfloat16, None)
    lm = str(FOLDER / "drafter" / "stories.lm")
    expected, best = plain["outputs"][0], iter(plain["best"])
    rows = [[next(best) for _ in text] for text in expected]
    drafted = [
        in_child(run_bfloat16, {"check": False, **options})
        for options in ({}, {"draft": "mixture"}, {"directory": None, "lm": lm})
    ]
    for run in (plain, *drafted):
        texts = [text for of_load in run["outputs"] for text in of_load]
        for text, other, of_text in zip(expected * 2, texts, rows * 2, strict=True):
            at = first_difference(text, other)
            if at is not None:
                assert of_text[at][text[at]] - of_text[at].get(other[at], -9.0) < NEAR_TIE
        if run is not plain:
            assert run["counters"]["failures"] == 0
            assert run["counters"]["accepted_tokens"] > 500
            equal = [a == b for a, b in zip(expected, texts, strict=False)]
            assert sum(equal) >= len(expected) // 2


def test_layers_of_a_compiled_target_are_drafted_from(expected: dict[str, Any]) -> None:
    """Without `enforce_eager`; heads on a compiled target are those of test_server.py."""
    outputs, counters = in_child(run_compiled, str(FOLDER / "block"))
    assert outputs == expected["outputs"]
    assert counters["target_calls"] == expected["calls"]["block"]
    assert counters["failures"] == 0
