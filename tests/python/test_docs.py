"""Every Python example of the pages runs; quoted figures are those of the results.

A page's blocks of Python run in their order, in one namespace and an empty folder. Names that a
page takes for granted (a model of the reader's) come from docs_preludes. A block that cannot run
has a line `<!-- not run: why -->` above it; those are counted here. The README's blocks are given
no names, and a warning is an error in them.
"""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from docs_checks import find_pages

from docs_preludes import PRELUDES
from lattice_bpd.cli import main

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<why>[^>]+?) -->\n)?```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NOT_RUN = {
    "docs/build.md": 1, "packages/drafters/README.md": 1,
    "packages/spark/README.md": 1, "research/kim2024/training.md": 1,
}  # fmt: skip


def pages() -> dict[str, Path]:
    """Each page that has Python in it, by its path."""
    texts = {str(page.relative_to(ROOT)): page for page in find_pages()}
    return {name: page for name, page in texts.items() if "```python\n" in page.read_text()}


def blocks(page: Path) -> list[tuple[int, str, str | None]]:
    """(line of the first statement, code, why it cannot run) of each block."""
    text = page.read_text()
    return [
        (text.count("\n", 0, match.start("code")) + 1, match["code"], match["why"])
        for match in BLOCK.finditer(text)
    ]


def runnable_pages() -> list[str]:
    return [name for name, page in pages().items() if any(b[2] is None for b in blocks(page))]


def test_docs_stay_small() -> None:
    texts = [page.read_text() for page in (ROOT / "docs").rglob("*.md")]
    assert len(texts) <= 16
    assert sum(text.count("\n") for text in texts) <= 3_968  # with a page about GPUs


def test_blocks_that_do_not_run_are_these() -> None:
    skipped = {}
    for name, page in pages().items():
        found = blocks(page)
        assert len(found) == page.read_text().count("```python\n"), name
        skipped[name] = sum(why is not None for _, _, why in found)
    assert {name: count for name, count in skipped.items() if count} == NOT_RUN


@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.KatzWarning")
@pytest.mark.filterwarnings("ignore::lattice_bpd.lm.training.SmoothingWarning")
@pytest.mark.parametrize("name", runnable_pages())
def test_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # the README begins in a clone
    page = pages()[name]
    given = {"__name__": "docs", **PRELUDES.get(name, dict)()}
    if name == "README.md":  # as pasted: nothing is given, nothing warns
        given = {"__name__": "README"}
        warnings.simplefilter("error")
    for line, code, why in blocks(page):
        if why is None:
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), given)  # noqa: S102


def commands_in_docs() -> list[str]:
    """The lines of all fenced blocks that call lattice-bpd, continued lines joined."""
    text = "\n".join(page.read_text() for page in find_pages()).replace("\\\n", " ")
    return sorted(set(re.findall(r"^ *(lattice-bpd [a-z].*?)(?: +#.*)?$", text, re.MULTILINE)))


@pytest.mark.parametrize("command", commands_in_docs())
def test_commands_have_the_options_shown(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()[1:]
    count = 2 if words[0] in ("ngram", "heads", "rescorer") else 1
    with pytest.raises(SystemExit):
        main([*words[:count], "--help"])
    known = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out))
    shown = {word for word in words[count:] if re.match(r"--?[a-z]", word)}
    assert shown <= known


def figure_at(location: str) -> list[str]:
    """The figures at a location such as `ngram.json train` or `heads.json key`, as text.

    In `decode.jsonl tree_36.key` the line of that name, _ for spaces.
    """
    file, keys = location.split(" ")
    text = (RESULTS / file).read_text()
    value: Any
    if file.endswith(".jsonl"):
        lines = [json.loads(line) for line in text.splitlines()]
        value = {line["name"].replace(" ", "_"): line for line in lines if "name" in line}
    else:
        value = json.loads(text)
    for key in keys.split("."):
        lines = value.get("lines", []) if isinstance(value, dict) else []
        named = [line for line in lines if line["name"] == key]
        value = named[0] if named else value[key]
    return [str(value["ours"]), str(value["peer"])] if isinstance(value, dict) else [str(value)]


def test_figures_are_those_of_the_results() -> None:
    text = "\n".join(page.read_text() for page in find_pages())
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.search(r"\| \w+\.jsonl? [\w.-]+ \|$", line)
    ]
    assert len(rows) > 60
    stale = [(row, figure_at(row[-1])) for row in rows if row[1:-1] != figure_at(row[-1])]
    assert not stale, f"pages quote other figures than benchmarks/results: {stale}"
