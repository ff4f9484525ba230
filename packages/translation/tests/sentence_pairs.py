"""Sentence pairs in the layout of Multi30k, which the examples of translation train on."""

from __future__ import annotations

import gzip
import random
from pathlib import Path


def write_sentence_pairs(folder: Path, *, train: int, others: int) -> Path:
    """Multi30k's files with sentences of a language of twelve words.

    Args:
        folder: where they are written.
        train: sentence pairs of the training part.
        others: of the validation and the test part, each.

    Returns:
        The folder.
    """
    rng = random.Random(0)
    for name, count in (("train", train), ("val", others), ("test_2016_flickr", others)):
        words = [[rng.randrange(12) for _ in range(rng.randint(2, 5))] for _ in range(count)]
        for language, letter in (("de", "q"), ("en", "w")):
            lines = [" ".join(letter + "abcdefghijkl"[n] for n in text) + "." for text in words]
            with gzip.open(folder / f"{name}.{language}.gz", "wt") as file:
                file.write("\n".join(lines) + "\n")
    return folder
