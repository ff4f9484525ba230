"""research/kim2024/real_llm.py: agreement of drafts with a known answer, by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lattice_bpd.draft.mixture import KnownText

FOLDER = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])  # it adds benchmarks
    yield importlib.import_module("real_llm")
    sys.modules.pop("real_llm", None)


def test_agreement_of_lists_and_trees(script: Any) -> None:
    following = np.array([[5, 6, 9], [7, 6, -1], [1, -1, -1]], np.int32)
    drafts = np.array([[[5, 6, 1], [7, 6, -1]]] * 3, np.int32)
    assert script.accepted_of_lists(drafts, following).tolist() == [2, 2, 0]
    tree = SimpleNamespace(
        token_ids=np.array([[5, 7, 6, -1]] * 3, np.int32),
        parents=np.array([[-1, -1, 0, -1]] * 3, np.int32),
        depths=np.array([[0, 0, 1, 0]] * 3, np.int32),
    )
    assert script.accepted_of_trees(tree, following).tolist() == [2, 1, 0]


def test_positions_and_replay(script: Any) -> None:
    """Two answers of 4 and 2 tokens; the first token comes with the prompt's call."""
    candidates = [
        (np.tile(np.arange(3, dtype=np.int32), (n, 2, 1)), np.zeros((n, 2, 3), np.float32))
        for n in (4, 2)
    ]
    texts = [
        KnownText([9, 8, 1, 2, 3, 4], 2, candidates[0]),
        KnownText([9, 5, 6], 1, candidates[1]),
    ]
    half = script.Half.of(texts, ["a", "b"])
    assert half.contexts[0] == [9, 8, 1]
    assert half.contexts[4] == [9, 5]
    assert half.following.tolist() == [[2, 3], [3, 4], [4, -1], [-1, -1], [6, -1], [-1, -1]]
    # two draft tokens after the first token: 1 (prompt) + 3 in one call
    assert half.replay(np.array([2, 0, 0, 0, 0, 0])) == ([4, 2], [2, 2])
    assert half.replay(np.array([0, 1, 0, 0, 0, 0])) == ([4, 2], [3, 2])


def test_kinds_are_counted_apart(script: Any) -> None:
    row = script.summarize([4, 2, 6], [2, 2, 2], ["a", "b", "a"], {"alpha": 0.5})
    assert (row["kinds"], row["alpha"]) == ({"a": 2.5, "b": 1.0}, 0.5)
    assert row["value"] == pytest.approx(2.0)


def test_a_strategy_by_hand(script: Any) -> None:
    """Heads that know the answer: BPD accepts all of each slot's best tokens."""
    ids = np.tile(np.array([[[2, 7]], [[3, 7]], [[4, 7]], [[0, 7]]], np.int32), (1, 2, 1))
    ids[:, 1, 0] = [3, 4, 0, 0]
    scores = np.log(np.tile(np.array([0.9, 0.1], np.float32), (4, 2, 1)))
    half = script.Half.of([KnownText([9, 8, 1, 2, 3, 4], 2, (ids, scores))], ["a"])
    name, settings = next(script.strategies({}))
    assert name == "BPD"
    assert script.per_call(half, settings[0]) == 4 / 2
