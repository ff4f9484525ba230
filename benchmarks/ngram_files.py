"""A corpus as the files that the trainers read, and the commands that train on them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from corpus import CACHE, VOCAB_SIZE, Corpus

FOLDER = CACHE / "ngram"
END_ID = VOCAB_SIZE  # represents </s>; an id of its own, unchanged by permutations of words
NUM_IDS = VOCAB_SIZE + 1
COMMAND = (sys.executable, "-m", "lattice_bpd.cli", "ngram")


class CorpusFiles(NamedTuple):
    """The same sequences three times.

    Attributes:
        ids: .npy file of token ids, a sequence ended by END_ID.
        text: a sequence a line, as decimal token ids: what lmplz reads.
        line: all sequences as one line, for scoring without sentence ends.
    """

    ids: Path
    text: Path
    line: Path


def write_corpus(corpus: Corpus, name: str, order: int) -> CorpusFiles:
    """Writes the files; sequences that share their tokens' ends stay apart in `text`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    files = CorpusFiles(*(FOLDER / f"{name}.{ending}" for ending in ("npy", "txt", "line")))
    assert len(corpus.token_ids) > order
    words = np.array([str(token_id) for token_id in range(VOCAB_SIZE)], dtype=object)
    np.save(files.ids, np.insert(corpus.token_ids, corpus.offsets[1:], END_ID).astype(np.uint16))
    with files.text.open("w") as text, files.line.open("w") as line:
        for first, last in zip(corpus.offsets[:-1], corpus.offsets[1:], strict=True):
            sequence = " ".join(words[corpus.token_ids[first:last]])
            text.write(sequence + "\n")
            line.write(sequence + " ")
        line.write("\n")
    return files


def train_command(ids: Path, output: Path, order: int, memory: str) -> list[str | Path]:
    """`lattice-bpd ngram train`, Katz, from token ids."""
    options = ("--vocab-size", str(NUM_IDS), "--eos-id", str(END_ID))
    return [*COMMAND, "train", ids, *options, "--order", str(order), "--memory", memory,
            "-o", output]  # fmt: skip


def count_seen(token_ids: npt.NDArray[np.int32]) -> int:
    """Different tokens of a text."""
    return len(np.unique(token_ids))
