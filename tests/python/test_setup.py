"""Set-up by purpose: the extras of pyproject.toml, the targets that install them, setup.sh."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from docs_checks import find_pages

ROOT = Path(__file__).resolve().parents[2]
SETUP = (ROOT / "scripts" / "setup.sh").read_text()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """scripts/requirements.py."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("requirements")


def names_of(requirements: list[str]) -> set[str]:
    """Distribution names, normalized."""
    return {re.split(r"[ <>=!~;\[]", line)[0].lower().replace("_", "-") for line in requirements}


def packages_of(script: Any, *extras: str) -> set[str]:
    return names_of(script.requirements(list(extras), script.load_extras()))


def pins() -> dict[str, str]:
    """Each name that constraints.txt pins, and the comment after the pin."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    matches = [
        re.fullmatch(r"([\w-]+)==[^#]*(?:# (.*))?", line) for line in lines if line[0] != "#"
    ]
    return {match[1]: match[2] or "" for match in matches if match}


def test_extras_of_this_project_are_expanded(script: Any) -> None:
    extras = {"a": ["x>=1", "lattice-bpd[b,c]"], "b": ["y", "x>=1"], "c": ["lattice-bpd[b]", "z"]}
    assert script.requirements(["a"], extras) == ["x>=1", "y", "z"]
    assert script.requirements(["c", "a"], extras) == ["y", "x>=1", "z"]
    extras = {
        "a": ["lattice-bpd-x", "y"],
        "lattice-bpd-x": ["lattice-bpd", "lattice-bpd[b]", "w"],
        "b": ["z"],
    }
    assert script.requirements(["a"], extras) == ["z", "w", "y"]
    extras = {"a": [], "b": [], "c": []}
    with pytest.raises(SystemExit, match="no extra 'd'; expected some of a, b, c"):
        script.requirements(["d"], extras)


def test_the_demo_installs_little(script: Any) -> None:
    packages = packages_of(script, "build", "demo")
    tools = {"cmake", "ninja", "numpy", "pybind11", "scikit-build-core", "setuptools"}
    assert packages == tools | {"rich", "safetensors", "tokenizers", "torch", "transformers"}


def test_purposes_do_not_install_what_others_need(script: Any) -> None:
    of = {name: packages_of(script, name) for name in script.load_extras()}
    assert "pyspark" in of["test-spark"]
    for purpose in ("test", "lint", "docs", "wheel", "fuzz"):
        assert "pyspark" not in of[purpose], purpose
    for tool, purpose in {"mypy": "lint", "mkdocs": "docs", "auditwheel": "wheel"}.items():
        assert {name for name in of if tool in of[name]} == {purpose, "dev"}
    assert "torch" not in of["docs"] | of["wheel"] | of["build"]


def test_targets_install_extras_that_exist(script: Any) -> None:
    makefile = (ROOT / "Makefile").read_text()
    purposes = set(re.findall(r"\bsetup-([a-z-]+)", makefile)) - {"format"}  # lint's
    everything = re.search(r"^setup:.*\n\t@scripts/setup\.sh (.*)$", makefile, re.MULTILINE)
    assert everything is not None
    assert purposes == set(everything[1].split())
    assert re.search(r"^demo: setup-bench-llm\b", makefile, re.MULTILINE)
    assert purposes <= set(script.load_extras())
    for target in ("test-spark", "lint", "docs", "wheel", "fuzz"):
        assert re.search(rf"^{target}:.*\bsetup-{target}\b", makefile, re.MULTILINE), target
    assert re.search(r"^test: build-tests\b", makefile, re.MULTILINE)
    assert re.search(r"^build-tests: setup-test\b", makefile, re.MULTILINE)


def test_pins_are_those_of_the_extras(script: Any) -> None:
    required = {name for extra in script.load_extras() for name in packages_of(script, extra)}
    indirect = {name for name, comment in pins().items() if comment.startswith("of ")}
    assert set(pins()) - indirect == required
    assert {pins()[name].removeprefix("of ") for name in indirect} <= set(pins())


def test_each_python_has_one_pin() -> None:
    markers = pytest.importorskip("packaging.markers")
    lines = [line.split("#")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    for python in ("3.10", "3.11", "3.12", "3.13"):
        named = []
        for pin, _, marker in (line.partition(" ; ") for line in lines if line.strip()):
            if not marker or markers.Marker(marker).evaluate({"python_version": python}):
                named.append(pin.split("==")[0])
        assert sorted(named) == sorted(pins()), python


def test_extras_that_the_docs_name_exist(script: Any) -> None:
    text = "\n".join(page.read_text() for page in find_pages())
    named = re.findall(r"(?:lattice-bpd|'\.|\"\.)\[([\w,-]+)\]", text)
    assert named
    assert {extra for group in named for extra in group.split(",")} <= set(script.load_extras())


def test_only_this_project_is_built_without_isolation() -> None:
    calls = re.findall(r"^.*--no-build-isolation.*$", SETUP, re.MULTILINE)
    assert [call.strip() for call in calls] == [
        'CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) pip_install --no-build-isolation --no-deps "${own[@]}"'
    ]
    assert re.search(r"^install_packages\(\) \{ pip_install --use-pep517 ", SETUP, re.MULTILINE)


def test_the_core_and_its_add_ons_are_installed_together(tmp_path: Path) -> None:
    for folder in ("packages/one", "packages/two", "packages/empty"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("packages/one", "packages/two"):
        (tmp_path / folder / "pyproject.toml").touch()
    code = "pip_install() { printf '%s\\n' \"$@\"; }; install_own"
    done = run_functions(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("--editable\n")[1:] == [".\n", "./packages/one\n", "./packages/two\n"]


def run_functions(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs bash code after the functions of setup.sh, in a folder."""
    functions = SETUP[SETUP.index("\nsay()") : SETUP.index("\nmain() {")]
    given = "set -euo pipefail\nlog=log total=0 output=output wanted=()"
    return subprocess.run(
        ["bash", "-c", f"{given}\n{functions}\n{code}"],
        cwd=folder, capture_output=True, text=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip


def test_a_step_says_how_much_it_downloaded(tmp_path: Path) -> None:
    words = (
        "  Downloading torch-2.13.0-cp311-manylinux.whl (191.8 MB)\n"
        "  Downloading rich-14.3.4-py3-none-any.whl.metadata (250 kB)\n"
        "Fetched 9,750 kB in 2s (5,203 kB/s)\n"
        "Processing /opt/x.whl\n  Using cached y.whl (3.0 MB)\n"
    )
    (tmp_path / "words").write_text(words)
    done = run_functions("step one cat words; step two cat words; echo $total", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^setup: one: \d+ s, 202 MB downloaded$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("\n404\n")


def test_a_step_that_fails_ends_set_up(tmp_path: Path) -> None:
    code = (
        "broken() { echo 'ERROR: no such package'; return 3; }; step 'pip install x' broken; echo"
    )
    done = run_functions(code, tmp_path)
    assert done.returncode == 1
    assert "ERROR: no such package" in done.stderr
    assert re.search(r"setup: pip install x: failed after \d+ s", done.stderr)
    assert done.stdout == ""


def test_purposes_are_set_up_once(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    code = (
        "fingerprint() { echo same; }; fingerprint >$(stamp demo); echo other >$(stamp test)\n"
        "find_wanted demo test build; echo ${wanted[*]}; wants test; ! wants demo"
    )
    done = run_functions(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "test build\n"


@pytest.mark.parametrize(("fails", "outcome"), [("nothing", "passed"), ("build-tests", "FAILED")])
def test_check_fresh_reports_every_run(fails: str, outcome: str, tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    make = tmp_path / "make"
    checks = f'[ -f Makefile ] && [ -n "$PIP_CACHE_DIR" ] && [ "$1" != {fails} ]'
    make.write_text(f"#!/bin/sh\n{checks}\n")
    make.chmod(0o755)
    done = subprocess.run(
        [ROOT / "scripts" / "check_fresh.sh", "--setup-only", sys.executable],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    version = ".".join(map(str, sys.version_info[:3]))
    row = done.stdout.splitlines()[-1]
    assert re.fullmatch(rf"{version}, pip \S+ +{outcome}( +\d+){{4}}", row), done.stderr
    assert done.returncode == (outcome == "FAILED")
    assert list(tmp_path.iterdir()) == [make]
