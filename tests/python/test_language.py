"""Retired words stay out of the docs and of public names; docs/design.md has the terms."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import lattice_bpd

ROOT = Path(__file__).resolve().parents[2]

# Words of an earlier private vocabulary and what replaced them.
RETIRED = {
    r"behind": "after, following",
    r"rooms?": "capacity, remaining length; package",
    r"stands|stood": "is, occurred earlier",
    r"goes? on|went on": "continues, extends",
    r"asks|is told|hears": "calls, is notified",
    r"heed|amiss|news": "overhead, anomalous",
    r"dear|seldom|of late": "expensive, rarely, recent",
    r"by halves": "binary search",
    r"own text": "self-generated text",
    r"knobs?": "option",
    r"shares? out|shared out": "distribute",
    r"draws|drawn": "samples, sampled",
    r"too sure of itself": "overconfident",
}
GENERATED = {"architectures.md"}
IN_NAMES = {
    "amiss", "behind", "book", "drawn", "draws", "gap", "heed", "knob", "knobs", "look", "place",
    "places", "room", "rooms",
}  # fmt: skip


def prose(text: str) -> str:
    """A page without code: fenced and indented blocks, and `code`."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def pages() -> list[Path]:
    docs = sorted((ROOT / "docs").glob("**/*.md"))
    return [ROOT / "README.md", *(page for page in docs if page.name not in GENERATED)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_docs_use_the_fields_terms(page: Path) -> None:
    text = prose(page.read_text())
    found = {
        match.group(0): instead
        for word, instead in RETIRED.items()
        for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    }
    assert not found, f"{page.name}: {found}"


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def test_public_names_use_the_fields_terms() -> None:
    pytest.importorskip("torch")
    wrong = []
    for info in pkgutil.walk_packages(lattice_bpd.__path__, "lattice_bpd."):
        if info.ispkg and not info.name.startswith("lattice_bpd.train.spark"):
            names = getattr(importlib.import_module(info.name), "__all__", [])
            wrong += [f"{info.name}.{name}" for name in names if words_of(name) & IN_NAMES]
    assert not wrong, wrong


def test_the_check_sees_words() -> None:
    assert prose("a `room` b\n\n    room\n\n```\nroom\n```\n").split() == ["a", "b"]
    assert words_of("CheckedPlace") & IN_NAMES
    assert not words_of("Replacement") & IN_NAMES
