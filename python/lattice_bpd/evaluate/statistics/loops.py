"""Loops: small models repeat themselves, and repetition flatters every drafter.

A position loops if the 8 tokens that end there already stood together earlier in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

LOOP_WINDOW = 8


def count_looping(prompt: Sequence[int], output: Sequence[int], window: int = LOOP_WINDOW) -> int:
    """Positions of the output that loop.

    Args:
        prompt: (T,) ints; windows may begin in it.
        output: (m,) ints.
        window: tokens that must have occurred before.

    Returns:
        0..m. Window 2, prompt 1 2, output 3 1 2 3: the last two positions, so 2.
    """
    return sum(find_repeats([*prompt, *output], window)[len(prompt) :])


def find_repeats(tokens: Sequence[int], window: int) -> list[bool]:
    """Whether each position ends a window that occurred earlier in the text.

    Args:
        tokens: (T,) ints.
        window: tokens of a window.

    Returns:
        T bools.
    """
    seen: set[tuple[int, ...]] = set()
    found = [False] * len(tokens)
    for end in range(window, len(tokens) + 1):
        last = tuple(tokens[end - window : end])
        found[end - 1] = last in seen
        seen.add(last)
    return found


def loop_share(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], window: int = LOOP_WINDOW
) -> float:
    """Share of all output positions that loop, 0..1; 0 where there is no output."""
    total = sum(map(len, outputs))
    pairs = zip(prompts, outputs, strict=True)
    looping = sum(count_looping(prompt, output, window) for prompt, output in pairs)
    return looping / total if total else 0.0
