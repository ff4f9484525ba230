"""LM files of every kind, in and out: ARPA (gzipped too), our own binary, OpenFst."""

from __future__ import annotations

import glob
import gzip
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from lattice_bpd import _core
from lattice_bpd.lm.ngram import NGramLM
from lattice_bpd.lm.words import read_arpa_words, read_words

FORMATS = ("lm", "arpa", "arpa.gz", "fst", "const-fst")

_GZIP = b"\x1f\x8b"
_OPENFST = (2125659606).to_bytes(4, "little")  # the magic number of every OpenFst file
_OURS = b"LBPD-LM\n"
Words = Sequence[str] | str | os.PathLike[str]


def read_lm(
    path: str | os.PathLike[str],
    *,
    vocab: Words | None = None,
    vocab_size: int | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    unk_id: int | None = None,
    failure_label: int | None = None,
) -> NGramLM:
    """Reads an LM of any kind; the file's first bytes tell which.

    Args:
        path: our binary, ARPA text, gzipped ARPA text, or an OpenFst file (vector or const) whose
            labels are token id + 1 and whose states have failure (or epsilon) arcs.
        vocab: ARPA: the word of each token id, or a file that :func:`read_words_file` takes.
            Without it, words are decimal token ids.
        vocab_size: V; needed for an OpenFst file without vocab.
        bos_id: token id that is ``<s>``; likewise eos_id and unk_id. Not for our binary.
        eos_id: see bos_id.
        unk_id: see bos_id.
        failure_label: OpenFst: the label of failure arcs; by default 0 where the FST has epsilon
            arcs, else the one that to_pywrapfst and write_lm use.

    Raises:
        OSError: the file cannot be read.
        FormatError: it is not what its first bytes say.
        ValueError: options that do not fit.
    """
    source = Path(path)
    with source.open("rb") as file:
        magic = file.read(8)
    words = None if vocab is None else read_words_file(vocab)
    ids = {"bos_id": bos_id, "eos_id": eos_id, "unk_id": unk_id}
    if magic == _OURS:
        return NGramLM.load(source)
    if magic[:4] == _OPENFST:
        size = vocab_size if vocab_size is not None else len(words or ())
        if not size:
            raise ValueError(
                f"{source}: an OpenFst file does not tell its vocabulary; expected "
                "vocab_size or vocab"
            )
        return NGramLM(
            _core.read_lm_fst(os.fspath(source), size, **ids, failure_label=failure_label)
        )
    if magic[:2] != _GZIP:
        return NGramLM.from_arpa(source, vocab_size, vocab=words, **ids)
    with tempfile.TemporaryDirectory() as folder:
        plain = _gunzip(source, Path(folder))
        return NGramLM.from_arpa(plain, vocab_size, vocab=words, **ids)


def read_kenlm(
    path: str | os.PathLike[str], vocab: Words | None = None
) -> tuple[NGramLM, list[str]]:
    """Reads ARPA text made by KenLM's lmplz, plain or gzipped, with its words.

    Args:
        path: the file.
        vocab: the word of each token id. Without it the file's words are numbered as they stand
            in it; ``<s>``, ``</s>`` and ``<unk>`` stay outside.

    Returns:
        The LM, and the word of each token id.

    Raises:
        OSError: the file cannot be read.
        FormatError: malformed text; the message has the line.
        ValueError: a word of the file that vocab lacks.

    Warns:
        UserWarning: vocab has words that the file lacks. Each gets the probability of ``<unk>``,
            as KenLM itself would give it, so that sums over the vocabulary are above 1.
    """
    source = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        with source.open("rb") as file:
            zipped = file.read(2) == _GZIP
        plain = _gunzip(source, Path(folder)) if zipped else source
        words = read_arpa_words(plain) if vocab is None else read_words_file(vocab)
        lm = NGramLM.from_arpa(plain, vocab=words)
        if vocab is not None:
            _warn_of_unknown(source, lm, words, set(read_arpa_words(plain)))
        return lm, words


def _warn_of_unknown(source: Path, lm: NGramLM, words: list[str], known: set[str]) -> None:
    special = {"<s>", "</s>", "<unk>", "<UNK>"}
    unknown = [i for i, word in enumerate(words) if word not in known and word not in special]
    if not unknown:
        return
    each = math.exp(lm.log_prob(unknown[0], bos=False))
    warnings.warn(
        f"{source}: {len(unknown)} of {len(words)} token ids are not among its words; each gets "
        f"the probability of <unk>, {each:.3g}, so that the probabilities of all token ids sum to "
        f"{1 + len(unknown) * each:.6g} (harmless where drafts are compared; for perplexities "
        "train with the whole vocabulary)",
        UserWarning,
        stacklevel=3,
    )


def write_lm(
    lm: NGramLM,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    vocab: Words | None = None,
) -> None:
    """Writes an LM in one of FORMATS, to a temporary name first.

    Args:
        lm: the LM.
        path: the file.
        to: one of FORMATS; by default what the path ends in (.lm, .arpa, .arpa.gz, .fst).
            FSTs start behind ``<s>`` and have ``</s>`` as final costs.
        vocab: ARPA: the word of each token id; decimal ids without it.

    Raises:
        OSError: it cannot be written; what was at `path` is untouched.
        ValueError: no such format, or words that do not fit.
    """
    target = Path(path)
    form = to or next(
        (f for f in ("arpa.gz", "arpa", "fst") if target.name.endswith("." + f)), "lm"
    )
    if form not in FORMATS:
        raise ValueError(f"write_lm: the format is {form!r}; expected one of {', '.join(FORMATS)}")
    words = None if vocab is None else read_words_file(vocab)
    if form == "lm":
        lm.save(target)
    elif form == "arpa":
        lm.to_arpa(target, vocab=words)
    elif form == "arpa.gz":
        _replace(target, lambda temporary: _write_gzip(lm, temporary, words))
    else:
        data = _fst_bytes(lm, const=form == "const-fst")
        _replace(target, lambda temporary: _write_bytes(temporary, data))


def read_words_file(vocab: Words) -> list[str]:
    """The word of each token id.

    Args:
        vocab: a list; a file with one word a line; or JSON: {word: id}, as GPT-2's encoder.json,
            or a tokenizer.json of the tokenizers library.

    Raises:
        OSError: the file cannot be read.
        ValueError: JSON that is no such mapping, or ids that are not 0..V-1.
    """
    if not isinstance(vocab, (str, os.PathLike)) or not os.fspath(vocab).endswith(".json"):
        return read_words(vocab)
    ids = json.loads(Path(vocab).read_text(encoding="utf-8"))
    if isinstance(ids, dict) and "model" in ids:
        added = {entry["content"]: entry["id"] for entry in ids.get("added_tokens", [])}
        ids = {**ids["model"].get("vocab", {}), **added}
    if not isinstance(ids, dict) or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(
            f"{os.fspath(vocab)}: expected JSON of words with the ids 0, 1, .. each "
            "once, or a tokenizer.json"
        )
    return sorted(ids, key=ids.__getitem__)


def _gunzip(source: Path, folder: Path) -> Path:
    plain = folder / source.name.removesuffix(".gz")
    try:
        with gzip.open(source, "rb") as packed, plain.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    except EOFError:
        raise _core.FormatError(f"{source}: the gzip file is cut; copy it again") from None
    except gzip.BadGzipFile as error:
        raise _core.FormatError(f"{source}: a damaged gzip file ({error})") from None
    return plain


def _write_gzip(lm: NGramLM, path: Path, words: list[str] | None) -> None:
    plain = path.with_name("plain.tmp")  # in the folder of _replace
    lm.to_arpa(plain, vocab=words)
    with plain.open("rb") as file, gzip.GzipFile(path, "wb", mtime=0) as packed:
        shutil.copyfileobj(file, packed, 1 << 20)


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _fst_bytes(lm: NGramLM, *, const: bool) -> bytes:
    import numpy as np

    empty = np.zeros(0, np.int32)
    return lm._core.to_fst_bytes(empty, True, False, True, const)


def _replace(target: Path, write: Callable[[Path], None]) -> None:
    """Writes in a temporary folder beside the target, then renames."""
    _remove_leftovers(target)
    folder = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    folder.mkdir(exist_ok=True)
    try:
        write(folder / target.name)
        (folder / target.name).replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Removes the folders of processes that were killed while they wrote the target."""
    for folder in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        process = folder.name.removeprefix(f".{target.name}.").removesuffix(".tmp")
        if process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
