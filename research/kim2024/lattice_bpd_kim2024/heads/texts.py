"""The texts of a head training, made once, kept in the run's folder and mapped from there.

So a resumed run reads no input again, and a text may exceed memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel

from lattice_bpd.atomic_files import replacing
from lattice_bpd.token_ids import Int32Array
from lattice_bpd.train.corpus import Corpus, StrPath, TokenBatch
from lattice_bpd.watcher import Watcher
from lattice_bpd_kim2024.heads.options import HeadText, mix_seed
from lattice_bpd_kim2024.heads.self_generated import generate_texts

TOKENIZER = "tokenizer.json"
_ROWS_PER_PART = 64
_KEEP_WHOLE = 4  # pieces that a text must have before any are held out of it


class HeadTexts(NamedTuple):
    """Texts to learn from and to measure on.

    Attributes:
        training: what heads learn from.
        validation: what they are measured on; None: nothing is.
    """

    training: HeadText
    validation: HeadText | None

    def check(self, length: int, where: str) -> None:
        """Raise ValueError unless both have pieces of `length` tokens."""
        self.training.check(length, where)
        if self.validation is not None:
            self.validation.check(length, f"{where}: validation")


def open_corpus(
    inputs: Sequence[StrPath],
    arguments: Mapping[str, Any],
    folder: StrPath | None,
    target: PreTrainedModel | None,
) -> Corpus:
    """The training text; by default with the tokenizer and vocabulary of the target.

    Args:
        inputs: files and folders.
        arguments: further arguments of Corpus.
        folder: of the target, with its tokenizer.
        target: None: a model is built for the text.

    Raises:
        ValueError: eos_id is outside the vocabulary; see also Corpus.
        OSError: files that cannot be read.
    """
    arguments = dict(arguments)
    if target is not None:
        own_tokenizer = Path(folder or "") / TOKENIZER
        if arguments.get("tokenizer") is None and own_tokenizer.is_file():
            arguments["tokenizer"] = str(own_tokenizer)
        embedding = target.get_output_embeddings()  # type: ignore[no-untyped-call]
        if arguments.get("vocab_size") is None and embedding is not None:
            arguments["vocab_size"] = len(embedding.weight)
    corpus = Corpus(inputs, **arguments)
    if corpus.eos_id is not None and not 0 <= corpus.eos_id < corpus.size_of_vocabulary:
        raise ValueError(
            f"eos_id is {corpus.eos_id}; expected 0..{corpus.size_of_vocabulary - 1} (--eos-id)"
        )
    return corpus


def store_corpus(corpus: Corpus, path: Path, eos_id: int | None, watcher: Watcher) -> None:
    """Writes a corpus as int32 token ids, unless the file exists.

    Args:
        corpus: what to read.
        path: the file.
        eos_id: appended to every sequence that does not end with it; None: nothing is.
        watcher: advanced for each MiB read.

    Raises:
        OSError: a file cannot be read or written.
        ValueError: the corpus has no tokens; see also Corpus.batches.
    """
    if path.is_file():
        return
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            for batch in corpus.batches(watcher=watcher):
                file.write(_end_sequences(batch, eos_id).astype("<i4").tobytes())
        if temporary.stat().st_size == 0:
            raise ValueError(f"{corpus.files[0]}: has no token ids; expected text to train on")


def _end_sequences(batch: TokenBatch, eos_id: int | None) -> Int32Array:
    ids, ends = batch.token_ids, batch.offsets[1:]
    if eos_id is None or len(ends) == 0:
        return ids
    ends = ends[:-1] if batch.continues_next else ends
    open_ends = [end for end in ends.tolist() if end == 0 or ids[end - 1] != eos_id]
    return np.insert(ids, open_ends, eos_id)


def map_ids(path: Path) -> Int32Array:
    """Maps a file of store_corpus, (N,) int32."""
    return np.memmap(path, dtype="<i4", mode="r").view(np.ndarray)


def hold_out(ids: Int32Array, share: float, length: int) -> tuple[Int32Array, Int32Array | None]:
    """Splits the end of a text off for validation.

    Args:
        ids: (N,) int32.
        share: fraction of the text, at least one sequence; 0: nothing is held out.
        length: tokens per sequence; nothing is held out of fewer than four sequences.

    Returns:
        Training and validation text; None if nothing is held out.
    """
    if share == 0.0 or len(ids) < _KEEP_WHOLE * length:
        return ids, None
    held = min(max(length, round(share * len(ids))), len(ids) - length)
    return ids[: len(ids) - held], ids[len(ids) - held :]


def generate_rows(
    target: PreTrainedModel,
    ids: Int32Array,
    folder: Path,
    *,
    rows: int,
    prompt_length: int,
    row_length: int,
    num_beams: int = 1,
    seed: int,
    watcher: Watcher,
) -> HeadText:
    """Continuations by the target of prompts from `ids`; existing parts are kept.

    Args:
        target: in evaluation mode.
        ids: (N,) int32, source of the prompts.
        folder: folder of the parts.
        rows: number of texts.
        prompt_length: P, tokens per prompt.
        row_length: tokens per text, prompt included.
        num_beams: beams of a beam search; 1: greedy.
        seed: seed of the prompts.
        watcher: advanced for each part.

    Raises:
        ValueError: `ids` shorter than a prompt, or more tokens than the target has positions for.
        OSError: the folder cannot be written.
    """
    HeadText(ids).check(prompt_length, "self-generated text")
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(mix_seed(seed))
    starts = generator.integers(0, len(ids) - prompt_length + 1, rows)
    prompts = ids[starts[:, None] + np.arange(prompt_length)]
    parts = list(_parts(folder, rows))
    missing = [part for part in parts if not part[0].is_file()]
    watcher.begin("generation", len(missing))
    for path, begin in missing:
        batch = prompts[begin : begin + _ROWS_PER_PART]
        generated = generate_texts(target, batch, row_length - prompt_length, num_beams=num_beams)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.save(file, generated)
        watcher.advance()
    watcher.end()
    text = np.concatenate([np.load(path) for path, _ in parts]).ravel()
    return HeadText(text, row_length, first_position=prompt_length - 1)


def _parts(folder: Path, rows: int) -> Iterator[tuple[Path, int]]:
    for number, begin in enumerate(range(0, rows, _ROWS_PER_PART)):
        yield folder / f"{number:06d}.npy", begin
