"""Tasks from the demo's own corpus, for a first evaluation without any other data.

anywhere     from any place of a held-out file
beginnings   from the beginning of a file
functions    behind the line that begins a function
docstrings   behind the quotes that begin a docstring
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lattice_bpd.evaluate.record.write import Prompt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PLACES = {
    "anywhere": re.compile(r"\n(?=[^\n])"),
    "beginnings": re.compile(r"\A(?:[^\n]*\n){6}"),
    "functions": re.compile(r"\n *def \w+\([^()\n]*\):\n"),
    "docstrings": re.compile(r'\n *def [^\n]*:\n *"""'),
}
LIBRARY_TASKS = tuple(_PLACES)
"""Names of the tasks."""

_BEFORE = 600  # characters before a place, more than any prompt has
_BEHIND = 400  # characters that belong to a place's domain


def library_prompts(
    name: str, texts: Sequence[str], tokenizer: Tokenizer, *, count: int, length: int, seed: int
) -> list[Prompt]:
    """Prompts of one task.

    Args:
        name: of LIBRARY_TASKS.
        texts: held-out files.
        tokenizer: the demo's.
        count: prompts; fewer where the files have fewer such places.
        length: most tokens of a prompt.
        seed: of the choice.
    """
    places = _find_places(name, texts)
    order = np.random.default_rng(seed).permutation(len(places))[:count]
    found = []
    for index in sorted(order.tolist()):
        number, end = places[index]
        ids = tokenizer.encode(texts[number][max(0, end - _BEFORE) : end]).ids[-length:]
        if ids:
            found.append(Prompt(ids, f"file {number}, character {end}"))
    return found


def library_domain(name: str, texts: Sequence[str]) -> list[str]:
    """What stands behind such places in training files: text of the task's own domain."""
    return [texts[number][end : end + _BEHIND] for number, end in _find_places(name, texts)]


def _find_places(name: str, texts: Sequence[str]) -> list[tuple[int, int]]:
    """(file, character) behind each place of the task."""
    return [
        (number, match.end())
        for number, text in enumerate(texts)
        for match in _PLACES[name].finditer(text)
    ]
