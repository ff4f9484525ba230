"""Checks what no unit test sees: how fast and how lean the import is, and what _core exports."""

import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

MAX_IMPORT_SECONDS = 0.2
NOT_AT_IMPORT = {"torch", "transformers", "pywrapfst", "kenlm"}


def time_import() -> float:
    """CPU seconds of a whole `python -c "import lattice_bpd"`, the best of ten.

    CPU time is wall time on a machine that does nothing else, and holds on one that does.
    """
    seconds = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import lattice_bpd"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def find_heavy_imports() -> set[str]:
    """Names of NOT_AT_IMPORT that importing lattice_bpd brings in."""
    code = "import sys, lattice_bpd; print(*sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return NOT_AT_IMPORT & set(listed.stdout.split())


def list_exports() -> list[str]:
    """Dynamic symbols that the extension module defines."""
    spec = find_spec("lattice_bpd._core")
    if spec is None or spec.origin is None or not Path(spec.origin).exists():
        raise SystemExit("check_module: lattice_bpd._core is not installed; run `make build`")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", spec.origin], check=True, capture_output=True, text=True
    )
    return [line.split()[-1] for line in listed.stdout.splitlines()]


def main() -> int:
    failures = []
    seconds, heavy, exports = time_import(), find_heavy_imports(), list_exports()
    print(f"import lattice_bpd: {seconds:.3f} s; exports of _core: {' '.join(exports)}")
    if seconds >= MAX_IMPORT_SECONDS:
        failures.append(f"import takes {seconds:.3f} s; expected under {MAX_IMPORT_SECONDS} s")
    if heavy:
        failures.append(f"import brings in {sorted(heavy)}; import them at first use")
    if [name for name in exports if not name.startswith("PyInit_")] or not exports:
        failures.append(f"_core exports {exports}; expected PyInit_* only, see cmake/exports.map")
    for failure in failures:
        print(f"check_module: {failure}", file=sys.stderr)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
