"""Looping output: positions whose last 8 tokens occurred earlier in the text.

Small models repeat themselves, and repetition inflates the gains of every drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

LOOP_WINDOW = 8


def count_looping(prompt: Sequence[int], output: Sequence[int], window: int = LOOP_WINDOW) -> int:
    """Positions of the output that loop.

    Args:
        prompt: (T,) ints; windows may begin in it.
        output: (m,) ints.
        window: number of tokens that must have occurred before.

    Returns:
        0..m. Window 2, prompt 1 2, output 3 1 2 3: the last two positions, so 2.
    """
    return sum(find_repeats([*prompt, *output], window)[len(prompt) :])


def find_repeats(tokens: Sequence[int], window: int) -> list[bool]:
    """For each of T positions, whether the window that ends there occurred earlier in the text."""
    seen: set[tuple[int, ...]] = set()
    repeats = [False] * len(tokens)
    for end in range(window, len(tokens) + 1):
        last = tuple(tokens[end - window : end])
        repeats[end - 1] = last in seen
        seen.add(last)
    return repeats


def loop_share(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], window: int = LOOP_WINDOW
) -> float:
    """Share of all output positions that loop, 0..1; 0 without output."""
    total = sum(map(len, outputs))
    pairs = zip(prompts, outputs, strict=True)
    looping = sum(count_looping(prompt, output, window) for prompt, output in pairs)
    return looping / total if total else 0.0
