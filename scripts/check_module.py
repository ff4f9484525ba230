"""Checks what no unit test sees: how fast and how lean the import is, and what _core exports."""

import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

MAX_IMPORT_RATIO = 2.0
IMPORT_ROUNDS = 15
NOT_AT_IMPORT = {"torch", "transformers", "pywrapfst", "kenlm"}


def time_import(module: str) -> float:
    """CPU seconds of one `python -c "import MODULE"` in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_imports() -> tuple[float, float]:
    """Least CPU seconds of importing lattice_bpd and of importing numpy alone, in turns.

    numpy is the yardstick: it is the one import that lattice_bpd cannot do without, and a
    machine that is slow for one is slow for the other.
    """
    rounds = [(time_import("lattice_bpd"), time_import("numpy")) for _ in range(IMPORT_ROUNDS)]
    ours, numpys = zip(*rounds, strict=True)
    return min(ours), min(numpys)


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
    (seconds, yardstick), heavy, exports = time_imports(), find_heavy_imports(), list_exports()
    ratio = seconds / yardstick
    print(
        f"import lattice_bpd: {seconds:.3f} s, {ratio:.2f}x numpy's; exports: {' '.join(exports)}"
    )
    if ratio >= MAX_IMPORT_RATIO:
        failures.append(
            f"import takes {ratio:.2f} times as long as numpy's; expected under {MAX_IMPORT_RATIO}"
        )
    if heavy:
        failures.append(f"import brings in {sorted(heavy)}; import them at first use")
    if [name for name in exports if not name.startswith("PyInit_")] or not exports:
        failures.append(f"_core exports {exports}; expected PyInit_* only, see cmake/exports.map")
    for failure in failures:
        print(f"check_module: {failure}", file=sys.stderr)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
