"""The sources of Python's standard library as a corpus."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

# Tests are data of another kind; encodings and topics are generated tables.
_SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings",
     "pydoc_data", "lib2to3"}
)  # fmt: skip
_PARTS = 16  # of files: one part to test, one to tune on, the rest to train


@dataclass(frozen=True)
class Corpus:
    """Texts split by file, so that training has no held-out file.

    Attributes:
        train: texts to train on.
        tune: texts to tune alpha on.
        test: texts to report on.
        fingerprint: changes with any file's name or content.
    """

    train: list[str]
    tune: list[str]
    test: list[str]
    fingerprint: str


def read_library_sources(root: str | Path | None = None, max_files: int | None = None) -> Corpus:
    """Read and split the Python files below a directory.

    The split is by a hash of the file's relative name, so it is the same on every machine.

    Args:
        root: the directory; the running interpreter's standard library when None.
        max_files: approximate number of training files to keep, evenly spread; None: all.

    Returns:
        Corpus.

    Raises:
        ValueError: a part has no text.
    """
    root = Path(sysconfig.get_path("stdlib") if root is None else root)
    parts: list[list[str]] = [[], [], []]
    digest = hashlib.sha256(str(max_files).encode())
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if _SKIPPED.isdisjoint(name.parts) and (text := _read(path)):
            part = min(2, _hash(name.as_posix()) % _PARTS)
            parts[part].append(text)
            digest.update(f"{name.as_posix()} {_hash(text)}\n".encode())
    test, tune, train = parts
    if not (train and tune and test):
        raise ValueError(
            f"read_library_sources: {root} has {len(train)} training, {len(tune)} tuning and "
            f"{len(test)} test files with text; expected one or more of each; give a directory "
            "with some dozens of Python files"
        )
    if max_files is not None and len(train) > max_files:
        train = [train[i * len(train) // max_files] for i in range(max_files)]
    return Corpus(train, tune, test, digest.hexdigest()[:16])


def draw_passages(
    documents: Sequence[npt.NDArray[np.int32]], count: int, length: int, room: int, seed: int
) -> list[tuple[list[int], list[int]]]:
    """Prompts from random positions of tokenized documents, each with the text that follows it.

    Args:
        documents: (T_i,) int32 each.
        count: prompts to sample; fewer are returned if the documents are too short for them.
        length: tokens of a prompt.
        room: length of the continuation, in tokens, which must be in the same document.
        seed: of the positions; all positions are equally likely, and no two are the same.

    Returns:
        `count` pairs: `length` token ids of a prompt, and the `room` token ids that follow it.

    Raises:
        ValueError: no document is long enough.
    """
    starts = [
        (number, start)
        for number, ids in enumerate(documents)
        for start in range(len(ids) - length - room + 1)
    ]
    if not starts:
        raise ValueError(
            f"draw_passages: no document has {length + room} tokens; give longer text or ask for "
            "shorter prompts"
        )
    chosen = np.random.default_rng(seed).permutation(len(starts))[:count]
    passages = []
    for number, start in (starts[index] for index in chosen):
        ids = documents[number][start : start + length + room].tolist()
        passages.append((ids[:length], ids[length:]))
    return passages


def draw_prompts(
    documents: Sequence[npt.NDArray[np.int32]], count: int, length: int, room: int, seed: int
) -> list[list[int]]:
    """The prompts of `draw_passages` alone; same arguments and errors."""
    return [prompt for prompt, _ in draw_passages(documents, count, length, room, seed)]


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _read(path: Path) -> str:
    """The file's text; nothing where it cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
