"""Installs the wheels of dist/ into fresh venvs and tests them there; needs no source on the path.

Usage: test_wheel.py [--extras torch,train,openfst,kenlm] [PYTEST ARGUMENT ...]

The wheel of this Python gets the whole test suite, less the files that begin by asking for a
package which the extras do not bring; those are listed. Every other wheel whose Python is found
gets a quick check of both engines. The venvs are build/wheel-venv and build/wheel-venv-cp3XX.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path

from pythons import Python, find_pythons

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "python"
REPORT = ROOT / "build" / "wheel-tests.xml"
ASKS_FOR = re.compile(r'^(?:\w+ = )?pytest\.importorskip\("([\w.]+)"\)', re.MULTILINE)


def say(text: str) -> None:
    print(f"test-wheel: {text}", flush=True)


def clean_environment() -> dict[str, str]:
    """The environment without paths by which the source tree or a libfst.so could be found."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def wheel_for(tag: str) -> Path | None:
    """The wheel of dist/ for an ABI such as cp311."""
    wheels = sorted((ROOT / "dist").glob(f"lattice_bpd-*-{tag}-*manylinux*.whl"))
    return wheels[-1] if wheels else None


def run_inside(python: Path, script: str, *arguments: str) -> int:
    """Runs a script of scripts/ with a venv's Python and nothing else on its path."""
    command = [str(python), "-I", str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, env=clean_environment(), cwd=ROOT).returncode


def make_venv(python: Python, wheel: Path, name: str, extras: str, packages: list[str]) -> Path:
    """Python of a fresh venv with the wheel, its extras and what the tests need."""
    folder = ROOT / "build" / name
    subprocess.run([python.path, "-m", "venv", "--clear", folder], check=True)
    inside = folder / "bin" / "python"
    wanted = f"lattice-bpd[{extras}] @ {wheel.as_uri()}" if extras else str(wheel)
    command = [str(inside), "-m", "pip", "install", "--quiet", "--only-binary", "numpy"]
    command += ["--constraint", str(ROOT / "constraints.txt"), wanted, *packages]
    subprocess.run(command, check=True, env=clean_environment())
    return inside


def find_left_out(python: Path) -> dict[str, list[str]]:
    """For each package that is not in the venv, the test files that begin by asking for it."""
    asking = {path.name: ASKS_FOR.findall(path.read_text()) for path in TESTS.glob("test_*.py")}
    names = sorted({name for names_needed in asking.values() for name in names_needed})
    code = (
        "import sys, importlib.util as u; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
    )
    missing = subprocess.run([python, "-I", "-c", code, *names], capture_output=True, text=True)
    left_out = defaultdict(list)
    for file, names_needed in sorted(asking.items()):
        for name in [name for name in names_needed if name in missing.stdout.split()][:1]:
            left_out[name].append(file)
    return dict(left_out)


def report_counts() -> None:
    """What ran, and why what was skipped was skipped; from pytest's report."""
    cases = list(ElementTree.parse(REPORT).iter("testcase"))
    skips = [skip for case in cases for skip in case.findall("skipped")]
    wrong = [case for case in cases if {"failure", "error"} & {child.tag for child in case}]
    passed = len(cases) - len(skips) - len(wrong)
    say(f"{passed} passed, {len(wrong)} failed, {len(skips)} skipped")
    for reason, count in Counter(str(skip.get("message")) for skip in skips).most_common():
        say(f"  skipped {count}: {reason}")


def run_suite(python: Path, arguments: list[str]) -> int:
    """Runs the suite in the venv; its exit status."""
    left_out = find_left_out(python)
    for name, files in left_out.items():
        say(f"left out, {len(files)} files that need {name}: {' '.join(files)}")
    ignored = [f"--ignore={TESTS / file}" for files in left_out.values() for file in files]
    options = ["-q", "-p", "no:cacheprovider", f"--junit-xml={REPORT}", *ignored]
    tests = arguments or [str(TESTS)]
    status = run_inside(python, "installed_tests.py", "pytest", *options, *tests)
    report_counts()
    return status


def check_other(python: Python) -> int:
    """The quick check for the wheel of another Python, if there is one."""
    wheel = wheel_for(python.tag)
    if wheel is None:
        say(f"no wheel for {python.tag} in dist/; not checked")
        return 0
    inside = make_venv(python, wheel, f"wheel-venv-{python.tag}", "", [])
    say(f"{wheel.name}: quick check")
    return run_inside(inside, "installed_tests.py", "quick")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="extras to install, with commas between")
    options, arguments = parser.parse_known_args()
    own, *others = find_pythons()
    wheel = wheel_for(own.tag)
    if wheel is None:
        raise SystemExit(f"test-wheel: no wheel for {own.tag} in dist/; run: make wheel")
    say(f"{wheel.name} into build/wheel-venv, extras: {options.extras or 'none'}")
    python = make_venv(own, wheel, "wheel-venv", options.extras, ["pytest"])
    status = run_suite(python, arguments)
    status |= run_inside(python, "check_module.py")
    return int(any([status, *map(check_other, others)]))


if __name__ == "__main__":
    sys.exit(main())
