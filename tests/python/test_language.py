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
BRITISH = r"[a-z]*(?:initial|material|normal|optim|quant|summar)is(?:e[ds]?|ing|ation)"
IN_CODE = {
    **RETIRED,
    r"(?<!in )places?": "index, position, offset",
    BRITISH: "-ize",
    r"(?:behavi|col|fav|neighb)our[a-z]*": "-or",
}
CODE = ["python/lattice_bpd", "packages/*/lattice_*", "research/*/lattice_*"]


def prose(page: str) -> str:
    """A page without code: fenced and indented blocks, and `code`."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^    .*$|`[^`\n]*`", "", page, flags=re.MULTILINE)


def docstrings(source: str) -> Iterator[str]:
    """Those of a module and its public classes and functions, without code and names."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            name, text = getattr(node, "name", ""), ast.get_docstring(node)
            if text and (name.startswith("__") or not name.startswith("_")):
                text = re.sub(r"``[^`]*``|`[^`\n]*`", "", text)
                yield re.sub(r"^ *\w+: ", "", text, flags=re.MULTILINE)  # of Args and Attributes


def test_docs_and_docstrings_use_the_fields_terms() -> None:
    pages = [page for page in find_pages() if page.name != "architectures.md"]  # generated
    texts = [(page, prose(page.read_text()), RETIRED) for page in pages]
    files = [path for folder in CODE for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]
    texts += [(path, text, IN_CODE) for path in files for text in docstrings(path.read_text())]
    wrong = [
        f"{path}: {match.group(0)}; expected {instead}"
        for path, text, retired in texts
        for word, instead in retired.items()
        for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_name_is_british() -> None:
    """In code too, where names have parts; an option, a function or a file is hard to rename."""
    folders = ("benchmarks", "cpp", "docs", "examples", "integrations", "packages", "python")
    suffixes = (".py", ".pyi", ".cc", ".h", ".md")
    files = [
        file
        for folder in (*folders, "research", "scripts", "src")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in suffixes
    ]
    texts = {file: f"{file.name}\n{file.read_text()}" for file in files}
    found = {
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file, text in texts.items()
        for match in re.finditer(BRITISH, text, re.IGNORECASE)
    }
    assert not found, "\n".join(sorted(found))
