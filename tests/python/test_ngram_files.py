"""LM files from one format to another, and what info says about them."""

import gzip
import re

import numpy as np
import pytest

from lattice_bpd import FormatError, NGramLM
from lattice_bpd.lm.convert import FORMATS, describe_lm, read_lm, write_lm

WORDS = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def lm() -> NGramLM:
    rng = np.random.default_rng(0)
    corpus = [rng.zipf(1.5, size=9).clip(max=4).astype(np.int32) for _ in range(300)]
    return NGramLM.train(corpus, 3, vocab_size=5, smoothing="witten_bell")


def every_score(lm: NGramLM) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.concatenate([lm.score(rng.integers(0, 5, 12), eos=True) for _ in range(40)])


@pytest.mark.parametrize("to", FORMATS)
def test_every_format_reads_back(lm, to, tmp_path):
    path = tmp_path / f"x.{to}"
    write_lm(lm, path, to=to)
    again = read_lm(path, vocab_size=5)
    assert np.allclose(every_score(again), every_score(lm), atol=2e-6)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_formats_are_detected_by_endings_and_first_bytes(lm, tmp_path):
    for name, magic in [("m.lm", b"LBPD"), ("m.arpa", b"\\dat"), ("m.arpa.gz", b"\x1f\x8b")]:
        write_lm(lm, tmp_path / name, vocab=WORDS if "arpa" in name else None)
        assert (tmp_path / name).read_bytes().startswith(magic)
    with gzip.open(tmp_path / "m.arpa.gz", "rt") as file:
        assert file.read() == (tmp_path / "m.arpa").read_text()
    same = read_lm(tmp_path / "m.arpa.gz", vocab=WORDS)
    assert np.array_equal(every_score(same), every_score(lm))
    with pytest.raises(ValueError, match="the format is 'xml'; expected one of lm, arpa"):
        write_lm(lm, tmp_path / "m", to="xml")


def test_epsilon_backoff_of_another_toolkit(lm, tmp_path):
    pywrapfst = pytest.importorskip("pywrapfst")
    fst = lm.to_pywrapfst(end_of_sentence=True)
    fst.relabel_pairs(ipairs=[(lm.failure_label, 0)], opairs=[(lm.failure_label, 0)])
    fst.write(str(tmp_path / "epsilon.fst"))
    again = read_lm(tmp_path / "epsilon.fst", vocab_size=5)
    assert np.allclose(every_score(again), every_score(lm), atol=2e-6)
    assert again.num_ngrams == lm.num_ngrams
    assert pywrapfst


def test_what_is_wrong_with_an_fst_is_said(lm, tmp_path):
    path = tmp_path / "x.fst"
    write_lm(lm, path)
    with pytest.raises(ValueError, match="expected vocab_size or vocab"):
        read_lm(path)
    with pytest.raises(FormatError, match="without a failure arc"):
        read_lm(path, vocab_size=9)
    with pytest.raises(FormatError, match=r"has label 5; expected 1\.\.4"):
        read_lm(path, vocab_size=1, failure_label=lm.failure_label)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FormatError, match="no OpenFst file"):
        read_lm(path, vocab_size=5)


def test_info_has_sizes_errors_and_checksums(lm, tmp_path):
    small = lm.quantise(8)
    small.save(tmp_path / "q.lm")
    info = describe_lm(tmp_path / "q.lm")
    assert info.order == 3
    assert [level.ngrams for level in info.levels] == lm.num_ngrams
    stored = sum(section.bytes for section in info.sections if section.name != "level forms")
    assert stored == sum(level.bytes for level in info.levels)
    assert not describe_lm(lm).is_quantised
    text = "\n".join(info.lines())
    assert re.search(r"order 3, vocabulary 5, \d+ n-grams, \d+\.\d\d bytes each", text)
    assert f"{info.sections[1].checksum:016x}" in text


def test_quantised_scores_are_within_the_stated_error():
    rng = np.random.default_rng(2)
    corpus = [rng.zipf(1.2, size=30).clip(max=399).astype(np.int32) for _ in range(900)]
    lm = NGramLM.train(corpus, 3, vocab_size=400, smoothing="kneser_ney")
    small = lm.quantise(8)
    levels = describe_lm(small).levels
    assert levels[2].log_prob_error > 0
    limit = max(level.log_prob_error for level in levels) + sum(v.backoff_error for v in levels)
    text = np.concatenate(corpus[:50])
    assert np.abs(small.score(text) - lm.score(text)).max() <= limit + 1e-5
    with pytest.raises(ValueError, match="bits is 7; expected 8, 12 or 16"):
        lm.quantise(7)
