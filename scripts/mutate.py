"""Mutation testing: apply small code changes one at a time, run tests, report survivors.

tests/mutations.txt lists the mutations: a unique snippet of a source file, its replacement, and the
tests that must fail under it, or `*` in other lists: tests that execute it. What tests execute is
recorded in build/mutate/executed (which needs `coverage`), anew after changes of a test or of the
package. Imports see a mutation of Python, no file changes; C++ is changed and built in a
copy of the work tree, build/mutate/tree, the extension module for tests in Python too.
Exits with status 1 where fewer than 95 % of the C++ or of the Python mutations are killed, and with
status 2 where mutations no longer apply, do not build, or tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib.util
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCRATCH = ROOT / "build" / "mutate"
TREE = SCRATCH / "tree"
BUILD = SCRATCH / "cmake"
CPP_TESTS = "lattice_bpd_tests"  # the executable of all tests/cpp/*_test.cc
CORE = "_core"  # the extension module, for C++ mutations with tests in Python
LIST = ROOT / "tests" / "mutations.txt"
GOAL = 0.95
PYTEST_FAILED = r"^(?:FAILED|ERROR) (\S+)"
# Of the tests of one mutation. Seconds of the processor, so that a busy machine kills no mutation;
# seconds of the clock for what waits forever.
CPU_LIMIT, CLOCK_LIMIT = 120, 3600
ERROR = 2

COVERING = "*"  # in place of tests: those that execute the mutation
SPECIFIC, SECONDS = 6, 20.0  # of the tests that execute it
PACKAGE = ROOT / "python" / "lattice_bpd"
# Python runs this module at its start if its folder is on the path.
SITE = """
import sys
sys.path.append({scripts!r})
import pytest_forks
pytest_forks.import_mutated()
sys.path.remove({scripts!r})
"""
# Runs pytest on the package in this folder, whatever is installed.
WITHOUT_INSTALLED = """
import sys
editable = "ScikitBuildRedirectingFinder", "_RebuildFinder"
sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ not in editable]
sys.path.insert(0, "python")
import pytest
sys.exit(pytest.main())
"""


class MutateError(Exception):
    """The run cannot continue; the message says why."""


class Mutation(NamedTuple):
    """A change of one source file.

    Attributes:
        name: unique, says what is wrong with the changed code.
        path: the file, relative to the root.
        tests: what must fail: pytest files or node ids, or C++ test files, separated by spaces;
            `*`: tests that execute it.
        find: text that occurs exactly once in the file.
        replace: the replacement.
    """

    name: str
    path: str
    tests: str
    find: str
    replace: str

    def problem(self) -> str | None:
        """Why it does not apply; None where it does."""
        file = ROOT / self.path
        if not file.is_file():
            return f"{self.path} does not exist{_found_elsewhere(self)}"
        count = file.read_text(encoding="utf-8").count(self.find)
        if count == 0:
            return f"{self.path} does not contain {self.find!r}{_found_elsewhere(self)}"
        return None if count == 1 else f"{self.path} contains {self.find!r} {count} times"


class Outcome(NamedTuple):
    """What the tests said; `killer` is the first test that failed, None where none did."""

    killer: str | None
    seconds: float


@dataclass
class Progress:
    """Prints a line for each mutation, with the time that is left.

    Attributes:
        total: mutations to run.
        start: when the first one began, `time.monotonic`.
        done: mutations that were run.
    """

    total: int
    start: float = field(default_factory=time.monotonic)
    done: int = 0

    def report(self, mutation: Mutation, outcome: Outcome) -> None:
        """Report one mutation."""
        self.done += 1
        left = (time.monotonic() - self.start) / self.done * (self.total - self.done)
        result = "SURVIVED" if outcome.killer is None else f"killed by {outcome.killer}"
        say(
            f"[{self.done}/{self.total}] {mutation.name}: {result} "
            f"({outcome.seconds:.0f} s; {left / 60:.0f} min left)"
        )


Run = Callable[[Sequence[Mutation], Progress], dict[str, Outcome]]


def say(text: str) -> None:
    """One line of progress."""
    print(f"mutate: {text}", flush=True)


def load_mutations(text: str, pattern: str) -> dict[str, list[Mutation]]:
    """The mutations of the list whose names match, of each kind; its first lines say the format."""
    mutations = []
    for section in text.split("\n== ")[1:]:
        path, *entries = section.split("\n# ")
        for title, *lines in map(str.splitlines, entries):
            name, _, tests = title.partition(" | ")
            find, replace = ("\n".join(x[1:] for x in lines if x[:1] == sign) for sign in "-+")
            if not find or not tests or any(line[:1] not in ("-", "+") for line in lines):
                raise MutateError(f"{LIST.name}: cannot read the mutation {title!r} of {path}")
            mutations.append(Mutation(name, path, tests, find, replace))
    names = [mutation.name for mutation in mutations]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise MutateError(f"names that occur twice: {', '.join(sorted(doubled))}")
    mutations = [mutation for mutation in mutations if re.search(pattern, mutation.name)]
    return {
        "Python": [mutation for mutation in mutations if mutation.path.endswith(".py")],
        "C++": [mutation for mutation in mutations if not mutation.path.endswith(".py")],
    }


def update_tree() -> None:
    """Make the scratch copy equal the work tree; equal files keep their times for ninja."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    names = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    for file in TREE.rglob("*"):
        if file.is_file() and file.relative_to(TREE).as_posix() not in names:
            file.unlink()
    for name in names:
        target, content = TREE / name, (ROOT / name).read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(ROOT / name, target)


def check_mutations(mutations: Sequence[Mutation]) -> None:
    """Raise MutateError that names every mutation that does not apply."""
    stale = [f"  {m.name}: {problem}" for m in mutations if (problem := m.problem())]
    if stale:
        raise MutateError(
            f"{len(stale)} mutations no longer apply; repair them in {LIST.relative_to(ROOT)}:\n"
            + "\n".join(stale)
        )


class PytestForks:
    """scripts/pytest_forks.py: torch is imported once, not per mutation."""

    def __init__(self) -> None:
        site, scripts = SCRATCH / "site", str(ROOT / "scripts")
        site.mkdir(parents=True, exist_ok=True)
        (site / "sitecustomize.py").write_text(SITE.format(scripts=scripts))
        paths = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        limits = {"LATTICE_BPD_REBUILD": "0", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / "pytest_forks.py")],
            cwd=ROOT, env={**os.environ, **limits, "PYTHONPATH": paths},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
        self,
        names: Sequence[str],
        mutation: Mutation | None = None,
        record: Path | None = None,
        cpu_limit: int = CPU_LIMIT,
    ) -> Outcome:
        """Run tests in a fork.

        Args:
            names: files or node ids.
            mutation: what is changed; the first test that fails or exceeds a limit ends the run.
            record: where to write what tests execute of the package.
            cpu_limit: seconds of the processor for the tests of a mutation.

        Raises:
            MutateError: pytest could not run them, for example a module that cannot be imported.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        start = time.monotonic()
        plain = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"]
        request: dict[str, Any] = {"arguments": [*plain, *names]}
        if mutation:
            request["arguments"].append("-x")
            request |= {"cpu_limit": cpu_limit, "clock_limit": CLOCK_LIMIT}
            request["mutation"] = [str(ROOT / mutation.path), mutation.find, mutation.replace]
        if record:
            request["record"] = [str(record), [str(PACKAGE)]]
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer = stdout.readline()
        if not answer:
            raise MutateError("scripts/pytest_forks.py ended")
        content, seconds = json.loads(answer), time.monotonic() - start
        status, output = content["status"], content["output"]
        if status < 0:
            return Outcome(_describe_signal(-status), seconds)
        if mutation and status in (2, 4):  # without it they could be collected
            return Outcome("collecting the tests", seconds)
        if status not in (0, 1):
            raise MutateError(f"pytest {' '.join(names)}: status {status}:\n{output[-3000:]}")
        return _outcome(status, output, PYTEST_FAILED, seconds)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def run_python(
    mutations: Sequence[Mutation], progress: Progress, most_seconds: float = SECONDS
) -> dict[str, Outcome]:
    """Run the Python mutations."""
    package = importlib.util.find_spec("lattice_bpd")
    if package is None or not (package.origin and PACKAGE in Path(package.origin).parents):
        raise MutateError(f"tests would import {package and package.origin}; expected {PACKAGE}")
    with closing(PytestForks()) as forks:
        names = sorted({name for m in mutations for name in m.tests.split() if name != COVERING})
        if names:
            say(f"Python: {len(names)} tests without a mutation")
            plain = forks.run(names)
            if plain.killer is not None:
                raise MutateError(f"{plain.killer} fails without any mutation")
        sampled = sorted({Path(m.path) for m in mutations if m.tests == COVERING})
        executed = record_executed(sampled, forks)
        progress.start = time.monotonic()
        outcomes = {}
        for mutation in mutations:
            tests, limit = mutation.tests.split(), CPU_LIMIT
            if tests == [COVERING]:
                tests = choose_tests(mutation, executed, most_seconds)
                limit = 20 + int(3 * sum(executed[test].seconds for test in tests))
            outcomes[mutation.name] = (
                forks.run(tests, mutation, cpu_limit=limit) if tests else Outcome(None, 0)
            )
            progress.report(mutation, outcomes[mutation.name])
    return outcomes


class Executed(NamedTuple):
    """What a test executes: seconds of the processor, and (file, line) of the package."""

    seconds: float
    lines: frozenset[tuple[str, int]]


def record_executed(paths: Sequence[Path], forks: PytestForks) -> dict[str, Executed]:
    """What the tests execute of these files, by node id; recorded where there is no record yet.

    Tests are those in files that import from the packages of the mutated files or name what these
    export.
    """
    if not paths:
        return {}
    packages = {Path(path.parts[2]).stem for path in paths}
    exports = [PACKAGE / name / "__init__.py" for name in sorted(packages)]
    texts = [file.read_text(encoding="utf-8") for file in exports if file.is_file()]
    names = [f"lattice_bpd.{name}" for name in packages]
    names += [name for text in texts for name in re.findall(r'^    "(\w+)",$', text, re.MULTILINE)]
    imported = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    executed: dict[str, Executed] = {}
    (SCRATCH / "executed").mkdir(parents=True, exist_ok=True)
    for file in sorted((ROOT / "tests" / "python").glob("test_*.py")):
        if not imported.search(file.read_text(encoding="utf-8")):
            continue
        key = hashlib.sha256(digest.digest() + file.read_bytes()).hexdigest()[:16]
        record = SCRATCH / "executed" / f"{file.stem}-{key}.json"
        if not record.is_file():
            outcome = forks.run([str(file.relative_to(ROOT))], record=record)
            say(f"recorded {file.name} ({outcome.seconds:.0f} s)")
            if outcome.killer is not None:
                record.unlink(missing_ok=True)
                raise MutateError(f"{outcome.killer} fails without any mutation")
        for name, test in json.loads(record.read_text()).items():
            lines = frozenset((path, n) for path, ns in test["lines"].items() for n in ns)
            executed[name] = Executed(test["seconds"], lines)
    return executed


def choose_tests(
    mutation: Mutation, executed: dict[str, Executed], most_seconds: float
) -> list[str]:
    """Tests that execute a mutation, as many as take so many seconds.

    First the most specific ones, which execute least; then those that execute the most lines of the
    package a second that none before executes; then other cases of the same test functions.
    """
    path, covering = str(ROOT / mutation.path), list[str]()
    for lines in _lines_of(mutation):
        wanted = {(path, line) for line in lines}
        covering = [name for name, test in executed.items() if not wanted.isdisjoint(test.lines)]
        if covering:
            break
    covering.sort(key=lambda name: (len(executed[name].lines), executed[name].seconds))
    functions: dict[str, list[str]] = {}
    for name in covering:
        functions.setdefault(name.partition("[")[0], []).append(name)
    first = [cases.pop(0) for cases in functions.values()]
    rest = [name for cases in zip_longest(*functions.values()) for name in cases if name]
    chosen, seen, left = list[str](), set[tuple[str, int]](), most_seconds
    while (first or rest) and (left > 0 or not chosen):
        if not first:
            name = rest.pop(0)
        elif len(chosen) < SPECIFIC:
            name = first.pop(0)
        else:
            rates = {n: len(executed[n].lines - seen) / (executed[n].seconds + 0.05) for n in first}
            name = max(first, key=lambda name: rates[name])
            first.remove(name)
        chosen.append(name)
        seen |= executed[name].lines
        left -= executed[name].seconds
    return chosen


def _lines_of(mutation: Mutation) -> Iterator[set[int]]:
    """The changed lines, then those of the statements and functions around them."""
    source = (ROOT / mutation.path).read_text(encoding="utf-8")
    old, new = mutation.find.split("\n"), mutation.replace.split("\n")
    first = source[: source.index(mutation.find)].count("\n") + 1
    last = first + len(old) - 1
    while old and new and old[0] == new[0]:
        old, new, first = old[1:], new[1:], first + 1
    while old and new and old[-1] == new[-1]:
        old, new, last = old[:-1], new[:-1], last - 1
    yield set(range(first, last + 1))
    around = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(_parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= first and last <= (node.end_lineno or 0)
    ]
    for start, end in sorted(around, key=lambda span: span[1] - span[0]):
        yield set(range(start, end + 1))


@cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def run_cpp(mutations: Sequence[Mutation], progress: Progress) -> dict[str, Outcome]:
    """Run the C++ mutations: build the tests, run the files concerned."""
    update_tree()
    environment = {**os.environ, "CCACHE_BASEDIR": str(SCRATCH), "CCACHE_NOHASHDIR": "1"}
    if not (BUILD / "build.ninja").is_file():
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        _build(
            ["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja", *launcher,
             "-DLATTICE_BPD_BUILD_TESTS=ON", f"-DPython_EXECUTABLE={sys.executable}",
             f"-DCMAKE_PREFIX_PATH={sysconfig.get_path('platlib')}",
             "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O1"],
            environment,
        )  # fmt: skip
    names = sorted({name for mutation in mutations for name in mutation.tests.split()})
    targets = {CORE if "/" in name else CPP_TESTS for name in names}
    say(f"C++: build the tests, run {len(names)} files of them without a mutation")
    _build(["ninja", "-C", str(BUILD), "-j1", *targets], environment)

    def test(names: Sequence[str]) -> Outcome:
        seconds = 0.0
        for name in names:
            outcome = (_run_pytest if "/" in name else _run_executable)(name)
            seconds += outcome.seconds
            if outcome.killer is not None:
                return Outcome(f"{name}: {outcome.killer}", seconds)
        return Outcome(None, seconds)

    plain = test(names)
    if plain.killer is not None:
        raise MutateError(f"{plain.killer} fails without any mutation")
    outcomes = {}
    for mutation in mutations:
        start = time.monotonic()
        with Applied(mutation):
            try:
                _build(["ninja", "-C", str(BUILD), "-j1", *targets], environment)
            except MutateError as error:
                raise MutateError(f"{mutation.name} does not build:\n{error}") from error
            outcome = test(mutation.tests.split())
        outcomes[mutation.name] = outcome._replace(seconds=time.monotonic() - start)
        progress.report(mutation, outcomes[mutation.name])
    return outcomes


class Applied:
    """A mutation in the scratch copy, taken back at the end of the block."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation, self._file = mutation, TREE / mutation.path
        self._text = self._file.read_text(encoding="utf-8")

    def __enter__(self) -> None:
        mutation = self._mutation
        self._file.write_text(self._text.replace(mutation.find, mutation.replace), encoding="utf-8")

    def __exit__(self, *_: object) -> None:
        self._file.write_text(self._text, encoding="utf-8")


def print_rates(kind: str, mutations: Sequence[Mutation], outcomes: dict[str, Outcome]) -> bool:
    """Print kill rate and survivors of one kind; whether the goal is met."""
    survivors = [m for m in mutations if outcomes[m.name].killer is None]
    killed = len(mutations) - len(survivors)
    say(f"{kind}: {killed} of {len(mutations)} killed ({killed / len(mutations):.0%})")
    for mutation in survivors:
        say(f"  survivor: {mutation.name} ({mutation.path}; tests: {mutation.tests})")
    return killed >= GOAL * len(mutations)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the mutations that the options select.

    Returns:
        Exit status, see the module.
    """
    parser = argparse.ArgumentParser(description="Kill rate of the tests' mutations.")
    parser.add_argument("--only", default="", metavar="PATTERN", help="names that match this regex")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="other mutations")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of the tests of a sampled mutation"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--cpp", action="store_true", help="C++ mutations alone")
    kinds.add_argument("--python", action="store_true", help="Python mutations alone")
    args = parser.parse_args(argv)
    os.nice(5)
    runs: dict[str, Run] = {
        "Python": partial(run_python, most_seconds=args.seconds),
        "C++": run_cpp,
    }
    try:
        selected = load_mutations(args.list.read_text(encoding="utf-8"), args.only)
        if args.cpp or args.python:
            selected["Python" if args.cpp else "C++"] = []
        everything = [mutation for mutations in selected.values() for mutation in mutations]
        if not everything:
            raise MutateError(f"no mutation matches --only {args.only!r}")
        check_mutations(everything)
        progress = Progress(len(everything))
        outcomes_by_kind = {
            k: runs[k](mutations, progress) for k, mutations in selected.items() if mutations
        }
    except MutateError as error:
        print(f"mutate: error: {error}", file=sys.stderr)
        return ERROR
    rates = [
        print_rates(kind, selected[kind], outcomes) for kind, outcomes in outcomes_by_kind.items()
    ]
    return 0 if all(rates) else 1


def _found_elsewhere(mutation: Mutation) -> str:
    suffix = Path(mutation.path).suffix
    files = [
        file.relative_to(ROOT).as_posix()
        for folder in ("cpp", "src", "python")
        for file in (ROOT / folder).rglob(f"*{suffix}")
        if mutation.find in file.read_text(encoding="utf-8")
    ]
    return f"; it occurs in {', '.join(files)}" if files else ""


def _build(command: Sequence[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise MutateError(f"{' '.join(command)}:\n{(done.stdout + done.stderr)[-3000:]}")


def _run_pytest(name: str) -> Outcome:
    (module,) = BUILD.glob(f"{CORE}.*.so")
    shutil.copy2(module, TREE / PACKAGE.relative_to(ROOT))
    options = ["-xq", "-p", "no:cacheprovider", name]
    return _run([sys.executable, "-c", WITHOUT_INSTALLED, *options], PYTEST_FAILED)


def _run_executable(name: str) -> Outcome:
    command = [str(BUILD / CPP_TESTS), f"--source-file=*/{name}.cc", "--abort-after=1"]
    return _run(command, r"^TEST CASE:\s+(.+)$")


def _run(command: Sequence[str], killer: str) -> Outcome:
    start = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=TREE, check=False, capture_output=True, text=True, errors="replace",
            timeout=CLOCK_LIMIT, preexec_fn=_limit_cpu,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Outcome("the clock", CLOCK_LIMIT)
    seconds = time.monotonic() - start
    if done.returncode < 0:
        return Outcome(_describe_signal(-done.returncode), seconds)
    return _outcome(done.returncode, done.stdout, killer, seconds)


def _limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT, CPU_LIMIT))


def _describe_signal(number: int) -> str:
    return f"signal {signal.Signals(number).name}"


def _outcome(status: int, output: str, killer: str, seconds: float) -> Outcome:
    """The first failed test, as the pattern finds it in the output; None for status 0."""
    if status == 0:
        return Outcome(None, seconds)
    named = re.search(killer, output, re.MULTILINE)
    return Outcome(named[1] if named else f"exit status {status}", seconds)


if __name__ == "__main__":
    sys.exit(main())
