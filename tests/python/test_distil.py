"""n-gram LMs of the target's own choices: counts by brute force, files, the command, mixing."""

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from blockwise_models import VOCAB, looping_text, random_model, trained_model
from lattice_bpd import NGramLM
from lattice_bpd.cli import build_parser
from lattice_bpd.lm import count_ngrams
from lattice_bpd.train.distil import distil_ngram, predict_targets


def random_texts(rng, count=12, longest=30):
    return [rng.integers(0, VOCAB, rng.integers(1, longest)).astype(np.int32) for _ in range(count)]


def choices_one_by_one(model, text):
    """The argmax after every prefix, each read alone."""
    choices = []
    for end in range(1, len(text) + 1):
        with torch.inference_mode():
            logits = model.base(input_ids=torch.tensor([text[:end].tolist()])).logits
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


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_distil_targets_are_the_argmax_after_every_prefix(architecture):
    model = random_model(architecture)
    texts = random_texts(np.random.default_rng(1))
    predicted = predict_targets(model, texts)
    for text, chosen in zip(texts, predicted, strict=True):
        assert chosen.tolist() == choices_one_by_one(model, text)


def test_distil_reads_long_texts_in_windows():
    model = random_model("llama")
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


def test_distil_lm_is_the_lm_of_its_counts():
    model = trained_model()
    texts = np.split(looping_text(600), 20)
    lm = distil_ngram(model, texts, 3, smoothing="witten_bell")
    chosen = predict_targets(model, texts)
    counts = count_plainly(texts, chosen, 3, VOCAB)
    total = sum(counts[0].values())

    def prob(word, history):
        lower = counts[0][word,] / total if not history else prob(word, history[1:])
        if not history:
            return lower
        seen = {n: c for n, c in counts[len(history)].items() if n[:-1] == history}
        if not seen:
            return lower
        mass, types = sum(seen.values()), len(seen)
        return (seen.get((*history, word), 0) + types * lower) / (mass + types)

    words = [n[0] for n in counts[0]]
    for history in ((5, 10), (10, 15), (1, 2), (0, 0)):
        for word in words[::3]:
            expected = np.log(prob(word, history))
            assert lm.log_prob(word, history, bos=False) == pytest.approx(expected, abs=1e-4)


def test_distil_sets_the_token_that_begins_a_text():
    model = random_model("llama")
    texts = random_texts(np.random.default_rng(3), 4)
    with_token = [np.concatenate([[0], text[text > 0]]) for text in texts]
    bare = [text[1:] for text in with_token]
    options = {"bos_id": 0, "smoothing": "witten_bell"}
    ours = distil_ngram(model, bare, 2, **options)
    explicit = distil_ngram(model, with_token, 2, **options)
    assert ours.num_ngrams == explicit.num_ngrams
    first = choices_one_by_one(model, np.array([0]))[0]
    assert ours.log_prob(first, [0]) == explicit.log_prob(first, [0]) > -1.5


def test_distil_predicts_the_target_better_than_the_corpus_does():
    model = trained_model()
    texts = np.split(looping_text(2000), 20)
    held_out = np.split(looping_text(400, seed=9), 4)
    chosen = predict_targets(model, held_out)

    def score(lm):
        return np.mean(
            [lm.log_prob(y, x[: t + 1]) for x, ys in zip(held_out, chosen, strict=True)
             for t, y in enumerate(ys)]
        )  # fmt: skip

    options = {"smoothing": "absolute", "unseen": "uniform"}
    distilled = distil_ngram(model, texts, 3, **options)
    corpus = NGramLM.train(texts, 3, vocab_size=VOCAB, **options)
    assert score(distilled) > score(corpus)
    mixed = NGramLM.interpolate([distilled, corpus], weights=[0.7, 0.3])
    word, history = int(chosen[0][9]), held_out[0][:10]
    expected = np.logaddexp(
        np.log(0.7) + distilled.log_prob(word, history),
        np.log(0.3) + corpus.log_prob(word, history),
    )
    assert mixed.log_prob(word, history) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequences": [[1, VOCAB]]}, "token id"),
        ({"sequences": [np.array([1, VOCAB], np.int32)]}, "the tokenizer that the target"),
        ({"sequences": [[1, 2]], "window": 1}, "window is 1"),
        ({"sequences": [[1, 2]], "window": 1000}, "64 positions"),
        ({"sequences": []}, "no target|no text"),
    ],
)
def test_distil_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        distil_ngram(random_model("llama"), **arguments)


def test_train_ngram_refuses_targets_that_do_not_fit():
    with pytest.raises(ValueError, match="one target for each token"):
        NGramLM.train([[1, 2]], 2, vocab_size=4, targets=[[1]])
    with pytest.raises(TypeError, match="float64"):
        NGramLM.train([[1, 2]], 2, vocab_size=4, targets=[[1.0, 2.0]])
    with pytest.raises(ValueError, match="target 7"):
        NGramLM.train([[1, 2]], 2, vocab_size=4, targets=[[1, 7]])


def run(*words):
    """The command as `lattice-bpd ngram` runs it."""
    args = build_parser().parse_args(["ngram", *map(str, words)])
    args.run(args)


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    trained_model().save_pretrained(path)
    return path


def test_distil_command(saved_model, tmp_path, capsys):
    text = looping_text(900)
    np.save(tmp_path / "corpus.npy", text)
    run(
        "distil", "--model", saved_model, "--corpus", tmp_path / "corpus.npy",
        "-o", tmp_path / "target.lm", "--order", 3, "--smoothing", "absolute",
    )  # fmt: skip
    shown = capsys.readouterr()
    assert "order 3" in shown.out
    expected = distil_ngram(trained_model(), [text], 3, smoothing="absolute")
    lm = NGramLM.load(tmp_path / "target.lm")
    assert lm.num_ngrams == expected.num_ngrams
    assert lm.score(text[:20]) == pytest.approx(expected.score(text[:20]), abs=1e-5)
    NGramLM.train([text], 2, vocab_size=VOCAB, smoothing="absolute").save(tmp_path / "corpus.lm")
    files = (tmp_path / "target.lm", tmp_path / "corpus.lm")
    run("merge", *files, "--weights", "0.7,0.3", "-o", tmp_path / "mixed.lm")
    assert NGramLM.load(tmp_path / "mixed.lm").order == 3


def test_distil_command_errors(saved_model, tmp_path):
    np.save(tmp_path / "big.npy", np.array([1, VOCAB + 1], np.int32))
    output = tmp_path / "out.lm"
    with pytest.raises(OSError, match="expected the folder of a causal LM"):
        run("distil", "--model", tmp_path / "none", "--corpus", tmp_path / "big.npy", "-o", output)
    with pytest.raises(OSError, match="no such file"):
        run("distil", "--model", saved_model, "--corpus", tmp_path / "no.txt", "-o", output)
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(ValueError, match="tokenizer"):
        run("distil", "--model", saved_model, "--corpus", tmp_path / "text.txt", "-o", output)
    with pytest.raises(ValueError, match=f"expected 0..{VOCAB - 1}"):
        run("distil", "--model", saved_model, "--corpus", tmp_path / "big.npy", "-o", output)
    assert not output.exists()
