"""The package's structure, read from its imports: layers, circles, public names."""

import ast
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2] / "python"

# Imports go to an earlier entry of a list, or stay within the entry; see docs/design.md.
LAYERS = {
    "": [
        "_core arguments extensions", "text_input",
        "token_ids vocabulary watcher atomic_files openai_server pretrained",
        "lattice lm",
        "draft", "models", "verify", "decode", "train", "build",
        "cli",
    ],
    "draft": ["*", "scorers"],
    "verify": ["*", "acceptance"],
    "decode": [
        "state", "drafters", "strategies", "drafter_file", "certificate", "loop", "huggingface",
    ],
    "train": [
        "text_files id_files trainer", "corpus", "corpus_lm words", "responses", "head_states",
        "vocabulary_heads",
    ],
}  # fmt: skip


class Import(NamedTuple):
    source: str  # the importing module, without "lattice_bpd."
    target: str  # the module that the name is defined in or that is imported
    line: int
    in_function: bool
    for_types: bool
    from_root: bool


def module_names() -> dict[str, Path]:
    modules = {}
    for path in ROOT.glob("lattice_bpd/**/*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return modules


MODULES = module_names()


def imports_of(module: str) -> Iterator[Import]:
    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            inside = in_function or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            types = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child))
            if (
                isinstance(child, ast.ImportFrom)
                and (child.module or "").split(".")[0] == "lattice_bpd"
            ):
                for alias in child.names:
                    full = f"{child.module}.{alias.name}"
                    is_module = full in MODULES or full == "lattice_bpd._core"
                    target = full if is_module else str(child.module)
                    root = child.module == "lattice_bpd" and not is_module
                    yield Import(
                        module.partition(".")[2], target.partition(".")[2], child.lineno, inside,
                        types, root,
                    )  # fmt: skip
            yield from visit(child, inside, types)

    yield from visit(ast.parse(MODULES[module].read_text()), False, False)


IMPORTS = [
    edge
    for module, path in MODULES.items()
    if path.name != "__init__.py"  # a package's list of names
    for edge in imports_of(module)
]


def entry_of(module: str, package: str) -> str | None:
    """The entry of a package's list of layers that a module belongs to; None outside of it."""
    prefix = f"{package}." if package else ""
    if not module.startswith(prefix):
        return None
    name = module[len(prefix) :].split(".")[0]
    listed = {one for entry in LAYERS[package] for one in entry.split()}
    return name if name in listed else "*"


@pytest.mark.parametrize("package", LAYERS)
def test_imports_go_down_the_layers(package: str) -> None:
    level = {name: n for n, entry in enumerate(LAYERS[package]) for name in entry.split()}
    wrong = []
    for edge in IMPORTS:
        source, target = entry_of(edge.source, package), entry_of(edge.target, package)
        if source is None or target is None or source == target or edge.target == "":
            continue
        if level[target] >= level[source] and not (package == "" and source == "cli"):
            wrong.append(f"{edge.source}:{edge.line} imports {edge.target}")
    assert not wrong, "\n".join(wrong)


FOR_TYPES = {  # imports that close a circle of types; take one away rather than add one
    ("decode.state.model", "decode.state.sequence"),
}


def test_there_is_no_circle_of_imports() -> None:
    graph: dict[str, set[str]] = {}
    for edge in IMPORTS:
        if not edge.for_types or (edge.source, edge.target) not in FOR_TYPES:
            graph.setdefault(edge.source, set()).add(edge.target)
    done: set[str] = set()

    def walk(module: str, path: list[str]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for target in graph.get(module, ()):
                walk(target, [*path, module])
            done.add(module)

    for module in sorted(graph):
        walk(module, [])


def test_the_core_imports_no_add_on() -> None:
    root = ROOT.parent
    folders = [*root.glob("packages/*/lattice_bpd_*"), *root.glob("research/*/lattice_bpd_*")]
    add_ons = {folder.name for folder in folders}
    assert "lattice_bpd_kim2024" in add_ons
    core = [*MODULES.values(), *root.glob("integrations/*/lattice_bpd_*/**/*.py")]
    core += root.glob("integrations/*/lattice_bpd_*.py")
    wrong = []
    for path in core:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{path}: {name}" for name in names if name.split(".")[0] in add_ons]
    assert not wrong, "\n".join(wrong)


def test_modules_import_each_other_at_the_top_and_not_by_the_root() -> None:
    wrong = [
        f"{edge.source}:{edge.line} imports {edge.target or 'the root'}"
        for edge in IMPORTS
        if (edge.in_function or edge.from_root) and not edge.source.startswith("cli")
    ]
    assert not wrong, "\n".join(wrong)


def test_a_wheel_has_every_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns of what a package leaves out match folders of any depth."""
    build = pytest.importorskip("scikit_build_core.build")
    monkeypatch.chdir(ROOT.parent)
    wheel = tmp_path / build.build_wheel(str(tmp_path), {"wheel.cmake": "false"})
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    assert packed == {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py")}
