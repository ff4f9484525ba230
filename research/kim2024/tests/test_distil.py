"""n-gram LMs of the target's own choices: windows, counts by brute force, errors."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, random_model
from counted_ngrams import count_ngrams
from lattice_bpd_kim2024.distil import distil_ngram, predict_targets


def random_texts(rng, count=12, longest=30):
    return [rng.integers(0, VOCAB, rng.integers(1, longest)).astype(np.int32) for _ in range(count)]


def choices_one_by_one(model, text):
    """The argmax after every prefix, each read alone."""
    choices = []
    for end in range(1, len(text) + 1):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([text[:end].tolist()])).logits
        choices.append(int(np.argmax(logits[0, -1].numpy())))
    return choices


def count_plainly(texts, targets, order, bos):
    counts = [Counter() for _ in range(order)]
    for text, chosen in zip(texts, targets, strict=True):
        for index, target in enumerate(chosen):
            history = [bos, *text[: index + 1].tolist()]
            for n in range(1, min(order, len(history) + 1) + 1):
                before = history[len(history) - n + 1 :]
                counts[n - 1][(*before, int(target))] += target >= 0
    return [Counter({ngram: c for ngram, c in level.items() if c}) for level in counts]


def test_distil_reads_long_texts_in_windows():
    model = random_model("llama").base
    text = np.random.default_rng(2).integers(0, VOCAB, 50).astype(np.int32)
    seen = []
    (predicted,) = predict_targets(model, [text], window=20, on_tokens=lambda *n: seen.append(n))
    starts = [max(0, 20 + 10 * (-(-(t - 19) // 10)) - 20) for t in range(50)]
    expected = [choices_one_by_one(model, text[s : t + 1])[-1] for t, s in enumerate(starts)]
    assert predicted.tolist() == expected
    assert seen[-1] == (50, 50)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_distil_counts_equal_brute_force(order):
    rng = np.random.default_rng(order)
    texts = random_texts(rng)
    targets = [rng.integers(-1, VOCAB, len(text)) for text in texts]
    tables = count_ngrams(texts, order, vocab_size=VOCAB, targets=targets)
    counted = [
        Counter({tuple(map(int, row)): int(c) for row, c in zip(*table, strict=True)})
        for table in tables
    ]
    assert counted == count_plainly(texts, targets, order, VOCAB)


def test_distil_sets_the_token_that_begins_a_text():
    model = random_model("llama").base
    texts = random_texts(np.random.default_rng(3), 4)
    with_token = [np.concatenate([[0], text[text > 0]]) for text in texts]
    bare = [text[1:] for text in with_token]
    options = {"bos_id": 0, "smoothing": "witten_bell"}
    ours = distil_ngram(model, bare, 2, **options)
    explicit = distil_ngram(model, with_token, 2, **options)
    assert ours.num_ngrams == explicit.num_ngrams
    first = choices_one_by_one(model, np.array([0]))[0]
    assert ours.log_prob(first, [0]) == explicit.log_prob(first, [0]) > -1.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": [np.array([1, VOCAB], np.int32)]}, "the tokenizer that the target"),
        ({"sequences": [[1, 2]], "window": 1}, "window is 1"),
        ({"sequences": [[1, 2]], "window": 1000}, "64 positions"),
        ({"sequences": []}, "no target|no text"),
    ],
)
def test_distil_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        distil_ngram(random_model("llama").base, **arguments)


@pytest.mark.parametrize(
    ("targets", "message"), [([1], "1 targets for 2 tokens"), ([1, 7], "target 7")]
)
def test_targets_that_do_not_fit_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        count_ngrams([[1, 2]], 2, vocab_size=4, targets=[np.array(targets)])
