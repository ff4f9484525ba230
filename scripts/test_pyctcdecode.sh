#!/usr/bin/env bash
# Compares our interface with kenlm: words, sentences and states, then pyctcdecode's beams with either.
# In an environment of its own with numpy 1.26: build/pyctcdecode-venv. Where that cannot be built, the
# reason is printed.
#
# Usage: test_pyctcdecode.sh [ARGUMENT...]    those of packages/recognition/tests/compare_pyctcdecode.py
#
# Variables: PYTHON  an interpreter with this package, of the same version (default: .venv's)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly folder=build/pyctcdecode-venv
python=${PYTHON:-.venv/bin/python}

if [[ ! -f $folder/installed.stamp ]]; then
  printf 'test_pyctcdecode: numpy 1.26, kenlm and pyctcdecode into %s\n' "$folder"
  rm -rf "$folder"
  if ! { "$("$python" -c 'import sys; print(sys._base_executable)')" -m venv "$folder" &&
    "$folder/bin/python" -m pip install --disable-pip-version-check --quiet --use-pep517 \
      'numpy==1.26.4' 'kenlm==0.3.0' 'pyctcdecode==0.5.0' 'pytest==9.1.1'; } >build/pyctcdecode.log 2>&1; then
    printf 'test_pyctcdecode: skipped, the environment cannot be built: %s\n' \
      "$(grep -i error build/pyctcdecode.log | tail -n 1)"
    exit 0
  fi
  touch "$folder/installed.stamp"
fi
# The core and the package as they are now; both run with numpy 1.26 too.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
core=$("$python" -c 'import lattice_bpd._core as core; print(core.__file__)')
rm -rf "$site"/lattice_bpd "$site"/lattice_bpd_recognition
cp -r python/lattice_bpd packages/recognition/lattice_bpd_recognition "$site"
cp "$core" "$site"/lattice_bpd
"$folder/bin/python" -m pytest -q -rs -p no:cacheprovider packages/recognition/tests/test_kenlm_interface.py
exec "$folder/bin/python" packages/recognition/tests/compare_pyctcdecode.py "$@"
