"""ARPA files of other toolkits: they load and agree with KenLM, or with the definition.

The files lie beside the checkout (../shared/data/arpa_shared) and are no part of the project.
"""

import bz2
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import FormatError
from lattice_bpd.lm import read_arpa_words, read_lm
from oracles import ArpaOracle, read_arpa

kenlm = pytest.importorskip("kenlm")

FILES = [
    "kenlm/test.arpa", "kenlm/test_nounk.arpa", "kenlm/toy0.arpa", "kenlm/toy1.arpa",
    "opengrm/earnest.arpa", "pocketsphinx/turtle.lm", "pocketsphinx/turtle.ug.lm",
    "pocketsphinx/100.lm.bz2", "sphinx4/an4_full.trigram.lm", "sphinx4/an4_full.unigram.lm",
    "sphinx4/an4_words.bigram.lm", "sphinx4/an4_spelling.trigram.lm",
    "pyctcdecode/bugs_bunny_kenlm.arpa",
    "berkeleylm/tiny_test_bigram.arpa", "berkeleylm/tiny_test_trigram.arpa",
]  # fmt: skip


@pytest.fixture(params=FILES, ids=lambda name: name.replace("/", "-"))
def arpa_file(request: pytest.FixtureRequest, shared_data: Path, tmp_path: Path) -> Path:
    path = shared_data / "arpa_shared" / str(request.param)
    if not path.exists():
        pytest.skip(f"no {request.param} among the shared ARPA files")
    if path.suffix != ".bz2":
        return path
    with pytest.raises(FormatError, match="is a bzip2 file; expected ARPA text"):
        read_lm(path)
    unpacked = tmp_path / path.stem
    unpacked.write_bytes(bz2.decompress(path.read_bytes()))
    return unpacked


def random_texts(rng: np.random.Generator, oracle: ArpaOracle, size: int) -> list[list[int]]:
    """Random texts, half of them made of the model's own n-grams."""
    ngrams = [n for n in oracle.log_probs if all(isinstance(word, int) for word in n)]
    texts = []
    for _ in range(60):
        text: list[int] = rng.integers(0, size, rng.integers(1, 8)).tolist()
        for i in rng.integers(0, len(ngrams), rng.integers(0, 4)):
            text += [int(word) for word in ngrams[i]]
        texts.append(text)
    return texts


def test_foreign_files(arpa_file: Path, rng: np.random.Generator, tmp_path: Path) -> None:
    words = read_arpa_words(arpa_file)
    assert len(set(words)) == len(words)
    lm = read_lm(arpa_file, vocab=words)
    ids = {word: token for token, word in enumerate(words)}
    oracle = read_arpa("\n" + arpa_file.read_text(encoding="utf-8"), ids)
    assert lm.order == oracle.order
    peer = load_kenlm(arpa_file, oracle.order, tmp_path / "for_kenlm.arpa")
    for text in random_texts(rng, oracle, len(words)):
        scores = lm.score(text, eos=True)
        history = oracle.history([])
        for i, token in enumerate([*text, oracle.eos]):
            expected = oracle.log_prob(history + tuple(text[:i]), token)
            assert scores[i] == pytest.approx(expected, abs=1e-5), (text, i)
        if peer is not None:
            line = " ".join(words[token] for token in text)
            theirs = [p for p, _, _ in peer.full_scores(line, bos=True, eos=True)]
            np.testing.assert_allclose(scores / np.log(10), theirs, atol=2e-5)


def load_kenlm(path: Path, order: int, copy: Path) -> "kenlm.Model | None":
    """KenLM's model, from a copy in KenLM's own layout; None for unigrams, which it refuses.

    KenLM wants \\data\\ first and tabs around the words. The shared folder is never written to.
    """
    if order == 1:
        return None
    text = path.read_text(encoding="utf-8")
    lines, length = [], 0
    for line in text[("\n" + text).index("\n\\data\\") :].splitlines():
        fields = line.split()
        if line.startswith("\\") and line.rstrip().endswith("-grams:"):
            length = int(line[1 : line.index("-")])
        elif length and fields and not line.startswith("\\"):
            ngram = " ".join(fields[1 : length + 1])
            line = "\t".join([fields[0], ngram, *fields[length + 1 :]])
        lines.append(line.rstrip())
    copy.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return kenlm.Model(str(copy))
