#!/usr/bin/env bash
# Builds the C++ unit tests for 64-bit ARM and runs them under emulation.
#
# Usage: test_arm.sh [ctest's arguments, such as -R fused_test]
#
# Debian's cross compiler builds library and tests into build/arm with NEON, qemu-aarch64 runs them.
# digests_test compares answers with constants from x86-64. Emulation says nothing about speed.
#
# Variables: JOBS  compilers and tests at once (default: the number of processors)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly jobs=${JOBS:-$(nproc)}

say() { printf 'test-arm: %s\n' "$*"; }
fail() { printf 'test-arm: %s\n' "$*" >&2; exit 1; }

missing_packages() {
  command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
  command -v qemu-aarch64 >/dev/null || echo qemu-user
  [[ -n $(find /usr/include /usr/local/include -path '*/doctest/doctest.h' -print -quit) ]] ||
    echo doctest-dev
}

# apt-get's output goes to a log, which is shown where it fails.
install_packages() {
  local missing log=build/arm-apt.log
  missing=$(missing_packages | xargs)
  [[ -n $missing ]] || return 0
  command -v apt-get >/dev/null ||
    fail "missing on this system: $missing (Debian's names); install them and run again"
  [[ $(id -u) == 0 ]] || fail "missing: $missing. Type this, then run make test-arm again:" \
    $'\n\n'"    sudo apt-get update && sudo apt-get install -y $missing"$'\n'
  say "apt-get install $missing (log: $log)"
  mkdir -p build
  (export DEBIAN_FRONTEND=noninteractive
    apt-get -q update || true
    # shellcheck disable=SC2086  # a list of packages
    apt-get -q install -y --no-install-recommends $missing) >"$log" 2>&1 </dev/null ||
    { tail -n 12 "$log" >&2; fail "apt-get install $missing failed (above; all of it in $log)"; }
  missing=$(missing_packages | xargs)
  [[ -z $missing ]] || fail "still missing after apt-get install: $missing"
}

install_packages
say "build (build/arm)"
cmake --preset arm >/dev/null
cmake --build --preset arm --parallel "$jobs" -- --quiet
say "ctest under $(qemu-aarch64 --version | head -n 1)"
ctest --preset arm --parallel "$jobs" --no-tests=error "$@"
