#!/usr/bin/env bash
# Runs `make demo` twice and `make test` as on a new machine, with each Python found, and times them.
#
# Usage: check_fresh.sh [--demo-only | --setup-only] [PYTHON...]
#
#   --demo-only   no `make test`
#   --setup-only  set-up and compilation for both, without running either
#   PYTHON        names or paths; default: every python3.x >= 3.10 on the PATH, and /usr/bin/python3
#
# Each Python gets a clean clone of HEAD, a new .venv, an empty cache of pip and of OpenFst's sources
# and no compiler cache; all of it is removed afterwards. Only Debian's packages are those of the
# machine. Prints a table of wall time and CPU time; fails if anything failed. ARGS go to the demo.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly root

mode=all
case ${1:-} in
  --demo-only | --setup-only) mode=${1#--}; shift ;;
  -*) sed -n '4,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

say() { printf 'check_fresh: %s\n' "$*"; }

# The interpreter itself (not a shim or a venv's link to it), if it runs and is 3.10 or newer.
resolve() {
  "$1" -c 'import os, sys
if sys.version_info < (3, 10): sys.exit(1)
print(os.path.realpath(sys._base_executable))' 2>/dev/null
}

find_pythons() {
  local folder candidate
  { IFS=:
    for folder in $PATH; do
      for candidate in "$folder"/python3.[0-9] "$folder"/python3.[0-9][0-9]; do
        [[ ! -x $candidate ]] || resolve "$candidate" || true
      done
    done
    [[ ! -x /usr/bin/python3 ]] || resolve /usr/bin/python3 || true
  } | awk '!seen[$0]++'
}

# Runs a command in a folder; writes its wall and CPU seconds to a file; passes its status on.
readonly timer='import resource, subprocess, sys, time
started = time.monotonic()
status = subprocess.run(sys.argv[3:], cwd=sys.argv[1]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[2], "w") as file:
    print(f"{time.monotonic() - started:.0f} {used.ru_utime + used.ru_stime:.0f}", file=file)
sys.exit(status)'

# run NAME COMMAND...: runs it in the clone; appends its wall and CPU seconds to $times.
run() {
  local name=$1 status=0 wall cpu
  shift
  say "$python: $name"
  "$python" -c "$timer" "$clone" "$scratch/time" "$@" || status=$?
  read -r wall cpu <"$scratch/time"
  say "$python: $name: $wall s ($cpu s of CPU time), status $status"
  times+=$(printf ' %7s %7s' "$wall" "$cpu")
  return "$status"
}

check() {
  clone=$scratch/clone times=
  export PYTHON=$python PIP_CACHE_DIR=$scratch/pip LATTICE_BPD_CACHE=$scratch/cache CCACHE_DISABLE=1
  unset VIRTUAL_ENV PYTHONPATH OPENFST_SRC TORCH_INDEX PIP_NO_BUILD_ISOLATION \
    CMAKE_CXX_COMPILER_LAUNCHER CMAKE_C_COMPILER_LAUNCHER
  git clone --quiet "$root" "$clone" || return
  [[ ! -d $root/../shared ]] || ln -s "$(cd "$root/../shared" && pwd)" "$scratch/shared"
  if [[ $mode == setup-only ]]; then
    run "demo's set-up" make setup-demo build && run "test's set-up" make build-tests
    return
  fi
  run "make demo" make demo ARGS="${ARGS:-}" && run "make demo again" make demo ARGS="${ARGS:-}" ||
    return
  [[ $mode == demo-only ]] || run "make test" make test ARGS=
}

main() {
  local pythons=() rows=() failed=0 outcome label
  if [[ $# -gt 0 ]]; then
    for label in "$@"; do
      pythons+=("$(resolve "$(command -v "$label")")") || {
        say "$label does not run or is older than 3.10; expected a Python >= 3.10" >&2
        exit 2
      }
    done
  else
    mapfile -t pythons < <(find_pythons)
  fi
  say "$mode with ${pythons[*]}"
  for python in "${pythons[@]}"; do
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    outcome=passed
    check || { outcome=FAILED; failed=1; }
    label="$("$python" --version | cut -d' ' -f2), pip $("$python" -m pip --version | cut -d' ' -f2)"
    rows+=("$(printf '%-24s %-7s%s' "$label" "$outcome" "$times")")
    rm -rf "$scratch"
  done
  local heads=("make demo" again "make test")
  [[ $mode != setup-only ]] || heads=("demo's set-up" "test's set-up")
  [[ $mode != demo-only ]] || heads=("make demo" again)
  printf '\n%-32s' Python
  printf ' %15s' "${heads[@]}"
  printf '\n%-32s' seconds
  for label in "${heads[@]}"; do printf ' %7s %7s' wall cpu; done
  echo
  printf '%s\n' "${rows[@]}"
  return "$failed"
}

main "$@"
