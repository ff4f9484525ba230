"""ARPA models of words for tests: small ones, random ones, and those that others published."""

from __future__ import annotations

import bz2
import warnings
from pathlib import Path

import numpy as np

from lattice_bpd import NGramLM
from lattice_bpd.lm import write_lm

PUBLISHED = Path(__file__).resolve().parents[4] / "shared" / "data" / "arpa_shared"

SMALL = r"""
\data\
ngram 1=6
ngram 2=4
ngram 3=1

\1-grams:
-99	<s>	-0.1
-1.0	</s>
-0.9	the	-0.4
-0.7	cat	-0.3
-0.8	sat	-0.2
-1.5	<unk>	-0.05

\2-grams:
-0.2	<s> the	-0.05
-0.3	the cat	-0.15
-0.5	cat sat
-0.6	<unk> cat	-0.25

\3-grams:
-0.1	<s> the cat

\end\
"""


def random_arpa(rng: np.random.Generator, path: Path, order: int, num_words: int) -> list[str]:
    """An LM of random text as ARPA text of words; returns the words."""
    words = [f"w{i}" if i % 3 else f"wö{i}" for i in range(num_words)]
    texts = [
        (num_words * rng.random(rng.integers(1, 30)) ** 2).astype(np.int32) for _ in range(120)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm = NGramLM.train(
            texts, order, vocab_size=num_words, smoothing="modified_kneser_ney", unseen="uniform"
        )
    write_lm(lm, path, vocab=words)
    return words


def published_models(folder: Path) -> list[Path]:
    """Models of KenLM, OpenGrm, CMU's toolkits, BerkeleyLM; empty where they are not here."""
    found = sorted([*PUBLISHED.rglob("*.arpa"), *PUBLISHED.rglob("*.lm")])
    for packed in PUBLISHED.rglob("*.lm.bz2"):
        path = folder / packed.stem
        path.write_bytes(bz2.decompress(packed.read_bytes()))
        found.append(path)
    return found


def random_sentences(
    rng: np.random.Generator, words: list[str], count: int, unknown: float = 0.05
) -> list[str]:
    """Sentences of 0 to 20 words with unknown ones among them."""
    known = np.array([*words, "</s>", "<unk>", "never-seen", "日本"])
    sentences = []
    for _ in range(count):
        rows = rng.integers(0, len(words), rng.integers(0, 20))
        odd = rng.random(len(rows)) < unknown
        rows = np.where(odd, rng.integers(len(words), len(known), len(rows)), rows)
        sentences.append(" ".join(known[rows]))
    return sentences
