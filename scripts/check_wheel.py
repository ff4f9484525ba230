"""Checks a wheel without installing it: its files, metadata, module and size.

Usage: check_wheel.py dist/lattice_bpd-*.whl ...
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata
from packaging.utils import parse_wheel_filename

MAX_BYTES = 5_000_000
FILES = ["lattice_bpd/__init__.py", "lattice_bpd/py.typed", "lattice_bpd/_core.pyi"]
LICENSES = ["LICENSE", "THIRD_PARTY.md", "openfst/COPYING", "pybind11/LICENSE"]
SYSTEM_LIBRARIES = ("libstdc++.", "libgcc_s.", "libm.", "libc.", "libpthread.", "ld-linux")


def run_tool(*command: str | Path) -> str:
    """What a program of binutils prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def find_module_faults(module: Path) -> list[str]:
    """What is wrong with an extension module: exports, symbols, libraries that it needs."""
    faults = []
    listed = run_tool("nm", "-D", "--defined-only", module)
    exports = [line.split()[-1] for line in listed.splitlines()]
    if exports != ["PyInit__core"]:
        faults.append(f"_core exports {exports}; expected PyInit__core alone (cmake/exports.map)")
    if ".symtab" in run_tool("readelf", "--wide", "--sections", module):
        faults.append("_core has a symbol table; expected a stripped module")
    needed = [
        line.split("[")[1].rstrip("]")
        for line in run_tool("readelf", "--dynamic", module).splitlines()
        if "(NEEDED)" in line
    ]
    foreign = [name for name in needed if not name.startswith(SYSTEM_LIBRARIES)]
    if foreign:
        faults.append(f"_core needs {foreign}; expected the C and C++ libraries alone")
    return faults


def find_metadata_faults(text: bytes, names: list[str], folder: str) -> list[str]:
    """What is wrong with the .dist-info folder; `packaging` knows the rules of metadata."""
    metadata = Metadata.from_email(text, validate=True)
    faults = [
        f"{folder}/licenses/{name} is missing; expected the licenses of all that is inside"
        for name in LICENSES
        if f"{folder}/licenses/{name}" not in names
    ]
    if metadata.license_expression != "Apache-2.0":
        faults.append(f"license {metadata.license_expression}; expected Apache-2.0")
    required = [r for r in metadata.requires_dist or [] if not r.marker]
    if [r.name for r in required] != ["numpy"]:
        faults.append(f"requires {[str(r) for r in required]}; expected numpy alone")
    return faults


def find_faults(wheel: Path) -> list[str]:
    """All that is wrong with a wheel, a line each."""
    faults = []
    size = wheel.stat().st_size
    if size >= MAX_BYTES:
        faults.append(f"{size} bytes; expected under {MAX_BYTES}")
    tags = parse_wheel_filename(wheel.name)[3]
    if not all(tag.platform.startswith("manylinux") for tag in tags):
        faults.append("no manylinux tag in its name; run auditwheel repair (make wheel does)")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
        faults += [f"{name} is missing" for name in FILES if name not in names]
        faults += find_metadata_faults(archive.read(f"{info}/METADATA"), names, info)
        modules = [name for name in names if name.endswith(".so")]
        if len(modules) != 1:
            faults.append(f"shared objects {modules}; expected lattice_bpd/_core alone")
        for name in modules:
            faults += find_module_faults(Path(archive.extract(name, folder)))
    return faults


def main() -> int:
    """Number of wheels that have faults."""
    wheels = [Path(argument) for argument in sys.argv[1:]]
    if not wheels:
        raise SystemExit(__doc__)
    failed = 0
    for wheel in wheels:
        faults = find_faults(wheel)
        failed += bool(faults)
        for fault in faults:
            print(f"check_wheel: {wheel.name}: {fault}", file=sys.stderr)
        if not faults:
            print(f"wheel: {wheel.name} is right, {wheel.stat().st_size / 1e6:.2f} MB")
    return failed


if __name__ == "__main__":
    sys.exit(main())
