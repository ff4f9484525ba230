"""Checks what no unit test sees: how fast and how lean the import is, and what _core exports."""

import resource
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

MAX_MODULES = 90  # that an import brings in beside numpy's; the wheel's needs 69
NOT_AT_IMPORT = {"torch", "transformers", "pywrapfst", "kenlm"}


def time_import() -> float:
    """CPU seconds of a whole `python -c "import lattice_bpd"`, the best of five; to be read only.

    The speed of processors varies by half from one second to the next, so times decide nothing.
    """
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import lattice_bpd"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(seconds)


def list_modules(name: str) -> set[str]:
    """What is imported once a module is."""
    listed = subprocess.run(
        [sys.executable, "-c", f"import sys, {name}; print(*sys.modules)"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(listed.stdout.split())


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
    modules, exports = list_modules("lattice_bpd"), list_exports()
    added, heavy = modules - list_modules("numpy"), NOT_AT_IMPORT & modules
    print(
        f"import lattice_bpd: {time_import():.3f} s, {len(added)} modules beside numpy's; exports "
        f"of _core: {' '.join(exports)}"
    )
    if len(added) > MAX_MODULES:
        failures.append(
            f"import brings in {len(added)} modules beside numpy's; expected {MAX_MODULES} at most"
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
