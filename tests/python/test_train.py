"""Training n-gram LMs from Python: the worked example, laws, bad input."""

import itertools
import math
import warnings

import numpy as np
import pytest

from counted_ngrams import count_ngrams
from lattice_bpd import NGramLM
from lattice_bpd.lm import KatzWarning, RaggedIds, SmoothingWarning

# a b / a b / a c / b a, with a = 0, b = 1, c = 2; see train_test.cc for the whole arithmetic.
WORKED = [[0, 1], [0, 1], [0, 2], [1, 0]]


def train_quietly(sequences, order, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KatzWarning)
        return NGramLM.train(sequences, order, **options)


def prob(lm, token_id, context=(), bos=True):
    return math.exp(lm.log_prob(token_id, context, bos=bos))


def test_worked_example():
    lm = NGramLM.train(WORKED, 2, vocab_size=3, katz_k=2)
    # d_1 = 0.5, d_2 = 0.375, d_3 = 0.999; C(<s>) = C(a) = 4, C(b) = 3; 12 events.
    assert prob(lm, 0) == pytest.approx(0.999 * 3 / 4, rel=1e-6)
    assert prob(lm, 1, [0], bos=False) == pytest.approx(0.375 * 2 / 4, rel=1e-6)
    assert prob(lm, 0, [1]) == pytest.approx(0.5 * 1 / 3, rel=1e-6)
    # bow(a) = (1 - 0.1875 - 0.125 - 0.125) / (1 - 3/12 - 1/12 - 4/12)
    assert prob(lm, 0, [0]) == pytest.approx(0.5625 / (4 / 12) * 4 / 12, rel=1e-6)


def all_types(sequences):
    flat = np.array(list(itertools.chain(*sequences)), dtype=np.int32)
    offsets = np.cumsum([0] + [len(s) for s in sequences])
    yield sequences
    yield iter(sequences)
    yield tuple(np.array(s, dtype=np.int64) for s in sequences)
    yield [np.array(s, dtype=np.uint16) for s in sequences]
    yield [np.repeat(np.array(s, dtype=np.int32), 2)[::2] for s in sequences]  # strided
    yield np.array(sequences)
    yield RaggedIds(flat, offsets)


@pytest.mark.parametrize("kind", range(7))
def test_types_of_input_are_equal(kind):
    sequences = next(itertools.islice(all_types(WORKED), kind, None))
    (unigrams, counts), (bigrams, pair_counts) = count_ngrams(sequences, 2, vocab_size=3)
    assert unigrams.tolist() == [[0], [1], [2], [4]]
    assert counts.tolist() == [4, 3, 1, 4]
    table = dict(zip(map(tuple, bigrams.tolist()), pair_counts.tolist(), strict=True))
    assert table[0, 1] == 2
    assert table[3, 0] == 3
    assert table[1, 4] == 2


def test_boundaries_in_the_text_are_not_added_again():
    named = count_ngrams([[0, 2, 3, 1], [2]], 3, vocab_size=4, bos_id=0, eos_id=1)
    plain = count_ngrams([[2, 3], [2]], 3, vocab_size=4)
    rename = np.array([0, 1, 2, 3, 0, 1])  # <s> is symbol 4 in `plain`, </s> 5
    for (ngrams, counts), (plain_ngrams, plain_counts) in zip(named, plain, strict=True):
        renamed = rename[plain_ngrams].tolist()
        assert sorted(zip(ngrams.tolist(), counts, strict=True)) == sorted(
            zip(renamed, plain_counts, strict=True)
        )


def test_result_does_not_depend_on_threads_or_order_of_sequences():
    rng = np.random.default_rng(3)
    corpus = [rng.zipf(1.3, size=50).clip(max=400).astype(np.int32) for _ in range(200)]
    options = {"vocab_size": 401, "min_counts": [1, 1, 2, 2]}
    tables = [
        count_ngrams(corpus, 4, threads=1, **options),
        count_ngrams(corpus[::-1], 4, threads=7, **options),
    ]
    for one, other in zip(*tables, strict=True):
        assert np.array_equal(one[0], other[0])
        assert np.array_equal(one[1], other[1])
    lms = [train_quietly(corpus, 4, threads=t, **options) for t in (1, 5)]
    assert np.array_equal(*(lm.score(corpus[0]) for lm in lms))


def test_warnings_name_order_and_numbers():
    # Bigrams <s> a, a a, a </s> of counts 2, 2, 2: n_2 = 3 alone.
    with pytest.warns(KatzWarning, match=r"order 2 .*n_1\.\.n_6 = 0, 3, 0, 0, 0, 0\)") as caught:
        NGramLM.train([[0, 0], [0, 0]], 2, vocab_size=1)
    assert "count 2" in str(caught[0].message)
    with pytest.warns(KatzWarning) as caught:
        assert NGramLM.train([[0]], 4, vocab_size=1).order == 3  # <s> a </s>
    assert "LM has order 3 instead of 4" in str(caught[0].message)


@pytest.mark.parametrize(
    ("sequences", "options", "message"),
    [
        ([], {}, "has no text"),
        ([[0, 1], [2, 3]], {}, r"sequence 1 has token id 3 at position 1; expected 0\.\.2"),
        (
            [np.int32([0, 1]), np.int32([2, 3])],
            {},
            r"3 at index 3 \(sequence 1, position 1\) .*0\.\.2",
        ),
        ([[0, -1]], {}, "sequence 0 has token id -1 at position 1"),
        ([0, 1, 2], {}, r"sequence 0 has shape \(\); expected one dimension"),
        (WORKED, {"order": 7}, r"order is 7; expected 1\.\.6"),
        (WORKED, {"min_counts": [1]}, "min_counts has 1 entries; expected 2"),
        (WORKED, {"min_counts": [1, 0]}, "expected an entry of at least 1"),
        (WORKED, {"katz_k": 33}, r"katz_k is 33; expected 1\.\.32"),
        (WORKED, {"vocab_size": 0}, "vocab_size is 0"),
        (WORKED, {"bos_id": 3}, "bos_id is 3"),
        (WORKED, {"threads": -1}, "threads is -1"),
        (RaggedIds(np.zeros(3, np.int32), np.array([0, 4])), {}, "from 0 to 4; expected 0 to 3"),
        (RaggedIds(np.zeros(3, np.int32), np.array([0, 2, 1, 3])), {}, r"offsets\[2\] is 1, below"),
    ],
)
def test_bad_values_say_what_is_wrong(sequences, options, message):
    arguments = {"order": 2, "vocab_size": 3, **options}
    with pytest.raises(ValueError, match=message):
        NGramLM.train(sequences, **arguments)


def test_smoothing_by_name():
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
