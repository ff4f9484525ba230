"""Top-k and search after a call of torch on the CPU: one thread, own threads, torch's threads.

    python benchmarks/bench_threads.py [--quick] [--batch 16]

WikiText-2, 4-gram LM, 8 slots x 16 candidates; top-k of random logits over 8,000 tokens. Before
each sample torch multiplies matrices on all cores, as the target's call does. Each way has
processes of its own, which take turns, since a process keeps the threads that it has started;
answers must be those of one thread. Milliseconds of the wall clock for a batch. Results go to
benchmarks/results/threads.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import ROOT, load_corpus
from engines import make_lm
from lattices import draw_lattices
from machine import describe_machine
from processes import run_measured
from report import print_table, write_json

from lattice_bpd.lattice.logits import Candidates, select_top_k
from lattice_bpd.verify.search import draft_chains

WAYS = {"one thread": 1, "own threads": 0, "torch's threads": 0}
STAGES = ("top-k", "search")
VOCAB, SLOTS, TOP_K = 8000, 8, 16
SAMPLES = 200


def measure(way: str, batch: int) -> dict[str, Any]:
    """Times of each stage, and a checksum of the answers."""
    corpus = load_corpus()
    lm = make_lm("corpus.lm", corpus)
    lattices = draw_lattices(corpus, 4 * batch, SLOTS, TOP_K)
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(batch, SLOTS, VOCAB, generator=generator) for _ in range(4)]
    state, weights = torch.randn(512, 1024), torch.randn(1024, 1024)
    times: dict[str, list[float]] = {stage: [] for stage in STAGES}
    checksum = 0
    for sample in range(SAMPLES + 4):
        part = lattices.take(sample % 4 * batch, batch)
        torch.mm(state, weights)
        # Only tensors make the core use torch's threads.
        rows = logits[sample % 4]
        start = time.perf_counter()
        found = select_top_k(
            rows if way == "torch's threads" else rows.numpy(), TOP_K,
            log_softmax=False, where="bench_threads", threads=WAYS[way],
        )  # fmt: skip
        middle = time.perf_counter()
        chains = draft_chains(
            Candidates(part.token_ids, part.scores), list(part.contexts), lm, [SLOTS] * batch,
            alpha=1.0, threads=WAYS[way],
        )  # fmt: skip
        end = time.perf_counter()
        if sample < 4:  # warm-up
            checksum = zlib.crc32(json.dumps(chains).encode(), checksum)
            checksum = zlib.crc32(found.token_ids.tobytes() + found.scores.tobytes(), checksum)
            continue
        times["top-k"].append(1e3 * (middle - start))
        times["search"].append(1e3 * (end - middle))
    return {"times": times, "checksum": checksum, "torch_threads": torch.get_num_threads()}


def run_child(way: str, batch: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--batch", str(batch), "--way", way]
    result: dict[str, Any] = json.loads(run_measured(command).output)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer processes")
    parser.add_argument("--batch", type=int, default=16, help="lattices")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/threads.json")
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.batch)))
        return
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(2 if args.quick else 5):
        for way in WAYS:
            runs[way].append(run_child(way, args.batch))
    checksums = {run["checksum"] for of_way in runs.values() for run in of_way}
    assert len(checksums) == 1, f"answers differ: {checksums}"
    results: dict[str, Any] = {}
    for way, of_way in runs.items():
        samples = {
            stage: np.concatenate([run["times"][stage] for run in of_way]) for stage in STAGES
        }
        samples["both"] = samples["top-k"] + samples["search"]
        results[way] = {
            f"{stage}_ms": round(float(np.median(values)), 3) for stage, values in samples.items()
        }
    alone = results["one thread"]["both_ms"]
    for row in results.values():
        row["speed"] = round(alone / row["both_ms"], 2)
    head = ["threads", *(f"{stage}, ms" for stage in (*STAGES, "both")), "speed"]
    print_table(
        f"batch of {args.batch} after a call of torch on {runs['one thread'][0]['torch_threads']} "
        "threads", head, [[way, *row.values()] for way, row in results.items()],
    )  # fmt: skip
    write_json(args.out, {"machine": describe_machine(), "batch": args.batch, "ways": results})


if __name__ == "__main__":
    main()
