"""Outputs with drafts are those of plain vLLM, and calls those of this library's own loop."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import SCENES, SHORT, run_forms, run_scenes, run_small

from conftest import in_child

FORMS: dict[str, dict[str, Any]] = {
    "chain": {},
    "chain_cut": {"min_prob": 0.1},
    "best": {"draft": "best", "alpha": 1.0},
    "argmax": {"draft": "argmax"},
}


@pytest.fixture(scope="module")
def forms() -> dict[str, Any]:
    return in_child(run_forms, FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_calls_are_those_of_the_own_loop(
    form: str, forms: dict[str, Any], expected: dict[str, Any]
) -> None:
    for answer in forms[form]:  # load 1, 4, 16
        assert answer["outputs"] == expected["outputs"]
        assert answer["target_calls"] == expected["calls"][form]
        assert answer["tokens"] == sum(map(len, expected["outputs"]))
        assert answer["draft_tokens"] == answer["verified_tokens"] > answer["accepted_tokens"] > 0
        assert answer["failures"] == 0


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
    counts = [drafted_scenes[f"{name} drafts"] for name in SCENES]
    number = list(SCENES).index(scene)
    assert counts[number] > (counts[number - 1] if number else 0), "nothing was drafted"


def test_small_engine_with_preemption_chunks_prefixes_and_the_last_position() -> None:
    plain, drafted = in_child(run_small, None), in_child(run_small, {})
    assert drafted["repeated"] == plain["repeated"]
    assert drafted["mixed"] == plain["mixed"]
    assert max(map(len, plain["repeated"][0])) > SHORT - 64  # texts that end at the last position
    assert drafted["preemptions"] > 0
    assert drafted["prefix_hits"] > 0
    counters = drafted["counters"]
    assert counters["failures"] == 0
    assert counters["accepted_tokens"] > 0
    # what vLLM verifies is what was proposed: no zeros near the last position
    assert drafted["verified"] <= counters["draft_tokens"]
