"""KenLM's programs as peers: lmplz, build_binary, query and kenlm_benchmark.

The source distribution of `kenlm` on PyPI has all their sources (its wheel builds the Python module
only). They are compiled once into build/kenlm, as its own CMakeLists.txt says; Boost comes from
Debian.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from corpus import ROOT
from processes import Usage, run_measured

VERSION = "0.3.0"
NAME = f"KenLM (kenlm {VERSION})"
_FOLDER = ROOT / "build" / "kenlm"
_PROGRAMS = ("lmplz", "build_binary", "query", "kenlm_benchmark")
_BOOST = {  # headers that KenLM's CMakeLists.txt requires, by Debian package
    "libboost-program-options-dev": "boost/program_options.hpp",
    "libboost-system-dev": "boost/system/error_code.hpp",
    "libboost-thread-dev": "boost/thread.hpp",
    "libboost-test-dev": "boost/test/unit_test.hpp",
}
_QUANTIZED = ("-q", "8", "-b", "8", "-a", "22")


def build_kenlm() -> None:
    """Downloads and compiles KenLM, if that is not done yet.

    Raises:
        SystemExit: something is missing; the message says what to type.
    """
    if all((_FOLDER / "bin" / name).is_file() for name in _PROGRAMS):
        return
    _install_boost()
    source = _FOLDER / f"kenlm-{VERSION}"
    if not (source / "CMakeLists.txt").is_file():
        print(f"kenlm: pip download kenlm=={VERSION}", flush=True)
        _run("-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-binary", "kenlm", "--dest", str(_FOLDER), f"kenlm=={VERSION}",
             program=sys.executable)  # fmt: skip
        with tarfile.open(_FOLDER / f"kenlm-{VERSION}.tar.gz") as archive:
            archive.extractall(_FOLDER, filter="data")
    print(f"kenlm: compile {', '.join(_PROGRAMS)} (about a minute)", flush=True)
    _run("-S", str(source), "-B", str(_FOLDER), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release")
    _run("--build", str(_FOLDER), "--target", *_PROGRAMS)


def _install_boost() -> None:
    folders = [Path("/usr/include"), Path("/usr/local/include")]
    missing = [
        package
        for package, header in _BOOST.items()
        if not any((folder / header).is_file() for folder in folders)
    ]
    if not missing:
        return
    install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *missing]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(
            f"kenlm: missing: {' '.join(missing)} (Debian's names). Type this, then run again:\n\n"
            f"    sudo apt-get update && sudo {' '.join(install)}\n"
        )
    print(f"kenlm: apt-get install {' '.join(missing)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "-qq", "update"], check=False)
    subprocess.run(install, check=True, env=environment, stdout=subprocess.DEVNULL)


def _run(*arguments: str, program: str = "cmake") -> None:
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        words = (done.stdout + done.stderr)[-2000:]
        sys.exit(f"kenlm: {Path(program).name} {' '.join(arguments)} failed:\n{words}")


def run_lmplz(text: Path, arpa: Path, order: int, memory: str, *, fallback: bool = False) -> Usage:
    """Trains on text; its temporary files lie beside the ARPA file.

    Args:
        text: a sequence a line.
        arpa: the file to write.
        order: n.
        memory: its budget (-S).
        fallback: take fixed discounts where counts of counts give none (--discount_fallback).
    """
    options: list[str | Path] = ["--discount_fallback"] if fallback else []
    options += ("-o", str(order), "-S", memory, "-T", arpa.parent, "--text", text, "--arpa", arpa)
    return run_measured([_FOLDER / "bin" / "lmplz", *options])


def build_binary(arpa: Path, output: Path, structure: str, *, quantized: bool = False) -> int:
    """Writes a `probing` or `trie` file; returns its bytes."""
    options: Sequence[str] = _QUANTIZED if quantized else ()
    run_measured([_FOLDER / "bin" / "build_binary", *options, structure, arpa, output])
    return output.stat().st_size


def read_counts(arpa: Path) -> list[int]:
    """The number of n-grams of each order, from the head of an ARPA file."""
    counts: list[int] = []
    with arpa.open(encoding="utf-8") as file:
        for line in file:
            if line.startswith("ngram "):
                counts.append(int(line.split("=")[1]))
            elif counts:
                break
    return counts


def query_words(model: Path, line: Path) -> npt.NDArray[np.float64]:
    """log10 P of each word of one line, without <s> and </s>, by `query`."""
    command = [_FOLDER / "bin" / "query", "-n", "-v", "word", model]
    words = run_measured(command, stdin=line).output.split("\n", 1)[0]
    fields = words.rstrip("\t").split("\t")
    return np.array([field.rsplit(" ", 1)[1] for field in fields], np.float64)


def time_text_query(model: Path, line: Path, empty: Path) -> float:
    """CPU seconds of `query` on one line, less those on an empty one: reading text and scoring."""
    command = [_FOLDER / "bin" / "query", "-n", "-v", "summary", model]
    return run_measured(command, stdin=line).cpu - run_measured(command, stdin=empty).cpu


def convert_to_ids(model: Path, text: Path, output: Path) -> None:
    """Writes KenLM's own word ids of a text, for time_id_query."""
    command = [_FOLDER / "bin" / "kenlm_benchmark", "-v", "-m", str(model)]
    with text.open("rb") as source, output.open("wb") as target:
        subprocess.run(command, stdin=source, stdout=target, check=True)


def time_id_query(model: Path, ids: Path) -> float:
    """CPU seconds for each query on one thread: KenLM's own benchmark loop, loading left out."""
    command = [_FOLDER / "bin" / "kenlm_benchmark", "-t", "1", "-q", "-m", model]
    output = run_measured(command, stdin=ids).output
    match = re.search(r"Seconds per query excluding load, CPU: (\S+)", output)
    if match is None:
        raise RuntimeError(f"kenlm_benchmark printed no time:\n{output[-500:]}")
    return float(match[1])
