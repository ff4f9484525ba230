"""Tasks made from held-out library files, for an evaluation without other data.

anywhere     after the end of any line that is not empty
beginnings   after the first six lines of a file
classes      after the line that begins a class
functions    after the line that begins a function
docstrings   after the quotes that begin a docstring
comments     after the "#" that begins a comment line
returns      after the word `return`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lattice_bpd_kim2024.record.write import Prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PLACES = {
    "anywhere": re.compile(r"\n(?=[^\n])"),
    "beginnings": re.compile(r"\A(?:[^\n]*\n){6}"),
    "classes": re.compile(r"\n *class \w+[^\n]*:\n"),
    "functions": re.compile(r"\n *def \w+\([^()\n]*\):\n"),
    "docstrings": re.compile(r'\n *def [^\n]*:\n *"""'),
    "comments": re.compile(r"\n *#(?= )"),
    "returns": re.compile(r"\n *return(?= )"),
}
LIBRARY_TASKS = tuple(_PLACES)
"""Names of the tasks."""

QUICK_TASKS = ("anywhere", "functions", "docstrings")
"""The tasks of `evaluate --quick`: on these the demo's model loops no more than 1.2 times as often
as people do; on beginnings and comments 9 and 3 times. Three tasks take two to five minutes."""

_CHARACTERS = 8  # of a token at most, on average: what is encoded around a prompt's end
_DOMAIN = 400  # characters after a position that belong to its domain


def library_passages(
    name: str,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    count: int,
    length: int,
    room: int,
    seed: int,
) -> list[tuple[Prompt, list[int]]]:
    """Prompts of one task, each with the text that follows it.

    Args:
        name: of LIBRARY_TASKS.
        texts: held-out files.
        tokenizer: the demo's.
        count: prompts; fewer if the files have fewer such positions.
        length: most tokens of a prompt.
        room: maximum length of the continuation, in tokens.
        seed: of the choice.

    Returns:
        Pairs of a prompt and the up to `room` token ids that follow it in its file.
    """
    positions = _find_positions(name, texts)
    order = np.random.default_rng(seed).permutation(len(positions))[:count]
    passages = []
    for index in sorted(order.tolist()):
        number, end = positions[index]
        text = texts[number]
        before = tokenizer.encode(text[max(0, end - _CHARACTERS * length) : end]).ids[-length:]
        after = tokenizer.encode(text[end : end + _CHARACTERS * room]).ids[:room]
        if before:
            passages.append((Prompt(before, f"file {number}, character {end}"), after))
    return passages


def library_domain(name: str, texts: Sequence[str]) -> list[str]:
    """Text after such positions in training files: the task's domain."""
    return [texts[number][end : end + _DOMAIN] for number, end in _find_positions(name, texts)]


def _find_positions(name: str, texts: Sequence[str]) -> list[tuple[int, int]]:
    """(file, character) of each position of the task."""
    return [
        (number, match.end())
        for number, text in enumerate(texts)
        for match in _PLACES[name].finditer(text)
    ]
