"""Runs pytest in forks of one process that has already imported the slow dependencies.

Reads a JSON object per line on stdin: `arguments` of pytest; `cpu_limit` and `clock_limit` in
seconds, 0 for none; `mutation`, null or a file, a text and its replacement, which imports see while
the file stays as it is; `record`, null or where to write what each test executes, and of which
folders. Answers with one on stdout: `status` (pytest's exit status, or the negative number of the
signal that ended it: SIGXCPU or SIGKILL at a limit) and `output`.
The package under test is imported in the forks only, so it may change between two lines.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

MOST_CASES = 12  # of a test function, evenly spaced
MUTATION = "LATTICE_BPD_MUTATION"  # for subprocesses of tests too

# pytest warns of plugins that it can no longer instrument; the project makes errors of warnings.
ALREADY_IMPORTED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


def import_slow_modules(names: Sequence[str] = ("torch", "transformers", "pytest")) -> None:
    """Import what tests used, once for all later forks."""
    for name in names:
        # The core's extension module, in site-packages too, would import the package with it.
        if name not in sys.modules and not name.startswith(("torch._inductor", "lattice_bpd")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def import_mutated() -> None:
    """Make this process import the mutation of the environment, past any bytecode."""
    if MUTATION not in os.environ:
        return
    mutated, find, replace = json.loads(os.environ[MUTATION])
    get_data, path_stats = SourceFileLoader.get_data, SourceFileLoader.path_stats

    def mutated_data(loader: SourceFileLoader, path: str) -> bytes:
        data = get_data(loader, path)
        return data.replace(find.encode(), replace.encode()) if path == mutated else data

    def no_stats(loader: SourceFileLoader, path: str) -> Mapping[str, Any]:
        if path == mutated:
            raise OSError  # so that bytecode is neither read nor written
        return path_stats(loader, path)

    SourceFileLoader.get_data = mutated_data  # type: ignore[assignment, method-assign]
    SourceFileLoader.path_stats = no_stats  # type: ignore[assignment, method-assign]


class Recorder:
    """A plugin of pytest that notes seconds and executed lines of tests: of some cases of each."""

    def __init__(self, folders: Sequence[str]) -> None:
        import coverage

        include = [f"{folder}/*" for folder in folders]
        self._coverage = coverage.Coverage(data_file=None, include=include, config_file=False)
        self._tests: dict[str, dict[str, Any]] = {}
        self._coverage.start()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        cases: dict[str, list[Any]] = defaultdict(list)
        for item in items:
            cases[item.nodeid.partition("[")[0]].append(item)
        step = {name: len(own) / MOST_CASES for name, own in cases.items()}
        items[:] = [
            own[int(index * max(step[name], 1))]
            for name, own in cases.items()
            for index in range(min(len(own), MOST_CASES))
        ]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._coverage.switch_context(nodeid)
        self._tests[nodeid] = {"seconds": time.process_time(), "lines": defaultdict(list)}

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        test = self._tests[nodeid]
        test["seconds"] = round(time.process_time() - test["seconds"], 3)

    def write(self, file: str) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        for path in data.measured_files():
            for line, tests in data.contexts_by_lineno(path).items():
                for test in filter(None, tests):
                    self._tests[test]["lines"][path].append(line)
        Path(file).write_text(json.dumps(self._tests))


def run_fork(
    arguments: list[str],
    cpu_limit: int = 0,
    clock_limit: int = 0,
    mutation: Sequence[str] | None = None,
    record: tuple[str, list[str]] | None = None,
) -> dict[str, Any]:
    """One pytest run in a process group of its own."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile("w+") as installed:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            if cpu_limit:
                resource.setrlimit(resource.RLIMIT_CPU, (cpu_limit, cpu_limit + 5))
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            import pytest

            status = 3
            try:
                if mutation:
                    os.environ[MUTATION] = json.dumps(mutation)
                    import_mutated()
                recorder = Recorder(record[1]) if record else None
                plugins = [recorder] if recorder else []
                status = int(pytest.main([*ALREADY_IMPORTED, *arguments], plugins))
                if recorder and record:
                    recorder.write(record[0])
            except BaseException:
                traceback.print_exc()
            finally:
                files = {name: getattr(m, "__file__", "") for name, m in sys.modules.items()}
                found = [name for name, file in files.items() if "site-packages" in (file or "")]
                json.dump(found, installed)
                for file in (installed, sys.stdout, sys.stderr):
                    file.flush()
                os._exit(status)
        deadline, done = time.monotonic() + clock_limit, 0
        while not done:
            time.sleep(0.05)
            if clock_limit and time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what a test left running
        output.seek(0)
        installed.seek(0)
        import_slow_modules(json.loads(installed.read() or "[]"))
        return {"status": status, "output": output.read().decode(errors="replace")}


def main() -> None:
    """Answer lines until stdin ends."""
    del sys.path[0]  # the folder of this script
    answers = os.fdopen(os.dup(1), "w")
    import_slow_modules()
    for line in sys.stdin:
        request = json.loads(line)
        json.dump(run_fork(**request), answers)
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
