"""Several threads decode with one model at the same time, each as if it were alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from lattice_bpd.decode import decode
from planted_drafts import PlantedDrafts
from target_models import COUNT, PROMPTS, VOCAB, build_target, generated

TURNS = 3


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Threads take turns within a call of the target."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def run_together(work: Callable[[int], list[int]], count: int) -> list[list[list[int]]]:
    """What work(0), .., work(count - 1) return, each TURNS times in a thread of its own."""
    start = Barrier(count)

    def begin(number: int) -> list[list[int]]:
        start.wait(timeout=60)
        return [work(number) for _ in range(TURNS)]

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


# With a hook on the output embedding in each call (Cohere, BERT), or in the first one only (Llama).
@pytest.mark.parametrize("kind", ["llama", "cohere", "bert", "qwen3_next"])
def test_causal_models(kind: str) -> None:
    model, expected = build_target(kind), generated(kind)

    def work(number: int) -> list[int]:
        prompt, output = PROMPTS[number], expected[number]
        drafter = PlantedDrafts(output, VOCAB, num_drafts=2)
        return decode(model, prompt, drafter, max_new_tokens=COUNT).token_ids

    assert run_together(work, len(PROMPTS)) == [[output] * TURNS for output in expected]
