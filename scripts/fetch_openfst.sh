#!/usr/bin/env bash
# Puts OpenFst's source tree into the cache and prints its folder (the only line on stdout).
#
# Order: OPENFST_SRC, the cache, `apt-get source` (no root, no change to the system: apt gets
# private folders), a pinned and hash-checked download. Nothing half-made stays behind: all work
# happens in a temporary folder that is renamed at the end.
#
# Variables: OPENFST_SRC          a tree of OpenFst 1.7.x or 1.8.x to use as it is
#            LATTICE_BPD_CACHE    the cache (default: $XDG_CACHE_HOME or ~/.cache, /lattice-bpd)
#            OPENFST_URL          where the download fetches from instead (same hash)
set -euo pipefail

readonly version=1.7.9
readonly sha256=a8bcd9a5da04b5277523dc8c99c378667fd4ae7f90a1ef5eb808e75c3936c1b7
readonly snapshot=https://snapshot.debian.org/archive/debian/20230610T000000Z/pool/main/o/openfst
readonly url=${OPENFST_URL:-$snapshot/openfst_$version.orig.tar.gz}

say() { printf 'openfst: %s\n' "$*" >&2; }

is_tree() { [[ -f $1/src/include/fst/fstlib.h && -f $1/src/lib/fst.cc ]]; }

cache_dir() {
  if [[ -n ${LATTICE_BPD_CACHE:-} ]]; then
    echo "$LATTICE_BPD_CACHE"
  elif [[ -n ${XDG_CACHE_HOME:-}${HOME:-} ]]; then
    echo "${XDG_CACHE_HOME:-$HOME/.cache}/lattice-bpd"
  else
    echo "$PWD/.cache/lattice-bpd"
  fi
}

# Prints deb-src stanzas for the release's `main`, made from the machine's own apt sources.
source_stanzas() {
  local codename
  codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  [[ -n $codename ]] || return 0
  cat /dev/null /etc/apt/sources.list.d/*.sources 2>/dev/null | awk -v suite="$codename" '
    function flush() {
      if (uri != "" && suites ~ " " suite " ")
        printf "Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n%s\n", uri, suite, key
      uri = suites = key = ""
    }
    /^[[:space:]]*$/ { flush(); next }
    /^URIs:/         { uri = $2 }
    /^Suites:/       { sub(/^Suites:/, ""); suites = " " $0 " " }
    /^Signed-By:/    { key = $0 "\n" }
    END              { flush() }'
  cat /dev/null /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    awk -v suite="$codename" '
    $1 == "deb" {
      options = ""; field = 2
      if ($2 ~ /^\[/) { while ($field !~ /\]$/) field++; field++ }
      if ($(field + 1) != suite || $0 !~ / main( |$)/) next
      key = match($0, /signed-by=[^] ]+/) ? "Signed-By: " substr($0, RSTART + 10, RLENGTH - 10) "\n" : ""
      printf "Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\n%s\n", $field, suite, key
    }'
}

# Downloads the source package into folder $1 with apt; private lists and cache, no root.
fetch_by_apt() {
  command -v apt-get >/dev/null && [[ -f /etc/os-release ]] || return 1
  local apt=$1/apt
  mkdir -p "$apt/sources" "$apt/lists/partial" "$apt/cache/archives/partial" "$1/package"
  source_stanzas >"$apt/sources/openfst.sources"
  [[ -s $apt/sources/openfst.sources ]] || return 1
  local options=(-q -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none
    -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$apt/sources"
    -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache"
    -o APT::Get::List-Cleanup=false -o Acquire::Retries=2)
  say "apt-get source openfst (private apt folders, no root)"
  export LC_ALL=C
  { apt-get "${options[@]}" update && cd "$1/package" &&
      apt-get "${options[@]}" source --download-only openfst; } >"$apt/log" 2>&1 </dev/null ||
    { say "apt could not fetch it: $(tail -n 1 "$apt/log")"; return 1; }
  grep '^Fetched ' "$apt/log" >&2 || true
}

# Downloads the pinned tarball into folder $1/package and checks its hash.
fetch_by_url() {
  local file=$1/package/openfst_$version.orig.tar.gz found
  mkdir -p "$1/package"
  say "download $url"
  if command -v curl >/dev/null; then
    curl -fsSL --retry 2 --max-time 300 -o "$file" "$url" || return 1
  elif command -v wget >/dev/null; then
    wget -q --tries=2 --timeout=60 -O "$file" "$url" || return 1
  else
    python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' "$url" "$file" ||
      return 1
  fi
  echo "Fetched $(stat -c %s "$file") B of $url" >&2
  found=$(sha256sum "$file" | cut -d' ' -f1)
  [[ $found == "$sha256" ]] || {
    say "sha256 of $url is $found; expected $sha256; not used, look for a proxy's error page"
    return 1
  }
}

unpack() {
  local tarballs=("$1"/package/openfst_*.orig.tar.*)
  [[ -f ${tarballs[0]} ]] || return 1
  mkdir -p "$1/tree"
  tar --extract --file "${tarballs[0]}" --directory "$1/tree" --strip-components=1 \
    --no-same-owner && is_tree "$1/tree" || {
    say "${tarballs[0]##*/} could not be unpacked into an OpenFst source tree"
    return 1
  }
}

main() {
  if [[ -n ${OPENFST_SRC:-} ]]; then
    is_tree "$OPENFST_SRC" && { echo "$OPENFST_SRC"; return; }
    say "OPENFST_SRC=$OPENFST_SRC has no src/include/fst/fstlib.h and src/lib/fst.cc;" \
      "expected an OpenFst 1.7.x or 1.8.x source tree; correct or unset it"
    exit 1
  fi
  local cache tree
  cache=$(cache_dir)
  tree=$cache/openfst
  if ! is_tree "$tree"; then
    mkdir -p "$cache"
    scratch=$(mktemp -d "$cache/openfst.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    (fetch_by_apt "$scratch" && unpack "$scratch") ||
      (rm -rf "$scratch"/*; fetch_by_url "$scratch" && unpack "$scratch") || {
      say "found no source of OpenFst. Expected a working apt-get or network;" \
        "or unpack OpenFst $version yourself and set OPENFST_SRC=DIR"
      exit 1
    }
    chmod 755 "$scratch/tree"
    # Another build may have won the race: then its tree is used and ours dropped.
    is_tree "$tree" || { rm -rf "$tree"; mv -T "$scratch/tree" "$tree" || is_tree "$tree"; }
    say "sources are in $tree"
  fi
  echo "$tree"
}

main
