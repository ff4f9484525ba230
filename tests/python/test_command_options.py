"""Every option of every command changes what the command passes on to the library.

Each command runs twice with the library functions of its scene replaced: as it is, and with one
option changed. The arguments that the functions were given must differ and hold the value that was
given, at the parameter of the option's name where there is one. Of commands without a scene, which
other distributions have, the code must name each option.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import io
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from command_scenes import CHANGES, END, SHARED, Arguments, Change, End, Stub, make_scenes
from lattice_bpd.cli import build_parser


def leaf_parsers(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parsers of all commands, by what is typed."""
    if not parser.add_help:  # its distribution is not installed
        return
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for word, child in action.choices.items():
            yield from leaf_parsers(child, f"{name} {word}".strip())


PARSERS = dict(leaf_parsers(build_parser()))
SCENES = make_scenes(lambda *_, **__: None)
OPTIONS = [
    pytest.param(
        command,
        action.dest,
        id=f"{command} {(action.option_strings or [action.dest])[-1]}".replace(" ", "_"),
    )
    for command in SCENES
    if command in PARSERS
    for action in PARSERS[command]._actions
    if action.dest != "help"
]


def action_of(command: str, dest: str) -> argparse.Action:
    return next(action for action in PARSERS[command]._actions if action.dest == dest)


def to_argv(command: str, arguments: Arguments) -> list[str]:
    """The command line after the command; positional arguments are last."""
    options, positional = [], []
    for action in PARSERS[command]._actions:
        if action.dest not in arguments:
            continue
        values = arguments[action.dest]
        if action.option_strings:
            options += [action.option_strings[-1], *values]
        else:
            positional += values
    return [*options, "--", *positional] if positional else options


def flatten(name: str, value: Any, into: dict[str, Any]) -> None:
    """The parts of an argument by name: fields of dataclasses, entries of dicts and lists."""
    parts: dict[Any, Any] = {}
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, (list, tuple)):
        into[name] = tuple(plain(part) for part in value)
        parts = {n: part for n, part in enumerate(value) if not isinstance(part, PLAIN)}
    else:
        into[name] = plain(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, (type, Stub)):
            parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    for key, part in parts.items():
        flatten(f"{name}.{key}", part, into)


PLAIN = (bool, int, float, str, type(None))


def plain(value: Any) -> Any:
    """A number or text as it is; of an object what names it."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Stub):
        return f"<{value.name}>"
    if isinstance(value, Path) or hasattr(value, "lossless"):  # acceptance rules: "top_k:4"
        return str(value)
    return type(value).__name__


class Notes:
    """What replaced functions were given, by "function.parameter"; repeated calls are numbered."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, function: str, **arguments: Any) -> None:
        count = self._counts[function] = self._counts.get(function, 0) + 1
        name = function if count == 1 else f"{function}#{count}"
        for parameter, value in arguments.items():
            flatten(f"{name}.{parameter}", value, self.values)

    def replace(self, monkeypatch: pytest.MonkeyPatch, target: str, result: Any) -> None:
        """Replace the function of a dotted name by one that notes its arguments."""
        holder, attribute = _resolve(target)
        try:
            signature = inspect.signature(getattr(holder, attribute))
        except ValueError:  # of C
            signature = inspect.Signature(
                [inspect.Parameter("arg0", inspect.Parameter.POSITIONAL_ONLY)]
            )

        def replacement(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            self(target.rsplit(".", 1)[1], **_named(signature, bound))
            if result is END:
                raise End
            return result(*args, **kwargs) if inspect.isfunction(result) else result

        monkeypatch.setattr(holder, attribute, replacement)


def _resolve(target: str) -> tuple[Any, str]:
    """The module or class that holds what a dotted name means, and its name there."""
    *parts, name = target.split(".")
    holder: Any = importlib.import_module(parts[0])
    for number, part in enumerate(parts[1:], 2):
        try:  # a package may hold a function of the same name
            holder = importlib.import_module(".".join(parts[:number]))
        except ModuleNotFoundError:
            holder = getattr(holder, part)
    return holder, name


def _named(signature: inspect.Signature, bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments by name; those of **options by their own."""
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        else:
            named[name] = value
    return named


def run(
    command: str, change: Change, arguments: Arguments, folder: Path, monkeypatch: Any
) -> dict[str, Any]:
    """Run a command in a fresh folder; what its functions were given, what it printed and wrote."""
    notes = Notes()
    scene = make_scenes(notes)[command]
    folder.mkdir()
    for name, text in {**scene.files, **change.files}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    args = PARSERS[command].parse_args(to_argv(command, arguments))
    output = io.StringIO()
    with monkeypatch.context() as patched, contextlib.redirect_stdout(output):
        patched.chdir(folder)
        for target, result in scene.calls.items():
            notes.replace(patched, target, result)
        with contextlib.suppress(End):
            args.run(args)
    notes.values["stdout"] = output.getvalue()
    notes.values["files"] = tuple(sorted(path.name for path in folder.iterdir()))
    return {
        name: value.replace(str(folder), "HERE") if isinstance(value, str) else value
        for name, value in notes.values.items()
    }


def values_of(action: argparse.Action) -> tuple[list[str], Any]:
    """Another value for an option than its default, as typed and as parsed."""
    if action.nargs == 0:
        return [], action.const if action.const is not None else True
    if action.choices is not None:
        chosen = next(choice for choice in action.choices if choice != action.default)
        return [str(chosen)], chosen
    if action.type is int:
        return ["3"], 3
    if action.type is float:
        return ["0.375"], 0.375
    return ["changed"], "changed"


def holds(value: Any, wanted: Any) -> bool:
    """Whether an argument is, or holds, what is wanted."""
    if callable(wanted):
        return bool(wanted(value))
    if isinstance(value, str) and isinstance(wanted, str):
        return value == wanted or wanted in Path(value).parts
    return value == wanted or (isinstance(value, tuple) and wanted in value)


@pytest.mark.parametrize(("command", "dest"), OPTIONS)
@pytest.mark.filterwarnings("ignore")
def test_every_option_is_passed_on(command, dest, tmp_path, monkeypatch):
    action = action_of(command, dest)
    change = CHANGES.get(command, {}).get(dest) or SHARED.get(dest, Change())
    values, wanted = values_of(action)
    values = values if change.values is None else change.values
    wanted = values[0] if change.values and not isinstance(wanted, int) else wanted
    wanted = change.wanted if change.wanted is not None else wanted
    plain = {**SCENES[command].arguments, **change.given}
    changed = {name: given for name, given in plain.items() if name not in change.drop}
    changed[dest] = values
    if change.given:
        plain = {name: given for name, given in plain.items() if name not in change.drop}
    before = run(command, change, plain, tmp_path / "before", monkeypatch)
    after = run(command, change, changed, tmp_path / "after", monkeypatch)

    moved = {
        name for name in {*before, *after} if before.get(name, before) != after.get(name, after)
    }
    assert moved, f"{command}: {dest} is ignored"
    assert change.must <= moved, f"{command}: {dest} does not reach {change.must - moved}"
    named = {name for name in {*before, *after} if dest in name.split(".")}
    if isinstance(wanted, str):  # what was read from a file is known by its text elsewhere
        named = {name for name in named & moved if not str(after.get(name, "<")).startswith("<")}
    elif not isinstance(wanted, (int, float)):
        named = set()
    passed = {name: after[name] for name in (named or moved) & moved if name in after}
    assert any(holds(value, wanted) for value in passed.values()), (
        f"{command}: {dest} is passed on as {passed}; expected {wanted!r}"
    )


def names_in(code: types.CodeType) -> set[str]:
    """Attributes that code reads, and its strings."""
    names = set(code.co_names)
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            names |= names_in(value)
        elif isinstance(value, (str, tuple)):
            names |= {value} if isinstance(value, str) else set(value)
    return names


@pytest.mark.parametrize("command", [name for name in PARSERS if name not in SCENES])
def test_commands_of_other_distributions_read_their_options(command):
    parser = PARSERS[command]
    run = parser.get_default("run")
    assert not run.__module__.startswith("lattice_bpd."), "a command of the core needs a scene"
    names = set[str]()
    shared = run.__module__.rpartition(".")[0] + ".evaluate_options"  # of kim2024
    modules = [name for name in (run.__module__, shared) if importlib.util.find_spec(name)]
    for name in modules:
        for value in vars(importlib.import_module(name)).values():
            code = getattr(value, "__code__", None)
            names |= names_in(code) if code and value.__name__ != "add_parser" else set()
            names |= set(value) if isinstance(value, tuple) else set()
    assert {action.dest for action in parser._actions} - names <= {"help"}


@pytest.mark.parametrize("command", SCENES)
def test_scenes_have_no_options_that_are_no_more(command):
    if command not in PARSERS:
        pytest.skip("its distribution is not installed")
    known = {action.dest for action in PARSERS[command]._actions}
    given = {*CHANGES.get(command, {}), *SCENES[command].arguments}
    assert not given - known  # options that are no more
