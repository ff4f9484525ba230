"""n-best lists: totals by hand, files in and out, weights that are tuned."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.cli import main
from lattice_bpd.train.words import text_normalizer
from lattice_bpd_recognition import (
    Hypothesis,
    read_nbest,
    read_references,
    read_word_lm,
    rescore_nbest,
    tune_weights,
)
from lattice_bpd_recognition.tuning import count_errors
from word_models import SMALL, random_arpa

LN10 = math.log(10)


@pytest.fixture
def lm(tmp_path: Path) -> NGramLM:
    (tmp_path / "small.arpa").write_text(SMALL)
    return read_word_lm(tmp_path / "small.arpa")


def test_totals_by_hand(lm: NGramLM) -> None:
    lists = [[("cat the", -1.0), ("the cat", -1.5)], [], [("the", -2.0)]]
    first, empty, last = rescore_nbest(lists, lm, alpha=0.5, beta=0.25)
    # <s> the cat </s>: -0.2 - 0.1, backoffs of "the cat" and "cat", </s>
    log10 = -0.2 - 0.1 - 0.15 - 0.3 - 1.0
    assert [row.text for row in first] == ["the cat", "cat the"]
    assert first[0].log_prob == pytest.approx(log10 * LN10)
    assert first[0].total == pytest.approx(-1.5 + 0.5 * log10 * LN10 + 0.25 * 2)
    assert (first[0].index, first[0].num_words, first[0].num_unknown) == (1, 2, 0)
    assert empty == []
    assert last[0].total == pytest.approx(-2.0 + 0.5 * (-0.2 - 0.05 - 0.4 - 1.0) * LN10 + 0.25)
    zero = rescore_nbest(lists, lm, alpha=0.0)
    assert [row.index for row in zero[0]] == [0, 1]


def test_token_ids_are_the_words(lm: NGramLM) -> None:
    words = lm.words
    assert words is not None
    texts = ["the cat sat", "sat the", ""]
    ids = [[words.index(word) for word in text.split()] for text in texts]
    by_words = rescore_nbest([[(text, 0.0) for text in texts]], lm, 1.0)
    plain = NGramLM(lm._core)
    by_ids = rescore_nbest([[(one, 0.0) for one in ids]], plain, 1.0)
    assert [row.total for row in by_words[0]] == [row.total for row in by_ids[0]]
    for one, row in zip(ids, sorted(by_ids[0], key=lambda row: row.index), strict=True):
        assert row.log_prob == pytest.approx(lm.score(one, eos=True).sum())


def test_threads_and_order_of_equal_totals(rng: np.random.Generator, tmp_path: Path) -> None:
    words = random_arpa(rng, tmp_path / "lm.arpa", 3, 40)
    lm = read_word_lm(tmp_path / "lm.arpa")
    lists = [
        [
            (" ".join(rng.choice(words, rng.integers(1, 9))), float(s))
            for s in rng.integers(-3, 0, 20)
        ]
        for _ in range(50)
    ]
    one = rescore_nbest(lists, lm, 0.3, 0.1, threads=1)
    assert rescore_nbest(lists, lm, 0.3, 0.1, threads=2) == one
    same = rescore_nbest([[("w1", 0.0)] * 4], lm, 1.0)[0]
    assert [row.index for row in same] == [0, 1, 2, 3]


def test_normalized_for_the_lm_alone(lm: NGramLM) -> None:
    form = text_normalizer(lowercase=True)
    row = rescore_nbest([[("The CAT", 0.0)]], lm, 1.0, normalize=form)[0][0]
    assert row.text == "The CAT"
    assert row.num_unknown == 0


@pytest.mark.parametrize(
    ("lists", "error", "message"),
    [
        ([[("a", math.nan)]], ValueError, "hypothesis 0 of utterance 0 has the score nan"),
        ([[("a", 0.0), ("b", math.inf)]], ValueError, "hypothesis 1 of utterance 0"),
        ([[("a", 10**400)]], TypeError, "hypothesis 0 of utterance 0"),
        ([[("a",)]], TypeError, "expected a list of pairs"),
        ([("a", 0.0)], TypeError, "expected a list of pairs"),
        ([[([-1], 0.0)]], ValueError, "-1"),
    ],
)
def test_bad_hypotheses(lm: NGramLM, lists: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rescore_nbest(lists, lm, 1.0)


def test_an_lm_without_words() -> None:
    lm = NGramLM.train([[0, 1]], 2, vocab_size=2, smoothing="witten_bell")
    with pytest.raises(ValueError, match="token ids without words"):
        rescore_nbest([[("a", 0.0)]], lm, 1.0)
    with pytest.raises(TypeError, match="expected an NGramLM"):
        rescore_nbest([[("a", 0.0)]], "small.arpa", 1.0)


def edit_distance(a: list[str], b: list[str]) -> int:
    row = list(range(len(b) + 1))
    for i, word in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def test_word_errors_are_edit_distances(rng: np.random.Generator) -> None:
    pytest.importorskip("jiwer")
    texts = [" ".join(rng.choice(list("abcd"), rng.integers(0, 9))) for _ in range(200)]
    others = [" ".join(rng.choice(list("abcd"), rng.integers(0, 9))) for _ in range(200)]
    expected = [edit_distance(a.split(), b.split()) for a, b in zip(texts, others, strict=True)]
    assert count_errors(texts, others).tolist() == expected
    spaced = [text.replace(" ", "\t") for text in texts]
    assert count_errors(spaced, others).tolist() == expected


def noisy_lists(
    rng: np.random.Generator, words: list[str], lm: NGramLM, count: int
) -> tuple[list[list[Hypothesis]], list[str]]:
    """Lists whose references the LM likes, and whose scores know little."""
    lists, references = [], []
    for _ in range(count):
        texts = [" ".join(rng.choice(words, rng.integers(3, 8))) for _ in range(8)]
        likely = max(
            rescore_nbest([[(t, 0.0) for t in texts]], lm, 1.0, 2.0)[0], key=lambda r: r.total
        )
        references.append(str(likely.text))
        lists.append([Hypothesis(text, float(rng.normal(0, 2))) for text in texts])
    return lists, references


def test_tuning_finds_weights_that_help(rng: np.random.Generator, tmp_path: Path) -> None:
    pytest.importorskip("jiwer")
    words = random_arpa(rng, tmp_path / "lm.arpa", 2, 30)
    lm = read_word_lm(tmp_path / "lm.arpa")
    lists, references = noisy_lists(rng, words, lm, 80)
    found = tune_weights(lists, references, lm)
    assert found.alpha > 0
    assert found.wer < found.first_pass / 2
    assert found.oracle <= found.wer <= found.held_out
    assert found.held_out < found.first_pass
    assert found.gain_interval[0] > 0
    for low, high, rate in (
        (*found.wer_interval, found.wer),
        (*found.first_pass_interval, found.first_pass),
    ):
        assert low <= rate <= high
    best = [rows[0].text for rows in rescore_nbest(lists, lm, found.alpha, found.beta)]
    errors = sum(
        edit_distance(r.split(), str(b).split()) for r, b in zip(references, best, strict=True)
    )
    assert errors / found.reference_words == pytest.approx(found.wer)
    assert tune_weights(lists, references, lm) == found  # no randomness
    with pytest.raises(ValueError, match="1 references for 80 utterances"):
        tune_weights(lists, references[:1], lm)
    with pytest.raises(ValueError, match="utterance 0 has no hypotheses"):
        tune_weights([[], *lists[1:]], references, lm)


def test_held_out_rates_have_the_weights_of_the_other_half(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    pytest.importorskip("jiwer")
    words = random_arpa(rng, tmp_path / "lm.arpa", 2, 30)
    lm = read_word_lm(tmp_path / "lm.arpa")
    differ = 0
    for _ in range(12):
        lists, references = noisy_lists(rng, words, lm, 8)
        errors = [0, 0]  # with the weights of the other half, and with their own
        for fold, chosen, own in ((0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 1, 1)):
            weights = tune_weights(lists[chosen::2], references[chosen::2], lm)
            rows = rescore_nbest(lists[fold::2], lm, weights.alpha, weights.beta)
            errors[own] += sum(
                edit_distance(r.split(), str(row[0].text).split())
                for r, row in zip(references[fold::2], rows, strict=True)
            )
        found = tune_weights(lists, references, lm)
        assert found.held_out == pytest.approx(errors[0] / found.reference_words)
        differ += errors[0] != errors[1]
    assert differ > 0


def write_lists(path: Path, lists: list[list[Hypothesis]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for u, one in enumerate(lists):
            rows = [{"text": h.text, "score": h.score, "rank": i} for i, h in enumerate(one)]
            file.write(json.dumps({"id": f"u{u}", "hypotheses": rows, "speaker": "é"}) + "\n")


def test_command_on_json_lines(
    rng: np.random.Generator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jiwer")
    words = random_arpa(rng, tmp_path / "lm.arpa", 2, 30)
    lm = read_word_lm(tmp_path / "lm.arpa")
    lists, references = noisy_lists(rng, words, lm, 40)
    nbest, refs, out = tmp_path / "nbest.jsonl", tmp_path / "refs.txt", tmp_path / "out.jsonl"
    write_lists(nbest, lists)
    refs.write_text("".join(f"u{u} {text}\n" for u, text in enumerate(references)))
    arguments = ["rescore", str(nbest), "--lm", str(tmp_path / "lm.arpa")]
    assert main([*arguments, "--alpha", "0.4", "--beta", "0.1", "-o", str(out)]) == 0
    expected = rescore_nbest(lists, lm, 0.4, 0.1)
    for line, rows in zip(out.read_text(encoding="utf-8").splitlines(), expected, strict=True):
        record = json.loads(line)
        assert record["speaker"] == "é"
        assert [row["rank"] for row in record["hypotheses"]] == [row.index for row in rows]
    capsys.readouterr()
    assert main([*arguments, "--tune", str(refs), "--json", str(tmp_path / "tuned.json")]) == 0
    captured = capsys.readouterr()
    found = json.loads((tmp_path / "tuned.json").read_text())
    assert captured.out == ""
    assert f"alpha {found['alpha']:.4g}, beta" in captured.err
    assert found["held_out"] < found["first_pass"]
    assert main(arguments) == 2
    assert "expected --alpha, or --tune" in capsys.readouterr().err
    assert main([*arguments, "--alpha", "1", "--tune", str(refs)]) == 2
    refs.write_text("v1 a b\n")
    assert main([*arguments, "--tune", str(refs)]) == 2
    assert "no utterance of the lists is in it; its first is 'v1'" in capsys.readouterr().err


def test_command_on_kaldi(lm: NGramLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.txt").write_text("a-b-1 cat the\na-b-2 the cat\nc-1\nc-2 sat\n")
    (tmp_path / "ac.txt").write_text("a-b-1 10\na-b-2 12\nc-1 1\nc-2 9\n")
    (tmp_path / "graph.txt").write_text("a-b-1 1.5\na-b-2 1\nc-1 0\nc-2 0\n")
    lists = read_nbest(
        tmp_path / "words.txt", graph_costs=tmp_path / "graph.txt",
        acoustic_costs=tmp_path / "ac.txt", acoustic_scale=0.5,
    )  # fmt: skip
    assert [one.utterance for one in lists] == ["a-b", "c"]
    assert lists[0].hypotheses == [("cat the", -1.5 - 5.0), ("the cat", -1.0 - 6.0)]
    assert lists[1].hypotheses[0] == ("", -0.5)
    arguments = ["rescore", str(tmp_path / "words.txt"), "--lm", str(tmp_path / "small.arpa")]
    arguments += ["--alpha", "1", "--acoustic-costs", str(tmp_path / "ac.txt")]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["a-b-2 the cat", "a-b-1 cat the"]
    for file, text in (("words.txt", "a-b-1 x\na-b-1 y\n"), ("ac.txt", "a-b-1 1\na-b-1 2\n")):
        before = (tmp_path / file).read_text()
        (tmp_path / file).write_text(text)
        assert main(arguments) == 2
        assert f"{file}, line 2: a-b-1 occurs twice" in capsys.readouterr().err
        (tmp_path / file).write_text(before)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "u", "hypotheses": [{"text": "a"}]}\n', "line 1: hypothesis 0 has no text"),
        ('{"id": "u", "hypotheses": [{"text": 1, "score": 2}]}', "line 1: hypothesis 0"),
        ('{"id": "u", "hypotheses": [{"text": "a", "score": NaN}]}', "line 1: hypothesis 0"),
        ('{"id": "u", "hypotheses": []}\n{"id": "v"}\n', "line 2: no list of hypotheses"),
        ('{"id": "u", "hypotheses": [\n', "line 1: not JSON"),
        ("[1]\n", "line 1: no list of hypotheses"),
        ('{"id": "u", "hypotheses": [{"text": "a", "score": 1%s}]}' % ("0" * 400), "line 1: hyp"),
        ('{"id": "u", "hypotheses": [{"text": [2147483648], "score": 1}]}', "line 1: hypothesis 0"),
        ('{"id": "u", "hypotheses": [{"text": "\\ud800", "score": 1}]}', "unpaired surrogate"),
        ("", "the file is empty; expected n-best lists"),
        ("u-1 a\n", "which has no scores; give --acoustic-costs"),
    ],
)
def test_damaged_lists(
    text: str, message: str, lm: NGramLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "nbest.jsonl"
    path.write_text(text)
    out = tmp_path / "out.jsonl"
    command = ["rescore", str(path), "--lm", str(tmp_path / "small.arpa"), "--alpha", "1"]
    assert main([*command, "-o", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(path) in error
    assert not out.exists()


def test_token_ids_of_an_lm_without_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = NGramLM.train([[0, 1]] * 3, 2, vocab_size=3, smoothing="witten_bell")
    lm.save(tmp_path / "ids.lm")
    texts = [{"text": [1, 0], "score": -1}, {"text": [0, 1], "score": -1}]
    (tmp_path / "nbest.jsonl").write_text(json.dumps({"id": "u", "hypotheses": texts}))
    command = ["rescore", str(tmp_path / "nbest.jsonl"), "--lm", str(tmp_path / "ids.lm")]
    assert main([*command, "--alpha", "1"]) == 0
    rows = json.loads(capsys.readouterr().out)["hypotheses"]
    assert [one["text"] for one in rows] == [[0, 1], [1, 0]]
    (tmp_path / "refs").write_text("u a b\n")
    assert main([*command, "--tune", str(tmp_path / "refs")]) == 2
    assert "--tune with texts of token ids" in capsys.readouterr().err


def test_references(tmp_path: Path) -> None:
    path = tmp_path / "refs"
    path.write_text('u1 a b\n\nu2\n{"id": 3, "text": "c"}\n')
    assert read_references(path) == {"u1": "a b", "u2": "", "3": "c"}
    path.write_text("u1 a\nu1 b\n")
    with pytest.raises(ValueError, match="line 2: the utterance 'u1' occurs twice"):
        read_references(path)
