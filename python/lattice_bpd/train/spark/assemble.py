"""Assembly of an LM from a stream of sorted n-grams, without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lattice_bpd import _core
from lattice_bpd._core import FormatError
from lattice_bpd.extras import require
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.train.spark.vocabulary import Vocabulary


def assemble(folder: str | os.PathLike[str]) -> NGramLM:
    """The LM whose n-grams SparkLM.save_parts wrote.

    Memory: 16 bytes per n-gram while it is assembled, and 7 to 13 for the finished LM.

    Raises:
        OSError: a file is missing.
        FormatError: a folder that save_parts did not write or finish.
        ValueError: parts are missing or damaged.
    """
    parquet = require("pyarrow.parquet", "spark")
    files = [_parquet_files(Path(folder) / name) for name in ("head", "ngrams")]
    head = parquet.read_table(files[0][0]).to_pylist()[0]
    vocabulary = Vocabulary(**json.loads(head["vocabulary"]))
    unigrams = np.frombuffer(head["unigrams"], np.float32)
    return assemble_chunks(vocabulary, unigrams, _read_chunks(files[1]))


def assemble_chunks(
    vocabulary: Vocabulary, unigrams: npt.NDArray[np.float32], chunks: Iterable[Any]
) -> NGramLM:
    """The LM of sorted chunks: mappings with length, ngrams, log_probs and backoffs, as bytes.

    Raises:
        ValueError: chunks are missing or not sorted.
    """
    assembler = _core.TrieAssembler(vocabulary.core, unigrams)
    for chunk in chunks:
        length = int(chunk["length"])
        symbols = np.frombuffer(chunk["ngrams"], np.uint32)
        log_probs, backoffs = (
            np.frombuffer(chunk[name], np.float32) for name in ("log_probs", "backoffs")
        )
        assembler.add(length, symbols, log_probs, backoffs)
    return NGramLM(assembler.finish())


def _parquet_files(folder: Path) -> list[Path]:
    """The files of a finished Spark write, in order."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; expected what save_parts wrote")
    if not (folder / "_SUCCESS").is_file():
        raise FormatError(f"{folder}: Spark did not finish writing it; train again")
    return sorted(folder.glob("part-*.parquet"))


def _read_chunks(files: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    parquet = require("pyarrow.parquet", "spark")
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches(batch_size=16):
            yield from batch.to_pylist()
