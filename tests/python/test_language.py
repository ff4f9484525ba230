"""Retired words stay out of docs, public names and public docstrings; see docs/design.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from docs_checks import find_pages

ROOT = Path(__file__).resolve().parents[2]

# Words of an earlier private vocabulary and what replaced them.
RETIRED = {
    r"behind": "after, following",
    r"rooms?": "capacity, remaining length; package",
    r"stands|stood": "is, occurred earlier",
    r"goes? on|went on": "continues, extends",
    r"asks|asked|is told|are told|hears": "calls, is notified",
    r"heed|amiss|news": "overhead, anomalous",
    r"dear|seldom|of late": "expensive, rarely, recent",
    r"by halves": "binary search",
    r"own text": "self-generated text",
    r"knobs?": "option",
    r"shares? out|shared out": "distribute",
    r"draws|drawn": "samples, sampled",
    r"too sure of (?:itself|themselves)": "overconfident",
    r"nobody|somebody": "no-op; the caller",
    r"looks? (?:at|for|like)|looked at": "reads, requires, resembles",
    r"stutters?": "repeats",
}
RETIRED_IN_DOCSTRINGS = {
    **RETIRED,
    r"(?<!in )places?": "index, position, offset",
    r"[a-z]*(?:initial|material|normal|optim|quant)is(?:e[ds]?|ing|ation)": "-ize",
    r"(?:behavi|col|fav|neighb)our[a-z]*": "-or",
}
PACKAGES = [
    ROOT / "python" / "lattice_bpd",
    *ROOT.glob("packages/*/lattice_*"),
    *ROOT.glob("research/*/lattice_*"),
]


def prose(text: str) -> str:
    """A page without code: fenced and indented blocks, and `code`."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def retired_words(text: str, retired: dict[str, str]) -> dict[str, str]:
    """The retired words of a text, with what to write instead."""
    return {
        match.group(0): instead
        for word, instead in retired.items()
        for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    }


def test_docs_use_the_fields_terms() -> None:
    pages = [page for page in find_pages() if page.name != "architectures.md"]  # generated
    wrong = {page: retired_words(prose(page.read_text()), RETIRED) for page in pages}
    assert not any(wrong.values()), wrong


def public_docstrings(source: str) -> Iterator[str]:
    """Docstrings of a module and its public classes and functions, without code and names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            name = getattr(node, "name", "")
            text = ast.get_docstring(node)
            if text and (name.startswith("__") or not name.startswith("_")):
                text = re.sub(r"``[^`]*``|`[^`\n]*`", "", text)
                yield re.sub(r"^ *\w+: ", "", text, flags=re.MULTILINE)  # of Args and Attributes


def test_docstrings_use_the_fields_terms() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {matches}"
        for package in PACKAGES
        for path in sorted(package.glob("**/*.py"))
        for text in public_docstrings(path.read_text())
        if (matches := retired_words(text, RETIRED_IN_DOCSTRINGS))
    ]
    assert not wrong, "\n".join(wrong)


def test_public_names_use_the_fields_terms() -> None:
    for path in PACKAGES[0].glob("**/__init__.py"):
        names = path.read_text().partition("__all__")[2]
        assert not retired_words(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", names), RETIRED), path
