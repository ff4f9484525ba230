"""Text for the benchmarks: WikiText-2 as GPT-2 tokens, or Zipf text, and long synthetic text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "build" / "bench"
SHARED = ROOT.parent / "shared" / "data"
VOCAB_SIZE = 50_257  # GPT-2's
ID_FACTOR = 3  # ids times this are above 65,535, for which LMs have 4-byte keys
LARGE_VOCAB_SIZE = ID_FACTOR * VOCAB_SIZE

Int32Array = npt.NDArray[np.int32]


class Corpus(NamedTuple):
    """Token ids of many lines.

    Attributes:
        name: What it is, for reports.
        token_ids: (N,) int32, the concatenated lines.
        offsets: (lines + 1,) int64.
    """

    name: str
    token_ids: Int32Array
    offsets: npt.NDArray[np.int64]


def multiply_ids(corpus: Corpus) -> Corpus:
    """The same text in a vocabulary of LARGE_VOCAB_SIZE."""
    name = f"{corpus.name}, ids times {ID_FACTOR}"
    return corpus._replace(name=name, token_ids=ID_FACTOR * corpus.token_ids)


def load_corpus(part: str = "train") -> Corpus:
    """WikiText-2 where it and the tokenizer lie beside the checkout, else Zipf text.

    Args:
        part: "train", "valid" or "test".
    """
    text = SHARED / "wikitext2" / f"{part}.txt"
    if not text.is_file():
        print(f"note: no {SHARED.parent.name}/data/wikitext2; using Zipf text", flush=True)
        return make_zipf_text() if part == "train" else make_zipf_text(240_000, seed=1)
    cached = CACHE / ("wikitext2.npz" if part == "train" else f"wikitext2-{part}.npz")
    if not cached.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        token_ids, offsets = _tokenize(text.read_text(encoding="utf-8").split("\n"))
        np.savez(cached, token_ids=token_ids, offsets=offsets)
    with np.load(cached) as arrays:
        return Corpus(f"WikiText-2 {part}, GPT-2 BPE", arrays["token_ids"], arrays["offsets"])


def load_all_text() -> Corpus:
    """English texts of ../shared/data as GPT-2 tokens, a line or JSON string each.

    Without the English sides of the translations (Multi30k, Tatoeba) and without HumanEval's code.

    Raises:
        SystemExit: the data or the tokenizer are not beside the checkout.
    """
    names = ("wikitext2/train.txt", "gutenberg_classics/train.txt*", "tinystories/*.txt",
             "tinyshakespeare/*.txt", "lambada/lambada_test.jsonl",
             *(f"{name}/*.jsonl" for name in ("cnndm", "newsroom", "xsum", "samsum", "squad",
                                              "gsm8k")))  # fmt: skip
    paths = [path for name in names for path in sorted(SHARED.glob(name))]
    if not paths or not (SHARED / "gpt2_bpe").is_dir():
        raise SystemExit(f"no text in {SHARED.parent.name}/data; this benchmark needs it")
    cached = CACHE / "all-text.npz"
    if not cached.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        token_ids, offsets = _tokenize([line for path in paths for line in _read_lines(path)])
        np.savez(cached, token_ids=token_ids, offsets=offsets)
    with np.load(cached) as arrays:
        name = f"{len(paths)} texts of shared/data, GPT-2 BPE"
        return Corpus(name, arrays["token_ids"], arrays["offsets"])


def _read_lines(path: Path) -> list[str]:
    """Lines of text; of JSON lines every string of more than one word."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")
    if path.suffix != ".jsonl":
        return lines
    values = [value for line in lines if line for value in json.loads(line).values()]
    return [value for value in values if isinstance(value, str) and " " in value]


def _tokenize(lines: list[str]) -> tuple[Int32Array, npt.NDArray[np.int64]]:
    """Every line that is not empty, as the tokens of GPT-2."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    bpe = SHARED / "gpt2_bpe"
    merges = [
        tuple(line.split(" "))
        for line in (bpe / "vocab.bpe").read_text(encoding="utf-8").split("\n")[1:]
        if line
    ]
    vocab = json.loads((bpe / "encoder.json").read_text(encoding="utf-8"))
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    encoded = tokenizer.encode_batch([line for line in lines if line.strip()])
    rows = [np.array(encoding.ids, np.int32) for encoding in encoded]
    offsets = np.cumsum([0] + [len(row) for row in rows], dtype=np.int64)
    return np.concatenate(rows), offsets


def make_zipf_text(num_tokens: int = 2_400_000, seed: int = 0) -> Corpus:
    """Text whose unigrams and whose successors of each token follow Zipf's law."""
    rng = np.random.default_rng(seed)
    ranks = np.minimum(rng.zipf(1.15, num_tokens) - 1, VOCAB_SIZE - 1)
    follows = rng.random(num_tokens) < 0.7
    rows, width = 1000, num_tokens // 1000
    text = np.empty((rows, width), np.int64)
    text[:, 0] = ranks[:rows]
    for at in range(1, width):
        samples = ranks[at * rows : (at + 1) * rows]
        successor = (text[:, at - 1] * 7919 + samples * 104_729) % 4_001  # a fixed list for each
        text[:, at] = np.where(follows[at * rows : (at + 1) * rows], successor, samples)
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return Corpus("Zipf text", text.reshape(-1).astype(np.int32), offsets)


def make_large_text(corpus: Corpus, copies: int, seed: int = 0) -> Corpus:
    """The corpus, and copies of it whose words are permuted, as if of other languages.

    An LM of it has so many times the n-grams, while a lattice of the corpus meets the same ones:
    what it costs more is memory that is farther away.
    """
    rng = np.random.default_rng(seed)
    size = len(corpus.token_ids)
    texts = [corpus.token_ids]
    texts += [rng.permutation(VOCAB_SIZE).astype(np.int32)[corpus.token_ids] for _ in range(copies)]
    offsets = [corpus.offsets, *(corpus.offsets[1:] + n * size for n in range(1, copies + 1))]
    name = f"{corpus.name} and {copies} copies in permuted words"
    return Corpus(name, np.concatenate(texts), np.concatenate(offsets))


def make_dense_text(corpus: Corpus, num_tokens: int, seed: int = 0) -> Corpus:
    """Stretches of the corpus, glued where a token is shared.

    At each token the text continues as the corpus does, or (1 in 3) as it does after another
    occurrence of this token, or (1 in 8) anywhere. Frequent tokens are adjacent in all
    combinations, so that an LM of it knows several times as many n-grams of a lattice.
    """
    rng = np.random.default_rng(seed)
    source = corpus.token_ids
    occurrences = np.argsort(source[:-1], kind="stable")
    counts = np.bincount(source[:-1], minlength=VOCAB_SIZE)
    starts = np.cumsum(counts) - counts
    rows, width = 50_000, -(-num_tokens // 50_000)
    text = np.empty((rows, width), np.int32)
    at = rng.integers(0, len(source) - 1, rows)
    for column in range(width):
        tokens = source[at]
        text[:, column] = tokens
        count = np.maximum(counts[tokens], 1)
        other = occurrences[
            np.minimum(starts[tokens] + rng.integers(0, count), len(occurrences) - 1)
        ]
        uniform = rng.random(rows)
        at = np.where(uniform < 1 / 3, other, at) + 1
        anywhere = (uniform > 1 - 1 / 8) | (at >= len(source) - 1)
        at = np.where(anywhere, rng.integers(0, len(source) - 1, rows), at)
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return Corpus(f"glued stretches of {corpus.name}", text.reshape(-1), offsets)
