"""Commands and strategies of other distributions: installed, missing and broken ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lattice_bpd.cli import build_parser, main

MODULE = """
def add_parser(commands):
    parser = commands.add_parser("greet", help="says hello")
    parser.add_argument("--name", required=True)
    parser.set_defaults(run=lambda args: print(f"hello {args.name}"))
"""


def install(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands: str,
    module: str | None = MODULE,
    name: str = "greetings",
) -> None:
    """Puts a distribution, as pip would write it, on sys.path."""
    info = folder / f"{name}-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(f"[lattice_bpd.commands]\n{commands}\n")
    if module is not None:
        (folder / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_the_command_of_an_installed_distribution_runs(tmp_path, monkeypatch, capsys):
    install(tmp_path, monkeypatch, "greet = greetings:add_parser")
    assert main(["greet", "--name", "Ada"]) == 0
    assert capsys.readouterr().out == "hello Ada\n"
    assert "greet" in build_parser().format_help()
    assert "says hello" in build_parser().format_help()
    with pytest.raises(SystemExit):  # its own usage, and a hint
        main(["greet", "--nam", "Ada", "--nme", "x"])
    assert "did you mean --name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "ModuleNotFoundError: No module named 'greetings'"),
        ("x = 1", "AttributeError: module 'greetings' has no attribute 'add_parser'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        (MODULE + "    raise RuntimeError('too old')", "RuntimeError: too old"),
    ],
)
def test_a_broken_distribution_breaks_its_own_commands_alone(
    module, reason, tmp_path, monkeypatch, capsys
):
    install(tmp_path, monkeypatch, "greet = greetings:add_parser", module)
    assert main(["greet", "--name", "Ada"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"lattice-bpd: error: 'greet', a command of greetings 2.5, cannot be loaded: {reason}"
    )
    assert error.endswith("; update greetings or uninstall it\n")
    assert error.count("\n") == 1
    assert "greet" in build_parser().format_help()
    assert main(["ngram", "info", str(tmp_path / "no.lm")]) == 2  # of the core: runs
    assert "no.lm" in capsys.readouterr().err


def test_a_command_of_the_core_is_not_replaced(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "build = greetings:add_parser\nngram = greetings:add_parser")
    parser = build_parser()
    assert "greet" not in parser.format_help()
    assert parser.parse_args(["ngram", "info", "x"]).run.__module__ == "lattice_bpd.cli.ngram"


def test_a_strategy_of_a_missing_distribution(monkeypatch):
    pytest.importorskip("torch")
    from blockwise_models import random_model
    from lattice_bpd.decode import generate
    from lattice_bpd_conformance.cases import list_cases, list_quick_cases

    model = random_model("llama").base
    cases = {case.strategy for case in list_cases()}
    assert "draft_model" in cases & {case.strategy for case in list_quick_cases()}
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    with pytest.raises(
        ImportError, match="'draft_model' is a strategy of lattice-bpd-drafters; pip install latt"
    ):
        generate(model, [1, 2], "draft_model", lm=model, max_new_tokens=2)
    assert {case.strategy for case in list_cases()} == cases - {"draft_model"}
    assert "draft_model" not in {case.strategy for case in list_quick_cases()}
