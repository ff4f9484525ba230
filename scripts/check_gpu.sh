#!/usr/bin/env bash
# Checks and timings of decoding on a GPU, in at most ten minutes and without a network: lossless
# outputs, top-k, tokens/s. Results: benchmarks/results/gpu/.
#
# Usage: check_gpu.sh [arguments of benchmarks/check_gpu.py]
#
# Variables: DEVICE  cuda (default) or cpu
#            SIZE    full (default): a Llama of 1 B random weights; tiny: for a run on a CPU
#            PYTHON  an interpreter that has lattice_bpd and torch (default: .venv/bin/python)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
command -v "$python" >/dev/null ||
  { echo "check_gpu: found no $python; run make setup, or set PYTHON" >&2; exit 1; }

export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TOKENIZERS_PARALLELISM=false
status=0
timeout --kill-after=10 600 "$python" benchmarks/check_gpu.py --device "${DEVICE:-cuda}" \
  --size "${SIZE:-full}" "$@" || status=$?
[[ $status != 124 ]] || echo "check_gpu: stopped after ten minutes; finished parts are written" >&2
exit "$status"
