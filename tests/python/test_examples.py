"""The examples run, are short, and do what they say."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example here and gives what it printed."""

    def run_example(name: str) -> str:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run_example


def test_own_loop_needs_no_torch():
    code = (
        f"import runpy, sys; runpy.run_path({str(EXAMPLES / 'own_loop.py')!r}); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    tokens_a_step = float(done.stdout.split(":")[1].split()[0])
    assert tokens_a_step > 2  # five are the most: four slots and the exact token


@pytest.mark.parametrize(("name", "tokens"), [("generate.py", 60), ("own_drafter.py", 120)])
def test_tokens_take_fewer_calls(name, tokens, run):
    pytest.importorskip("torch")
    words = run(name).split()
    assert words[0] == str(tokens)
    assert int(words[3]) < tokens  # calls


def test_custom_generate(run):
    pytest.importorskip("torch")
    assert "tokens as plain generate" in run("custom_generate.py")


def test_grammar_of_a_json_schema(run):
    pytest.importorskip("torch")
    pytest.importorskip("llguidance")
    text, counts = run("json_schema.py").splitlines()
    assert set(ast.literal_eval(text)) == {"name", "size", "count"}
    tokens, calls = (int(counts.split()[column]) for column in (0, 3))
    assert calls < tokens
