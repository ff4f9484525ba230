"""ARPA text of an LM whose <s> and </s> are one token id, as GPT-2's <|endoftext|>."""

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.lm.convert import read_kenlm


@pytest.fixture(scope="module")
def lm():
    sequences = [[9, 1, 2, 9], [9, 1, 3, 9], [9, 2, 1, 2, 9], [9, 9]]
    return NGramLM.train(
        sequences, 3, vocab_size=10, bos_id=9, eos_id=9, smoothing="witten_bell", unseen="uniform"
    )


def test_both_symbols_are_written_and_read_back(lm, tmp_path):
    path = tmp_path / "lm.arpa"
    lm.to_arpa(path)
    text = path.read_text()
    unigrams = text.split("\\1-grams:\n")[1].split("\n\n")[0].splitlines()
    words = [line.split("\t")[1] for line in unigrams]
    assert words.count("<s>") == words.count("</s>") == 1
    assert "9" not in words
    assert f"ngram 1={len(words)}\n" in text
    assert "\t<s> 1" in text
    assert "2 </s>\n" in text
    back = NGramLM.from_arpa(path, 10, bos_id=9, eos_id=9)
    texts = np.random.default_rng(0).integers(0, 10, (50, 6))
    for row in texts:
        np.testing.assert_allclose(back.score(row, eos=True), lm.score(row, eos=True), atol=1e-6)


def test_words_that_an_arpa_file_lacks_are_named_with_the_sum(tmp_path):
    lm = NGramLM.train([[0, 1], [1, 2]], 2, vocab_size=4, unk_id=3, smoothing="witten_bell",
                       unseen="uniform")  # fmt: skip
    lm.to_arpa(tmp_path / "lm.arpa", vocab=["a", "b", "c", "<unk>"])
    unknown = np.exp(lm.log_prob(3, bos=False))
    with pytest.warns(UserWarning, match=r"2 of 5 token ids .* sum to (\S+)") as caught:
        back, words = read_kenlm(tmp_path / "lm.arpa", ["a", "b", "c", "d", "e"])
    assert len(words) == back.vocab_size == 5
    stated = float(str(caught[0].message).split("sum to ")[1].split()[0])
    assert stated == pytest.approx(1 + 2 * unknown, abs=1e-4)
    read_kenlm(tmp_path / "lm.arpa", ["a", "b", "c"])  # no warning
