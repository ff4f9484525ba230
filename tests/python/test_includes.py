"""OpenFst's headers, most of a build's time, are included by the files listed for it alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "cpp"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)

if not CORE.is_dir():
    pytest.skip("the C++ sources are not here", allow_module_level=True)


def list_includes(path: Path) -> list[str]:
    """What a file includes, as it is written there."""
    return INCLUDE.findall(path.read_text(encoding="utf-8"))


def includes_openfst(path: Path, known: dict[Path, bool]) -> bool:
    """Whether a file includes a header of OpenFst, directly or through headers of cpp/."""
    if path not in known:
        known[path] = False  # ends a circle of includes
        known[path] = any(
            name.startswith("fst/")
            or ((CORE / name).is_file() and includes_openfst(CORE / name, known))
            for name in list_includes(path)
        )
    return known[path]


def test_only_listed_files_include_openfst() -> None:
    known: dict[Path, bool] = {}
    sources = [*CORE.rglob("*.cc"), *(ROOT / "src").glob("*.cc")]
    including = {str(path.relative_to(ROOT)) for path in sources if includes_openfst(path, known)}
    build = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    listed = re.search(r"set\(fst_sources\s([^)]*)\)", build)
    assert listed is not None, "CMakeLists.txt sets no fst_sources"
    allowed = {f"cpp/lattice_bpd/{name}" for name in listed[1].split()}
    assert including == allowed, "see CONTRIBUTING.md, Compile time"


def test_includes_are_followed_through_headers() -> None:
    assert includes_openfst(CORE / "lattice_bpd/draft/openfst_engine.cc", {})
    assert not includes_openfst(CORE / "lattice_bpd/draft/find_drafts.cc", {})
