#!/usr/bin/env bash
# Installs into .venv what the named purposes need.
#
# Usage: setup.sh PURPOSE...    extras of pyproject.toml. `build` also compiles the extension module
#                               and makes the editable installs: the core, packages/*, research/*.
#
# Each purpose has a stamp, so a second run returns at once; an interrupted run is continued.
#
# Variables: PYTHON       the interpreter of .venv (default: python3)
#            TORCH_INDEX  package index of another build of torch, such as PyTorch's CUDA indexes
#                         (default: the CPU build, from the configured indexes or from PyTorch's)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -gt 0 ]] || { sed -n '4,5s/^# //p' "${BASH_SOURCE[0]}" >&2; exit 2; }
python=${PYTHON:-python3}
if command -v "$python" >/dev/null; then  # in an active .venv: the interpreter it was made from
  python=$("$python" -c 'import sys; print(sys._base_executable)')
fi
readonly python
readonly cpu_index=https://download.pytorch.org/whl/cpu
readonly log=.venv/setup.log
wanted=()  # purposes that are not set up yet

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

fingerprint() {
  { "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
    pwd
    echo "${TORCH_INDEX:-} ${OPENFST_SRC:-}"
    cat {,packages/*/,research/*/}pyproject.toml constraints.txt scripts/{setup.sh,requirements.py} ||
      true  # there may be none in research/
  } 2>/dev/null | sha256sum
}

stamp() { echo ".venv/setup-$1.stamp"; }

find_wanted() {
  local current purpose
  current=$(fingerprint)
  wanted=()
  for purpose in "$@"; do
    [[ -f $(stamp "$purpose") && $(<"$(stamp "$purpose")") == "$current" ]] || wanted+=("$purpose")
  done
}

wants() { [[ " ${wanted[*]} " == *" $1 "* ]]; }

# MB in all of what apt ("Fetched 9,634 kB") and pip ("Downloading x.whl (1.2 MB)") say they fetched;
# pip does not say it of the tools that it fetches for an isolated build.
megabytes() {
  sed -nE 's/^ *Downloading .*\(([0-9.]+) (bytes|kB|MB|GB)\).*/\1 \2/p
           s/^Fetched ([0-9,.]+) (B|kB|MB|GB) .*/\1 \2/p' "$1" | tr -d , |
    awk 'BEGIN { unit["B"] = unit["bytes"] = 1e-6; unit["kB"] = 1e-3; unit["MB"] = 1; unit["GB"] = 1e3 }
         { sum += $1 * unit[$2] } END { printf "%.0f", sum }'
}

# step TEXT COMMAND...: runs a command; prints the seconds that it took and what it downloaded.
# What the command prints goes to the log. Its last lines are shown where it fails.
step() {
  local text=$1 started=$SECONDS status=0
  shift
  : >"$output"
  ("$@") >"$output" 2>&1 </dev/null || status=$?
  [[ ! -d .venv ]] || { printf '\n== %s\n' "$text"; cat "$output"; } >>"$log"
  downloaded=$(megabytes "$output")
  total=$((total + downloaded))
  if [[ $status != 0 ]]; then
    { grep -E '(error|ERROR): ' "$output" || true; tail -n 12 "$output"; } | tail -n 20 >&2
    fail "$text: failed after $((SECONDS - started)) s (above; the full output is in $log)"
  fi
  say "$text: $((SECONDS - started)) s, $downloaded MB downloaded"
}

# Prints the Debian packages that are missing, each found by what it is needed for.
missing_packages() {
  "$python" -c 'import venv, ensurepip' 2>/dev/null || echo python3-venv
  "$python" -c 'import os, sysconfig as s
os.stat(os.path.join(s.get_path("include"), "Python.h"))' 2>/dev/null || echo python3-dev
  command -v g++ >/dev/null || echo g++
  command -v tar >/dev/null || echo tar
  ! wants test || [[ -n $(find /usr/include /usr/local/include -path '*/doctest/doctest.h' \
    -print -quit) ]] || echo doctest-dev
}

apt_install() {
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C
  apt-get -q update || true
  apt-get -q install -y --no-install-recommends "$@"
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
  step "apt-get install $missing" apt_install $missing
  missing=$(missing_packages | xargs)
  [[ -z $missing ]] || fail "still missing after installing Debian's packages: $missing;" \
    "$python ($("$python" --version)) is perhaps not Debian's; set PYTHON=/usr/bin/python3"
}

make_venv() {
  .venv/bin/python -m pip --version >/dev/null 2>&1 &&
    [[ $(.venv/bin/python --version) == $("$python" --version) ]] && return
  rm -rf .venv
  step "python -m venv .venv ($("$python" --version))" "$python" -m venv .venv
}

# Without bytecode of the thousands of files that are never imported.
pip_install() {
  .venv/bin/python -m pip install --disable-pip-version-check --progress-bar off --no-compile "$@"
}

# Source archives are built in isolation, by every version of pip and whatever .venv holds.
install_packages() { pip_install --use-pep517 --constraint constraints.txt "$@"; }

# PyPI's torch for Linux is the CUDA build, with 2 GB of libraries: it is the last resort.
install_torch() {
  local from=(--no-deps --force-reinstall)  # its other build counts as installed to pip
  if [[ -n ${TORCH_INDEX:-} ]]; then
    pip_install "${from[@]}" --index-url "$TORCH_INDEX" "torch==$torch"
  else
    pip_install "${from[@]}" "torch==$torch+cpu" ||
      pip_install "${from[@]}" --retries 1 --index-url "$cpu_index" "torch==$torch+cpu" ||
      pip_install "${from[@]}" "torch==$torch"
  fi || return
  echo "$torch ${TORCH_INDEX:-}" >.venv/torch.stamp
}

needs_torch() {
  [[ " ${packages[*]}" == *" torch"* && $(cat .venv/torch.stamp 2>/dev/null) != \
    "$torch ${TORCH_INDEX:-}" ]]
}

torch_version() { .venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))'; }

install_own() {
  local file own=(--editable .)
  for file in {packages,research}/*/pyproject.toml; do
    [[ ! -f $file ]] || own+=(--editable "./${file%/*}")
  done
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) pip_install --no-build-isolation --no-deps "${own[@]}"
}

main() {
  find_wanted "$@"
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  mkdir -p build
  exec 9>build/setup.lock  # two makes at once: the second waits and then finds the work done
  flock 9
  find_wanted "$@"
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  output=$(mktemp)
  trap 'rm -f "$output"' EXIT
  total=0
  say "for ${wanted[*]}"
  install_system_packages
  make_venv
  local purpose packages version
  for purpose in "${wanted[@]}"; do rm -f "$(stamp "$purpose")"; done
  export PATH="$PWD/.venv/bin:$PATH"
  packages=$(.venv/bin/python scripts/requirements.py "${wanted[@]}")
  mapfile -t packages <<<"$packages"
  torch=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' constraints.txt)
  if needs_torch; then
    step "pip install torch" install_torch
    version=$(torch_version)
    [[ $version == "$torch+cpu" || -n ${TORCH_INDEX:-} || $(uname -s) != Linux ]] ||
      say "torch is PyPI's $version, with CUDA libraries of 2 GB: no index has $torch+cpu"
  fi
  step "pip install what ${wanted[*]} need (${#packages[@]} packages and their own)" \
    install_packages "${packages[@]}"
  if wants build; then
    step "find OpenFst's sources" scripts/fetch_openfst.sh
    step "compile the extension module, editable installs" install_own
  fi
  for purpose in "${wanted[@]}"; do fingerprint >"$(stamp "$purpose")"; done
  say "done in $SECONDS s, $total MB downloaded; log in $log"
}

main "$@"
