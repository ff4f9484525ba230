#!/usr/bin/env bash
# Checks and timings of decoding on a GPU, in at most ten minutes and without a network: lossless
# outputs, top-k, tokens/s; where PYTHON has triton and pytest, walks with an LM, as DFlash2 and
# LiLiCorr take them in vLLM, are tested and timed. Results: benchmarks/results/gpu/.
#
# Usage: check_gpu.sh [arguments of benchmarks/check_gpu.py]
#
# Variables: DEVICE  cuda (default) or cpu
#            SIZE    full (default): a Llama of 1 B random weights; tiny: for a run on a CPU
#            SGLANG  a model: then also a server of SGLang on it with draft trees, whose texts are
#                    compared with those of a plain one (lattice-bpd-sglang; 10 minutes more)
#            PYTHON  an interpreter that has lattice_bpd, its conformance and drafters, and torch
#                    (default: .venv/bin/python)
#            VLLM_PYTHON  one that has vLLM, lattice_bpd, the plug-in and pytest: also tests drafts in
#                    vLLM's model runner V2, with the stories model (PYTHON needs the demo's packages)
#            MODEL, DRAFTER  a model and a folder of build for it: VLLM_PYTHON also times plain vLLM,
#                    its n-grams and our drafts in either model runner (10 minutes more)
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

if "$python" -c 'import pytest, triton' 2>/dev/null; then
  PYTHONPATH=integrations/vllm:packages/drafters${PYTHONPATH:+:$PYTHONPATH} "$python" -m pytest \
    -c integrations/vllm/tests/pytest.ini --noconftest tests/python/test_vllm_walk.py || status=$?
fi

sglang_server() {  # NAME OPTION..: certifies the texts of a server with these options
  "$python" -m sglang.launch_server --model-path "$SGLANG" --port 30000 "${@:2}" >"$logs/$1.log" 2>&1 &
  local server=$!
  for _ in {1..300}; do
    ! "$python" -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:30000/health")' \
      2>/dev/null || break
    sleep 1
  done
  "$python" -m lattice_bpd.cli certify --server http://127.0.0.1:30000 --prompts "$logs/prompts.jsonl" \
    --max-tokens 128 -o "$logs/$1.json" "${certify[@]}" || status=$?
  kill "$server" && wait "$server" || true
}

if [[ -n ${SGLANG:-} ]]; then
  logs=$(mktemp -d)
  for text in "Write a poem about bees" "Count from one to fifty in words" "What is a prime number?"; do
    printf '{"prompt": "%s"}\n' "$text"
  done >"$logs/prompts.jsonl"
  certify=() && sglang_server plain
  certify=(--baseline "$logs/plain.json") && sglang_server trees \
    --speculative-algorithm LATTICE_BPD --speculative-num-draft-tokens 12
  grep -h "accept len" "$logs/trees.log" | tail -3 || true
  echo "logs and texts: $logs"
fi

if [[ -n ${VLLM_PYTHON:-} ]]; then
  folder=$PWD/build/vllm-test
  [[ -f $folder/expected.json ]] || "$python" integrations/vllm/tests/prepare.py "$folder"
  LATTICE_BPD_VLLM_FOLDER=$folder "$VLLM_PYTHON" -m pytest -c integrations/vllm/tests/pytest.ini \
    integrations/vllm/tests/test_runner_v2.py || status=$?
fi

if [[ -n ${VLLM_PYTHON:-} && -n ${MODEL:-} ]]; then
  "$VLLM_PYTHON" benchmarks/bench_vllm.py "$MODEL" ${DRAFTER:+--drafter "$DRAFTER"} --methods 1 4 7 8 \
    --engine '{"kv_cache_memory_bytes": 4000000000, "gpu_memory_utilization": 0.1}' || status=$?
fi
exit "$status"
