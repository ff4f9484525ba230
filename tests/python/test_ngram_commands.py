"""Perplexity against another toolkit's, and the commands on LM files."""

import argparse
import json

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.cli import build_parser, main
from lattice_bpd.cli.options import parse_size
from lattice_bpd.lm import compare_lines, write_lm


def run(*words):
    """The command as `lattice-bpd ngram` runs it."""
    args = build_parser().parse_args(["ngram", *map(str, words)])
    args.run(args)


@pytest.fixture(scope="module")
def corpora():
    rng = np.random.default_rng(0)
    return [
        [rng.zipf(a, size=12).clip(max=49).astype(np.int32) for _ in range(400)]
        for a in (1.3, 1.8, 1.5)
    ]


@pytest.fixture
def lm_files(corpora, tmp_path):
    paths = [tmp_path / "one.lm", tmp_path / "two.lm"]
    for corpus, path in zip(corpora, paths, strict=False):
        NGramLM.train(corpus, 3, vocab_size=50, smoothing="absolute").save(path)
    return paths


def test_lms_side_by_side(corpora):
    lms = {"one": NGramLM.train(corpora[0], 2, vocab_size=50, smoothing="absolute")}
    lms["small"] = lms["one"].prune(theta=1e-3)
    scores = {name: lm.evaluate(corpora[2]) for name, lm in lms.items()}
    lines = list(compare_lines(scores))
    assert lines[0].split() == ["LM", "perplexity", "events", "unknown", "2-grams", "1-grams"]
    assert f"{scores['small'].perplexity:.3f}" in lines[2]


def test_weights_by_em_beat_their_neighbors(corpora):
    lms = [
        NGramLM.train(c, 3, vocab_size=50, smoothing="absolute", unseen="uniform")
        for c in corpora[:2]
    ]
    weights = NGramLM.tune_weights(lms, corpora[2])
    assert sum(weights) == pytest.approx(1.0)

    def mixture(weight):
        parts = [np.concatenate([np.exp(lm.score(s, eos=True)) for s in corpora[2]]) for lm in lms]
        return np.log(weight * parts[0] + (1 - weight) * parts[1]).sum()

    best = mixture(weights[0])
    assert best >= max(mixture(weights[0] + step) for step in (-0.02, 0.02))
    mixed = NGramLM.interpolate(lms, heldout=corpora[2])
    assert mixed.evaluate(corpora[2]).perplexity < min(
        lm.evaluate(corpora[2]).perplexity for lm in lms
    )
    with pytest.raises(ValueError, match="either weights or heldout"):
        NGramLM.interpolate(lms)


def test_prune_command(lm_files, tmp_path, capsys):
    out = tmp_path / "small.lm"
    run("prune", lm_files[0], "--prune-to", "0.5k", "--quantise", "8", "-o", out)
    small = NGramLM.load(out)
    total, counted = sum(small.num_ngrams), small.num_prunable
    assert counted <= 500
    assert counted < total  # <s>, which `ngram info` counts too
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{out}: {total:,} of ")
    assert second == (
        f"--prune-to 500: {counted:,} n-grams, and {total - counted:,} symbols without a "
        "probability of their own"
    )
    ids = tmp_path / "ids"
    ids.write_text("1 2 3")
    run("prune", lm_files[0], "--keep-ids", ids, "-o", out)
    assert NGramLM.load(out).log_prob(4, bos=False) == pytest.approx(-1000.0)
    with pytest.raises(ValueError, match="nothing to do"):
        run("prune", lm_files[0], "-o", out)


def test_merge_evaluate_convert_and_info_commands(lm_files, corpora, tmp_path, capsys):
    text = tmp_path / "heldout.ids"
    text.write_text("".join(" ".join(map(str, s)) + "\n" for s in corpora[2]))
    mixed = tmp_path / "mixed.lm"
    run("merge", *lm_files, "--heldout", text, "-o", mixed)
    run("convert", mixed, tmp_path / "mixed.arpa.gz")
    capsys.readouterr()
    run("evaluate", *lm_files, mixed, tmp_path / "mixed.arpa.gz", "--text", text, "--json")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows[2]["perplexity"] == pytest.approx(rows[3]["perplexity"])
    run("info", mixed, "--json")
    info = json.loads(capsys.readouterr().out)
    assert info["num_ngrams"] == sum(NGramLM.load(mixed).num_ngrams)
    assert len(info["levels"]) == 3
    text.write_text("1 2\nword\n")
    with pytest.raises(ValueError, match="line 2 is 'word'; expected decimal token ids"):
        run("evaluate", mixed, "--text", text)


def test_sizes():
    assert [parse_size(text) for text in ("100M", "2.5k", "7")] == [100_000_000, 2500, 7]
    with pytest.raises(argparse.ArgumentTypeError, match="'many' is not a size"):
        parse_size("many")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modle", "m"], "unrecognized arguments: --modle m; did you mean --model"),
        (["--nonsense"], "unrecognized arguments: --nonsense\n"),
    ],
)
def test_unknown_options_are_errors_of_the_command(capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        main(["ngram", "train", "corpus.txt", "-o", "lm", *options])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith("usage: lattice-bpd ngram train ")
    assert message in printed


@pytest.mark.parametrize("name", ["words.arpa", "corpus.fst"])
def test_files_that_need_a_vocabulary_are_converted_first(name, lm_files, tmp_path, capsys):
    words = [f"w{token_id}" for token_id in range(50)]
    write_lm(NGramLM.load(lm_files[0]), tmp_path / name, vocab=words if "arpa" in name else None)
    np.savetxt(tmp_path / "text.ids", [[1, 2, 3]], fmt="%d")
    evaluate = ["ngram", "evaluate", "--text", str(tmp_path / "text.ids"), "--json"]
    assert main([*evaluate, str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert f"convert it first: lattice-bpd ngram convert {tmp_path / name} NEW.lm --vocab" in error
    (tmp_path / "words.txt").write_text("\n".join(words))
    convert = ["convert", tmp_path / name, tmp_path / "new.lm", "--vocab", tmp_path / "words.txt"]
    run(*convert)
    capsys.readouterr()
    assert main([*evaluate, str(tmp_path / "new.lm"), str(lm_files[0])]) == 0
    new, old = map(json.loads, capsys.readouterr().out.splitlines())
    assert new["perplexity"] == pytest.approx(old["perplexity"], rel=1e-5)
