"""Linear layers of a model on the CPU: torch's against the core's, by tokens of a call.

    python benchmarks/bench_linear.py
    python benchmarks/bench_linear.py --threads 1 --json out.json

The matrices are as many as SmolLM2-135M reads for a token, so that they come from memory. Results
are compared with sums in double precision before anything is timed; both take turns, and the
fastest of five rounds counts. `lattice_bpd.models.linear` says where a model uses which.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from machine import describe_machine
from report import print_table, write_json
from torch import Tensor
from torch.nn import functional as F

from lattice_bpd.lattice.logits import use_torch_threads
from lattice_bpd.models import linear as module

SHAPES = {(49152, 576): 1, (1536, 576): 60, (576, 1536): 30, (576, 576): 60, (192, 576): 60}
TOKENS = (1, 2, 4, 8, 16, 32, 64, 256)
ROUNDS = 5
TYPES = (torch.bfloat16, torch.float16, torch.float32)


def seconds_of(apply: Callable[[Tensor, Tensor], Tensor], weights: list[Tensor], n: int) -> float:
    """The time of all layers for `n` tokens."""
    states = {width: torch.randn(n, width).to(weights[0].dtype) for width in (576, 1536)}
    start = time.perf_counter()
    for weight in weights:
        apply(states[weight.shape[1]], weight)
    return time.perf_counter() - start


def check(weights: list[Tensor]) -> None:
    """Asserts that the core's results are right, and the same for each token alone."""
    for weight in weights[1::30]:
        states = torch.randn(9, weight.shape[1]).to(weight.dtype)
        found, wanted = module.linear(states, weight), F.linear(states.double(), weight.double())
        rounding = 0.0 if weight.dtype == torch.float32 else 2.0**-8
        torch.testing.assert_close(found.double(), wanted, atol=1e-3, rtol=rounding)
        for token in range(9):
            assert torch.equal(module.linear(states[token : token + 1], weight)[0], found[token])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    use_torch_threads()
    rows = []
    for dtype in TYPES:
        used = module.MOST_STATES.get(dtype, 0)
        module.MOST_STATES[dtype] = 1 << 20  # all of the core, whatever the processor
        weights = [
            torch.randn(shape).to(dtype) / 24 for shape, n in SHAPES.items() for _ in range(n)
        ]
        check(weights)
        for tokens in TOKENS:
            times: dict[str, list[float]] = {"torch": [], "core": []}
            for _ in range(ROUNDS):
                times["torch"].append(seconds_of(F.linear, weights, tokens))
                times["core"].append(seconds_of(module.linear, weights, tokens))
            torchs, core = (1e3 * min(values) for values in times.values())
            rows.append({
                "type": str(dtype).removeprefix("torch."), "tokens": tokens, "torch ms": torchs,
                "core ms": core, "torch / core": torchs / core,
                "used": "core" if tokens <= used else "torch",
            })  # fmt: skip
    print_table(
        "milliseconds of a call's linear layers", list(rows[0]), [[*row.values()] for row in rows]
    )
    if args.json is not None:
        write_json(
            args.json, {"machine": describe_machine(), "threads": args.threads, "rows": rows}
        )


if __name__ == "__main__":
    main()
