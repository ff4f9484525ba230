"""examples/demo/llm.py: what `make demo` runs, with and without a real LLM."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PATH = Path(__file__).resolve().parents[2] / "examples" / "demo" / "llm.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec: Any = importlib.util.spec_from_file_location("demo_llm", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.commands = []

    def run(command: list[str], check: bool) -> Any:
        module.commands.append(command[1:])
        return SimpleNamespace(returncode=getattr(module, "status", 0))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return module


def start(demo: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str, found: object) -> None:
    def fetch() -> object:
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setitem(sys.modules, "fetch_smollm2", SimpleNamespace(fetch=fetch))
    monkeypatch.setattr(sys, "argv", ["llm.py", *arguments])
    demo.main()


def test_a_table_and_an_answer(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(demo, monkeypatch, "--chat", "Who?", found=Path("cached"))
    table, answer = demo.commands
    assert table[0].endswith("benchmarks/bench_llm.py")
    assert table[table.index("--lines") + 1].split(";")[-1] == "drafter of the folder"
    assert answer[:4] == ["-m", "lattice_bpd.cli", "generate", "cached"]
    assert answer[-3:] == ["--compare", "--chat", "Who?"]
    assert (demo.DRAFTER / "ngram.lm").is_file()


def test_without_a_network_the_tiny_model(
    demo: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(demo, monkeypatch, found=SystemExit("fetch_smollm2: no index"))
    assert "fetch_smollm2: no index\ndemo: no real LLM" in capsys.readouterr().out
    assert demo.commands == [[str(PATH.with_name("demo.py"))]]


@pytest.mark.parametrize("arguments", [("--small",), ("--small", "--quick"), ("--train",)])
def test_options_of_the_tiny_model(
    demo: Any, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    start(demo, monkeypatch, *arguments, found=AssertionError("no model is needed"))
    others = [argument for argument in arguments if argument != "--small"]
    assert demo.commands == [[str(PATH.with_name("demo.py")), *others]]


def test_a_failure_ends_it(demo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    demo.status = 3
    with pytest.raises(SystemExit) as error:
        start(demo, monkeypatch, found=Path("cached"))
    assert error.value.code == 3
    assert len(demo.commands) == 1
