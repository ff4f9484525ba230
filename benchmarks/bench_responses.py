"""Tokens per second of a model's own responses, as `lattice-bpd build` generates them.

    python benchmarks/bench_responses.py MODEL [--every 10] [--threads 2]

The prompts are every tenth conversation of benchmarks/prompts/train.jsonl, responses have up to 128
tokens. The model is loaded in bfloat16, and decodes on the CPU, first with torch's attention and
linear layers, then with the core's (`use_cpu_kernels`).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from lattice_bpd.train.responses.collect import Exchange, collect_responses
from lattice_bpd.train.responses.prompts import read_chats
from lattice_bpd.train.responses.store import ResponseStore
from lattice_bpd.verify import use_cpu_kernels

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model")
parser.add_argument("--every", type=int, default=10)
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()
torch.set_num_threads(args.threads)
model = AutoModelForCausalLM.from_pretrained(args.model, dtype="bfloat16").eval()
tokenizer = AutoTokenizer.from_pretrained(args.model)
chats = read_chats(str(Path(__file__).parent / "prompts" / "train.jsonl"))[:: args.every]


def measure(name: str) -> list[Exchange]:
    with tempfile.TemporaryDirectory() as folder:
        store = ResponseStore(Path(folder) / "responses.jsonl", model)
        start = time.perf_counter()
        exchanges = collect_responses(model, tokenizer, chats, 128, store)
        seconds = time.perf_counter() - start
    tokens = sum(len(one.response) for one in exchanges)
    print(
        f"{name}: {len(exchanges)} responses, {tokens} tokens in {seconds:.1f} s: "
        f"{tokens / seconds:.0f}/s"
    )
    return exchanges


torchs = measure("kernels of torch")
if use_cpu_kernels(model):
    ours = measure("kernels of the core")
    by_prompt = {tuple(one.prompt): one.response for one in torchs}
    equal = sum(by_prompt.get(tuple(one.prompt)) == one.response for one in ours)
    print(f"equal responses: {equal} of {len(ours)}")
