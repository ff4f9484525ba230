"""Top-k selection against torch.topk, one thread each."""

from __future__ import annotations

from typing import Any

import numpy as np
from timing import Contender, time_in_turns

from lattice_bpd.lattice.logits import select_top_k

ROWS = 8
CASES = [(50_257, k) for k in (1, 4, 16, 64, 256)] + [(128_256, 16), (256_000, 16)]


def measure_top_k(rounds: int) -> list[dict[str, Any]]:
    """One row for each size and type; the values are asserted equal first.

    Raises:
        ImportError: torch is missing.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            _measure_case(torch, vocab_size, k, kind, rounds)
            for kind in ("float32", "bfloat16")
            for vocab_size, k in CASES
        ]
    finally:
        torch.set_num_threads(threads)


def _measure_case(torch: Any, vocab_size: int, k: int, kind: str, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(vocab_size)
    tensors = [
        (3 * torch.randn(ROWS, vocab_size, generator=generator)).to(getattr(torch, kind))
        for _ in range(4)
    ]

    def ours(tensor: Any) -> Any:
        return select_top_k(tensor, k, log_softmax=False, where="bench", threads=1)

    for tensor in tensors:
        theirs = torch.topk(tensor, k, dim=1).values.float().numpy()
        np.testing.assert_array_equal(ours(tensor).scores[0], theirs)
    our_times, their_times = time_in_turns(
        [Contender(ours, tensors), Contender(lambda t: torch.topk(t, k, dim=1), tensors)],
        rounds=rounds,
    )
    return {
        "vocab_size": vocab_size,
        "top_k": k,
        "type": kind,
        "rows": ROWS,
        "ours": our_times.to_json(),
        "torch": their_times.to_json(),
        "ratio": round(their_times.median / our_times.median, 1),
    }
