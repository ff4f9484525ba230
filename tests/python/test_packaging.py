"""Checks of set-up, of wheels and of the documentation site: each fault is found and named."""

from __future__ import annotations

import importlib
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lattice_bpd import _core

ROOT = Path(__file__).resolve().parents[2]
NAME = "lattice_bpd-0.1.0-cp311-cp311-manylinux_2_35_x86_64.whl"
INFO = "lattice_bpd-0.1.0.dist-info"
METADATA = """Metadata-Version: 2.4
Name: lattice-bpd
Version: 0.1.0
License-Expression: Apache-2.0
Requires-Dist: numpy>=1.24
Provides-Extra: torch
Requires-Dist: torch>=2.9; extra == "torch"
"""


def load_script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of scripts/."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module(name)


@pytest.fixture
def check_wheel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/check_wheel.py."""
    pytest.importorskip("packaging")
    for tool in ("nm", "readelf"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} (binutils) is not installed")
    return load_script("check_wheel", monkeypatch)


def write_wheel(folder: Path, leave_out: str = "", metadata: str = METADATA) -> Path:
    """A wheel with this process's own module, as `make wheel` lays it out."""
    path = folder / NAME
    licenses = ("LICENSE", "THIRD_PARTY.md", "openfst/COPYING", "pybind11/LICENSE")
    files = ["lattice_bpd/__init__.py", "lattice_bpd/py.typed", "lattice_bpd/_core.pyi"]
    files += [f"{INFO}/licenses/{name}" for name in licenses]
    with zipfile.ZipFile(path, "w") as archive:
        for name in files:
            if name != leave_out:
                archive.writestr(name, "")
        archive.writestr(f"{INFO}/METADATA", metadata)
        if leave_out != "_core":
            archive.write(_core.__file__, f"lattice_bpd/{Path(_core.__file__).name}")
    return path


def test_a_right_wheel_has_no_faults(check_wheel: Any, tmp_path: Path) -> None:
    assert check_wheel.find_faults(write_wheel(tmp_path)) == []


@pytest.mark.parametrize(
    ("leave_out", "says"),
    [
        ("lattice_bpd/py.typed", "py.typed is missing"),
        ("lattice_bpd/_core.pyi", "_core.pyi is missing"),
        (f"{INFO}/licenses/openfst/COPYING", "openfst/COPYING is missing"),
        ("_core", "shared objects []"),
    ],
)
def test_missing_files_are_named(
    leave_out: str, says: str, check_wheel: Any, tmp_path: Path
) -> None:
    (fault,) = check_wheel.find_faults(write_wheel(tmp_path, leave_out))
    assert says in fault


def test_other_faults_are_named(
    check_wheel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, metadata=METADATA + "Requires-Dist: rich\n")
    plain = wheel.rename(wheel.with_name(NAME.replace("manylinux_2_35", "linux")))
    monkeypatch.setattr(check_wheel, "MAX_BYTES", 1000)
    size, tag, requires = check_wheel.find_faults(plain)
    assert "expected under 1000" in size
    assert "auditwheel repair" in tag
    assert "rich" in requires


def test_a_library_that_is_no_part_of_the_system_is_named(
    check_wheel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_wheel, "SYSTEM_LIBRARIES", ("libc.",))
    assert any(
        "libstdc++.so.6" in fault for fault in check_wheel.find_module_faults(_core.__file__)
    )


def test_the_pythons_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pythons = load_script("pythons", monkeypatch)
    listed = pythons.find_pythons(sys.executable)
    assert [python.tag for python in listed] == [f"cp3{sys.version_info.minor}"]
    with pytest.raises(SystemExit, match=r"no-such-python does not run.*expected"):
        pythons.find_pythons("no-such-python")


@pytest.mark.parametrize(
    ("page", "loads"),
    [
        ('<script src="https://example.org/a.js"></script>', True),
        ("<img src='//example.org/a.png'>", True),
        ('<link rel="stylesheet" href="https://example.org/a.css">', True),
        ('<link href="https://example.org/a.css" rel="stylesheet">', True),
        ("@import url(https://example.org/a.css)", True),
        ("b { background: url('https://example.org/a.png') }", True),
        ('<a href="https://example.org/">', False),
        ('<script src="js/a.js"></script>', False),
        ('<link rel="stylesheet" href="css/a.css">', False),
    ],
)
def test_what_a_page_loads_from_elsewhere(
    page: str, loads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = load_script("docs_checks", monkeypatch)
    (tmp_path / "page.html").write_text(page)
    if not loads:
        checks.on_post_build({"site_dir": tmp_path})
        return
    with pytest.raises(SystemExit, match=r"page\.html"):
        checks.on_post_build({"site_dir": tmp_path})


def test_links_of_the_repository_become_links_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = load_script("docs_checks", monkeypatch)
    addon, missing = ROOT / "packages" / "spark" / "README.md", "../../docs/none.md"
    assert addon in checks.find_pages()

    def resolve(text: str, path: Path) -> str:
        page = SimpleNamespace(file=SimpleNamespace(abs_src_path=str(path)))
        return str(checks.on_page_markdown(text, page=page))

    text = (
        f"[a](../../docs/ngram.md#x) [b](../../Makefile) [c]({missing}) [d](#x) [e](https://a.b/)"
    )
    done = "[a](../../ngram.md#x) b [c](../../none.md) [d](#x) [e](https://a.b/)"
    assert resolve(text, addon) == done
    text = "[a](../packages/spark/README.md) [b](serve.md) [c](no-such.txt)"
    assert resolve(text, ROOT / "docs" / "ngram.md") == text.replace("../packages", "packages")


def test_wheels_of_add_ons_have_all_files() -> None:
    tomllib = pytest.importorskip("tomllib")
    projects = [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("research/*/pyproject.toml")]
    assert projects
    for project in projects:
        setuptools = tomllib.loads(project.read_text())["tool"]["setuptools"]
        (folder,) = project.parent.glob("lattice_bpd_*/")
        patterns = setuptools["package-data"][folder.name]
        data = {path for pattern in patterns for path in folder.glob(pattern)}
        files = {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        assert {path for path in files if path.suffix != ".py"} <= data, folder
        if isinstance(setuptools["packages"], list):  # else `find`
            assert {path.parent for path in files} == {folder}
