"""Sample mutations of Python files: operators, constants, conditions and removed statements.

python scripts/sample_mutations.py --count 200 --seed 1 > sample.txt
python scripts/mutate.py --list sample.txt
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [f"python/lattice_bpd/{name}" for name in ("verify", "draft", "decode")]
SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "+",
    ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Change(NamedTuple):
    """Bytes of a file, and what replaces them."""

    first: int
    end: int
    text: str


class Changes:
    """The mutations of the functions of a file; errors, messages and types are left alone."""

    def __init__(self, source: bytes) -> None:
        self.source, self.found = source, list[Change]()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._visit(ast.parse(source), in_function=False)

    def _visit(self, node: ast.AST, *, in_function: bool) -> None:
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            return
        if in_function:
            self._swap(node)
            self._replace(node)
        in_function = in_function or isinstance(node, ast.FunctionDef)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self._visit(child, in_function=in_function)

    def _swap(self, node: ast.AST) -> None:
        """Another operator."""
        parts: tuple[ast.expr, Any, ast.expr] | None = None
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            parts = node.left, node.ops[0], node.comparators[0]
        elif isinstance(node, ast.BinOp):
            parts = node.left, node.op, node.right
        elif isinstance(node, ast.BoolOp):
            parts = node.values[0], node.op, node.values[1]
        if parts is not None and type(parts[1]) in SWAPPED:
            first, end = self._span(parts[0])[1], self._span(parts[2])[0]
            if not re.search(rb"[()]", self.source[first:end]):
                self.found.append(Change(first, end, f" {SWAPPED[type(parts[1])]} "))

    def _replace(self, node: ast.AST) -> None:
        """Another constant, the opposite of a condition, or no statement."""
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            self._add(node, str(not value) if isinstance(value, bool) else f"({value} + 1)")
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            first, end = self._span(node.test)
            self._add(node.test, f"(not ({self.source[first:end].decode()}))")
        elif (
            isinstance(node, ast.AugAssign)
            or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
            or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name))
        ):
            self._add(node, "pass")

    def _add(self, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append(Change(*self._span(node), text))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = self._starts[node.lineno - 1] + node.col_offset
        return first, self._starts[node.end_lineno - 1] + node.end_col_offset


def describe(path: Path, change: Change) -> str | None:
    """The mutation as an entry of tests/mutations.txt; None if it is no Python."""
    source = path.read_bytes()
    try:
        compile(source[: change.first] + change.text.encode() + source[change.end :], "x", "exec")
    except SyntaxError:
        return None
    first = source.rfind(b"\n", 0, change.first) + 1
    end = source.find(b"\n", change.end)
    while source.count(source[first:end]) > 1:  # until the lines occur once
        first = source.rfind(b"\n", 0, first - 1) + 1
    find = source[first:end].decode()
    changed = source[first : change.first].decode() + change.text
    changed += source[change.end : end].decode()
    lines = [f"-{line}" for line in find.split("\n")] + [f"+{line}" for line in changed.split("\n")]
    line = source.count(b"\n", 0, change.first) + 1
    title = f"{path.name}, line {line}, byte {change.first}: {' '.join(change.text.split())}"
    return f"# {title} | *\n" + "\n".join(lines)


def main() -> None:
    """Print a sample of mutations."""
    parser = argparse.ArgumentParser(description="Sample mutations of Python files.")
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    files = [path for folder in args.folders for path in sorted((ROOT / folder).rglob("*.py"))]
    everything = [(path, change) for path in files for change in Changes(path.read_bytes()).found]
    random.Random(args.seed).shuffle(everything)
    entries: dict[Path, list[str]] = {}
    count = 0
    for path, change in everything:
        entry = describe(path, change) if count < args.count else None
        if entry is not None:
            count += 1
            entries.setdefault(path, []).append(entry)
    print(f"{count} of {len(everything)} mutations, seed {args.seed}")
    for path, lines in entries.items():
        print(f"== {path.relative_to(ROOT).as_posix()}", *lines, sep="\n")


if __name__ == "__main__":
    main()
