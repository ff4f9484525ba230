#!/usr/bin/env bash
# C++ tests under AddressSanitizer with UBSan and under ThreadSanitizer, then the Python property
# tests with a module that is built with the former.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly tree=build/sanitize/python
readonly tests=(tests/python/test_{rescore,rescore_fst,tree,sausage,top_k,hostile_files}.py
  packages/recognition/tests/test_{word_lattices,kenlm_interface,rescore_nbest}.py)

say() { printf 'sanitize: %s\n' "$*"; }

for preset in sanitize sanitize-thread; do
  say "$preset: build"
  cmake --preset "$preset" -DPython_EXECUTABLE="$PWD/.venv/bin/python" >/dev/null
  cmake --build --preset "$preset" --parallel "$(nproc)" -- --quiet
  say "$preset: ctest"
  ctest --preset "$preset" --parallel "$(nproc)"
done

# A package of its own with that module; -S keeps the editable install from being found first.
say "sanitize: pytest"
rm -rf "$tree"
mkdir -p "$tree"
cp -r python/lattice_bpd "$tree/"
cp build/sanitize/_core*.so "$tree/lattice_bpd/"
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The C++ library comes along, or the first exception ends the process; CPython's leaks are its own;
# pytest would swallow reports on stderr.
readonly report=build/sanitize/report
rm -f "$report".*
LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)" \
  ASAN_OPTIONS="detect_leaks=0:log_path=$PWD/$report" \
  UBSAN_OPTIONS="print_stacktrace=1" PYTHONPATH="$PWD/$tree:$PWD/packages/recognition:$packages" \
  .venv/bin/python -S -m pytest -q -p no:cacheprovider "${tests[@]}" || {
  code=$?
  cat "$report".* >&2 2>/dev/null || true
  exit "$code"
}
say "clean"
