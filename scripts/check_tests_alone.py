"""Runs every test file alone, in a new process, with its tests in random order.

Usage: check_tests_alone.py [--seed N] [--single] [--limit SECONDS] [FILE ...]

With --single it runs two tests of each file instead, each alone in a process: the last one and a
random one. The seed is printed first; the same seed gives the same order and the same tests.
Failures are printed with the command that repeats them, and end the run with status 1.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_forks import import_slow_modules, run_fork

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/python", "packages/*/tests", "research/*/tests")
NOTHING_RAN = 5  # pytest's status: a whole module may be skipped


class Job(NamedTuple):
    """One pytest run: the name that is printed, and pytest's arguments."""

    name: str
    arguments: list[str]

    @property
    def command(self) -> str:
        return shlex.join(["python", "-m", "pytest", *self.arguments])


def file_jobs(files: Sequence[Path], seed: int) -> list[Job]:
    """Each file as a whole."""
    order = f"--random-order-seed={seed}"
    return [Job(path.name, [str(path.relative_to(ROOT)), order]) for path in files]


def single_jobs(files: Sequence[Path], seed: int) -> list[Job]:
    """The last test of each file and a random one."""
    chosen = random.Random(seed)
    arguments = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header"]
    collected = subprocess.run(
        [*arguments, *map(str, files)], cwd=ROOT, text=True, capture_output=True, check=False
    )
    if collected.returncode not in (0, NOTHING_RAN):
        raise SystemExit(f"check_tests_alone: collection failed\n{collected.stdout}")
    by_file: dict[str, list[str]] = {}
    for line in collected.stdout.splitlines():
        if match := re.match(r"((?:\w+/)+\w+\.py)::", line):
            by_file.setdefault(match[1], []).append(line)
    pairs = [dict.fromkeys([tests[-1], chosen.choice(tests)]) for tests in by_file.values()]
    return [Job(test.rpartition("tests/")[2], [test]) for pair in pairs for test in pair]


def run_process(arguments: Sequence[str], limit: int) -> tuple[int, str]:
    """Status and output of pytest in a new interpreter."""
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"no end after {limit} s\n"
    return ended.returncode, ended.stdout


def run_jobs(jobs: Sequence[Job], *, forks: bool, limit: int) -> list[Job]:
    """Run them one after another; returns those that failed."""
    if forks:
        os.chdir(ROOT)
        import_slow_modules()  # once, not for each test
    failed = []
    for job in jobs:
        started = time.monotonic()
        if forks:
            answer = run_fork(["-p", "no:cacheprovider", *job.arguments], 0, limit)
            status, output = answer["status"], answer["output"]
        else:
            status, output = run_process(["-p", "no:cacheprovider", *job.arguments], limit)
        passed = status in (0, NOTHING_RAN)
        verdict = "passed" if passed else "FAILED"
        print(f"{verdict} {time.monotonic() - started:6.1f} s  {job.name}", flush=True)
        if not passed:
            failed.append(job)
            print(output, flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: all")
    parser.add_argument("--seed", type=int, help="of the order (default: a new one)")
    parser.add_argument("--single", action="store_true", help="two tests of each file, each alone")
    parser.add_argument("--limit", type=int, default=900, metavar="SECONDS", help="of one process")
    args = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    print(f"check_tests_alone: --seed {seed}", flush=True)
    files = [path.resolve() for path in args.files] or [
        path for tests in TESTS for path in sorted(ROOT.glob(f"{tests}/test_*.py"))
    ]
    jobs = (single_jobs if args.single else file_jobs)(files, seed)
    failed = run_jobs(jobs, forks=args.single, limit=args.limit)
    for job in failed:
        print(f"FAILED: {job.command}")
    print(f"check_tests_alone: {len(failed)} of {len(jobs)} failed, --seed {seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
