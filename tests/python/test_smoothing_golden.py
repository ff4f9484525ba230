"""Kneser-Ney, Witten-Bell and absolute discounting against the models of two other toolkits."""

import numpy as np
import pytest

import golden
from lattice_bpd import NGramLM
from lattice_bpd.lm import SmoothingWarning

# log10. Theirs and ours are rounded to float32 at different steps, which shows in backoffs
# (1 - sum) of contexts that leave little: 1.1e-4 in one context of shakespeare by Witten-Bell.
PROB_TOLERANCE = 2e-5
BACKOFF_TOLERANCE = 1.5e-4

CASES = [
    case
    for name in ("witten_bell", "absolute", "kneser_ney")
    for case in golden.find_golden(f"*/arpa/o3.{name}.arpa*")
]


@pytest.mark.parametrize("path", CASES)
def test_models_equal_golden(path, tmp_path):
    smoothing = path.name.split(".")[1]
    lm, words = golden.train_on(path.parents[1], 3, smoothing=smoothing)
    ours = golden.table_of(lm, words, tmp_path)
    theirs = golden.read_arpa(golden.read_text(path))
    assert ours.keys() == theirs.keys()
    prob, backoff = golden.largest_differences(ours, theirs)
    assert prob < PROB_TOLERANCE
    assert backoff < BACKOFF_TOLERANCE


@pytest.mark.parametrize("path", golden.find_golden("earnest/arpa/kenlm_lmplz_o3.arpa.gz"))
def test_modified_kneser_ney_equals_lmplz(path, tmp_path):
    sequences, words = golden.read_corpus(path.parents[1])
    seen = 1 + max(int(ids.max()) for ids in sequences if len(ids))  # lmplz sees no held-out words
    lm, _ = golden.train_on(
        path.parents[1], 3, smoothing="modified_kneser_ney", unseen="uniform", vocab_size=seen
    )
    ours = golden.table_of(lm, words, tmp_path)
    theirs = golden.read_arpa(golden.read_text(path))
    assert ours.keys() == theirs.keys()
    assert max(golden.largest_differences(ours, theirs)) < 1e-6


def test_warnings_and_names():
    with pytest.warns(SmoothingWarning) as caught:
        NGramLM.train([[0, 0], [0, 0]], 2, vocab_size=1, smoothing="modified_kneser_ney")
    assert "order 2 has counts of counts n_1..n_4 = 0, 3, 0, 0" in str(caught[1].message)
    with pytest.raises(ValueError, match=r'smoothing is "kneser"; expected katz'):
        NGramLM.train([[0]], 2, vocab_size=1, smoothing="kneser")


def test_uniform_share_gives_unseen_tokens_a_probability():
    lm = NGramLM.train([[0, 1], [0]], 1, vocab_size=4, smoothing="absolute", unseen="uniform")
    # Counts 0: 2, 1: 1, </s>: 2. n_1 = 1, n_2 = 2, D = 1/5; six events (four ids, </s>, <unk>).
    share = 3 / 5 / 5 / 6
    assert np.exp(lm.log_prob(3)) == pytest.approx(share)
    assert np.exp(lm.log_prob(0)) == pytest.approx((2 - 1 / 5) / 5 + share)
