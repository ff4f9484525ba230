#!/usr/bin/env bash
# Makes .venv with everything the project needs and an editable install in it.
#
# Safe to run again: a stamp makes a second run return at once, an interrupted run is taken up.
#
# Variables: PYTHON       the interpreter of .venv (default: python3)
#            TORCH_INDEX  package index of torch's build, asked only if the configured indexes lack
#                         the CPU build pinned in constraints.txt (default: PyTorch's CPU index);
#                         for a GPU name another of PyTorch's indexes, e.g. .../whl/cu130
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
if command -v "$python" >/dev/null; then  # in an active .venv: the interpreter it was made from
  python=$("$python" -c 'import sys; print(sys._base_executable)')
fi
readonly python
readonly cpu_index=https://download.pytorch.org/whl/cpu
readonly log=.venv/setup.log
readonly stamp=.venv/setup.stamp

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

fingerprint() {
  { "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
    pwd
    echo "${TORCH_INDEX:-} ${OPENFST_SRC:-}"
    cat pyproject.toml constraints.txt scripts/setup.sh
  } 2>/dev/null | sha256sum
}

is_done() { [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" ]]; }

# Prints the Debian packages that are missing, each found by what it is needed for.
missing_packages() {
  "$python" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
  "$python" -c 'import os, sysconfig as s
os.stat(os.path.join(s.get_path("include"), "Python.h"))' 2>/dev/null || echo python3-dev
  command -v g++ >/dev/null || echo g++
  command -v tar >/dev/null || echo tar
  [[ -n $(find /usr/include /usr/local/include -path '*/doctest/doctest.h' -print -quit) ]] ||
    echo doctest-dev
}

install_system_packages() {
  command -v "$python" >/dev/null || fail "found no $python; expected Python >= 3.10;" \
    "apt-get install python3 python3-venv python3-dev, or set PYTHON=/path/to/python3"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version) found; expected Python >= 3.10; set PYTHON=/path/to/python3"
  local missing
  missing=$(missing_packages | xargs)
  [[ -n $missing ]] || return 0
  command -v apt-get >/dev/null ||
    fail "missing on this system: $missing (Debian's names); install them and run again"
  [[ $(id -u) == 0 ]] || fail "missing: $missing. Type this, then run make again:" \
    $'\n\n'"    sudo apt-get update && sudo apt-get install -y $missing"$'\n'
  say "apt-get install $missing"
  { apt-get -qq update || true
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing
  } >"$scratch_log" 2>&1 </dev/null || {
    tail -n 15 "$scratch_log" >&2
    fail "apt-get could not install $missing; install them by hand and run again"
  }
  missing=$(missing_packages | xargs)
  [[ -z $missing ]] || fail "still missing after installing Debian's packages: $missing;" \
    "$python ($("$python" --version)) is perhaps not Debian's; set PYTHON=/usr/bin/python3"
}

make_venv() {
  .venv/bin/python -m pip --version >/dev/null 2>&1 &&
    [[ $(.venv/bin/python --version) == $("$python" --version) ]] && return
  say "python -m venv .venv ($("$python" --version))"
  rm -rf .venv
  "$python" -m venv .venv
}

# pip with the pinned versions; quiet, its words go to the log.
pip_install() {
  .venv/bin/python -m pip install --disable-pip-version-check --constraint "$constraints" "$@" \
    >>"$log" 2>&1 </dev/null || {
    { grep -E '(error|ERROR): ' "$log" || true; tail -n 5 "$log"; } | tail -n 20 >&2
    fail "pip install failed (above; the whole story is in $log)"
  }
}

# constraints.txt pins torch's CPU build, which PyPI does not carry for Linux: add an index for it
# if the configured ones do not list it. For TORCH_INDEX the pin is left open to that index's build.
choose_torch_index() {
  constraints=constraints.txt
  local pinned listed
  pinned=$(sed -n 's/^torch==\([0-9.]*+cpu\).*/\1/p' constraints.txt)
  if [[ -n ${TORCH_INDEX:-} ]]; then
    say "torch comes from $TORCH_INDEX"
    sed 's/^\(torch==[0-9.]*\)+cpu/\1/' constraints.txt >.venv/constraints.txt
    constraints=.venv/constraints.txt
    export PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-} $TORCH_INDEX"
    return
  fi
  listed=$(.venv/bin/python -m pip index versions torch 2>>"$log" || true)
  if [[ $(uname -s) == Linux && $listed != *"$pinned"* ]]; then
    say "torch $pinned comes from $cpu_index"
    export PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-} $cpu_index"
  fi
}

main() {
  is_done && return
  mkdir -p build
  exec 9>build/setup.lock  # two makes at once: the second waits and then finds the work done
  flock 9
  is_done && return
  scratch_log=$(mktemp)
  trap 'rm -f "$scratch_log"' EXIT
  install_system_packages
  make_venv
  rm -f "$stamp"
  : >"$log"
  export PATH="$PWD/.venv/bin:$PATH" PIP_PROGRESS_BAR=off
  constraints=constraints.txt
  say "pip install the build tools and kenlm (compiled here, about a minute)"
  pip_install scikit-build-core pybind11 cmake ninja numpy kenlm
  choose_torch_index
  say "pip install torch, transformers and the rest (about 2 GB on disk)"
  say "compile the C++ core, editable install"
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) pip_install --no-build-isolation --editable '.[dev]' \
    --config-settings=cmake.define.LATTICE_BPD_BUILD_TESTS=ON
  fingerprint >"$stamp"
  say "done in ${SECONDS} s; log in $log"
}

main
