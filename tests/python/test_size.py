"""The size of the core: a feature pays for its room, by what it lets us delete.

The limits are what there is; a change that makes the core smaller lowers them. The aim of 25,000
lines is reached, that of a step of 12 files and 46 functions, with kernels of the CPU and selection
of the target's predictions, is not. Files are not counted: that made us glue what belongs apart.
"""

from __future__ import annotations

import argparse
import ast
import graphlib
import itertools
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2] / "python" / "lattice_bpd"
LIMITS = {"lines": 24_764, "public names": 84}
OPTIONS = 122
STATE = "lattice_bpd.decode.state"
KNOWN_PAIRS = {(f"{STATE}.sequence", f"{STATE}.model")}  # heads read sequences, which have a model
STEPS = {  # by what a step measures
    "text": {"files": 14, "lines": 3_290, "functions": 49},
    "text, LM and heads": {"files": 20, "lines": 4_562, "functions": 66},
}


def test_lines_and_public_names() -> None:
    files = list(ROOT.rglob("*.py"))
    names: set[str] = set()
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            targets = [getattr(t, "id", "") for t in getattr(node, "targets", [])]
            if isinstance(node, ast.Assign) and "__all__" in targets:
                names |= set(ast.literal_eval(node.value))
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    found = {"lines": lines, "public names": len(names)}
    assert all(found[name] <= most for name, most in LIMITS.items()), found


def test_imports_have_no_circles() -> None:
    """Those of types included; a pair that names each other's types is known."""
    files = {
        ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in ROOT.rglob("*.py")
    }
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name, file in files.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.col_offset not in (0, 4):
                continue  # those inside functions
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found = inner if inner in files or alias.name == "_core" else node.module
                if found in files and (found, name) not in KNOWN_PAIRS:
                    sorter.add(name, str(found))
    sorter.prepare()  # raises CycleError


def test_options_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the core's commands; a command's options count anew for each command."""
    from lattice_bpd import cli, extensions

    monkeypatch.setattr(extensions, "find_extensions", lambda _group: {})
    assert count_options(cli.build_parser()) <= OPTIONS


def count_options(parser: argparse.ArgumentParser) -> int:
    count = 0
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            count += sum(map(count_options, action.choices.values()))
        elif not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            count += 1
    return count


@pytest.mark.parametrize("sources", STEPS)
def test_one_step_of_decoding(sources: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, their lines, and functions that one step of the default drafter runs."""
    pytest.importorskip("torch")
    from blockwise_models import VOCAB, looping_text, random_model, small_lm
    from lattice_bpd.decode import generate
    from lattice_bpd.decode.loop.engine import Engine
    from lattice_bpd.models.vocabulary_heads import VocabularyHeads

    clock = itertools.count(0.0, 1e-3)  # the same costs of calls, so the same trees, in each run
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    model: Any = random_model.__wrapped__("llama").base  # no other test has changed it
    options: dict[str, Any] = {}
    if sources != "text":
        heads = VocabularyHeads(range(VOCAB), 32, VOCAB, num_slots=3, inner_size=16)
        options = {"lm": small_lm(), "heads": heads}
    functions: dict[Path, set[str]] = defaultdict(set)
    steps = 0
    inner = Engine.step

    def note(frame: FrameType, event: str, _argument: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if event == "call" and ROOT in path.parents and not name.startswith("<"):
            functions[path].add(f"{name}:{frame.f_code.co_firstlineno}")

    def step(engine: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 8:
            sys.setprofile(note)
        try:
            inner(engine)
        finally:
            sys.setprofile(None)

    prompt = list(looping_text(24))
    generate(model, prompt, max_new_tokens=16, **options)  # what is done once for a model
    monkeypatch.setattr(Engine, "step", step)
    generate(model, prompt, max_new_tokens=32, **options)
    found = {
        "files": len(functions),
        "lines": sum(len(file.read_text(encoding="utf-8").splitlines()) for file in functions),
        "functions": sum(map(len, functions.values())),
    }
    assert steps >= 8
    assert all(found[name] <= most for name, most in STEPS[sources].items()), found
