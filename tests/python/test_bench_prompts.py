"""The prompts of the yardstick: kinds, splits, and no overlap between the sets."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "prompts"


@pytest.fixture
def composer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/prompts/make_train.py."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("make_train")


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]


def content(row: dict[str, Any]) -> str:
    texts: list[str] = row.get("turns") or [message["content"] for message in row["messages"]]
    assert len(texts) > 1 if "turns" in row else len(texts) == 1
    assert all(text.strip() == text and text for text in texts), row["id"]
    return "\n".join(texts)


def test_every_kind_has_ten_prompts_in_each_half(composer: Any) -> None:
    rows = read("prompts.jsonl")
    assert Counter((row["kind"], row["split"]) for row in rows) == {
        (kind, split): 10 for kind in composer.KINDS for split in ("tuning", "test")
    }
    assert {row["kind"] for row in rows if "turns" in row} == {"chat"}


def test_training_prompts_are_of_all_kinds_from_the_start(composer: Any) -> None:
    counts = Counter(row["kind"] for row in read("train.jsonl"))
    assert set(counts) == set(composer.KINDS)
    assert min(counts.values()) >= 100
    assert {row["kind"] for row in read("train.jsonl")[:50]} == set(composer.KINDS)


def test_the_training_prompts_are_composed_from_the_lists() -> None:
    lists = json.loads((FOLDER / "train_lists.json").read_text(encoding="utf-8"))
    rows = read("train.jsonl")
    prompts = {content(row) for row in rows}
    assert len(rows) == 2000
    conversations = [turns for kind in lists["open_ended"].values() for turns in kind]
    assert prompts >= {"\n".join(texts) for texts in conversations}
    assert prompts.issuperset(lists["trivia"] + lists["word_problems"] + lists["writing"])
    everything = "\n".join(prompts)
    for text in [article["text"] for article in lists["articles"]] + [
        text for sentences in lists["to_english"].values() for text in sentences
    ]:
        assert text in everything, text


def test_no_prompt_occurs_twice() -> None:
    rows = read("prompts.jsonl") + read("train.jsonl")
    assert len({row["id"] for row in rows}) == len(rows)
    assert len({content(row) for row in rows}) == len(rows)


def test_training_prompts_share_no_text_with_the_yardstick(composer: Any) -> None:
    held_out: set[Any] = set().union(
        *(composer.word_runs(content(r)) for r in read("prompts.jsonl"))
    )
    for row in read("train.jsonl"):
        assert held_out.isdisjoint(composer.word_runs(content(row))), row["id"]


def test_passages_do_not_overlap(composer: Any) -> None:
    import random

    paragraphs = [f"A {n} " + f"word{n} " * 7 + "end." for n in range(60)]  # ten words each
    books, forbidden = "\n\n".join(paragraphs), composer.word_runs(paragraphs[7])
    passages = composer.draw_passages(books, forbidden, random.Random(1))
    drawn = []
    for _ in range(8):
        next(passages)
        drawn.append(passages.send(20))
    numbers = [text.split()[1] for passage in drawn for text in passage.split("\n\n")]
    assert len(set(numbers)) == len(numbers) == 16
    assert "7" not in numbers
