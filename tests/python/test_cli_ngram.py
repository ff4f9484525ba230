"""`lattice-bpd ngram`: counts and their progress, training, and the commands on LM files."""

import errno
import io
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.cli import build_parser, progress
from lattice_bpd.train import read_counts_info

TEXT = "the cat sat\nthe cat ran\n\nthe dog sat\n"


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("the\ncat\nsat\nran\ndog\n")
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("the dog ran")


def run(*words):
    """The command as `lattice-bpd ngram` runs it."""
    args = build_parser().parse_args(["ngram", *map(str, words)])
    args.run(args)


def test_count_merge_and_train(tmp_path, capsys):
    words = ["--tokenizer", "words.txt", "--boundaries", "line"]
    run("count", "a.txt", *words, "--order", 2, "-o", "a.counts", "--memory", "1M")
    run("count", "b.txt", *words, "--order", 3, "-o", "b.counts", "--threads", 1)
    assert "a.counts: order 2, vocabulary 5, " in capsys.readouterr().out
    run("merge-counts", "a.counts", "b.counts", "-o", "all.counts")
    assert read_counts_info("all.counts").sources == ("a.txt", "b.txt")
    options = ["--smoothing", "witten_bell", "--unseen", "uniform", "--min-counts", "1,2"]
    run("train", "all.counts", *options, "-o", "counted.lm")
    run("train", "a.txt", "b.txt", "--order", 2, *words, *options, "-o", "direct.lm")
    sequences = [[0, 1, 2], [0, 1, 3], [0, 4, 2], [0, 4, 3]]
    NGramLM.train(
        sequences, 2, vocab_size=5, smoothing="witten_bell", unseen="uniform", min_counts=[1, 2]
    ).save("expected.lm")
    expected = (tmp_path / "expected.lm").read_bytes()
    assert (tmp_path / "counted.lm").read_bytes() == expected
    assert (tmp_path / "direct.lm").read_bytes() == expected
    assert "direct.lm: order 2, vocabulary 5, " in capsys.readouterr().out


def test_evaluation_tokenizes_as_training_does(capsys):
    """Without the special tokens that a tokenizer adds to texts."""
    library = pytest.importorskip("tokenizers")
    ids = {word: number for number, word in enumerate(Path("words.txt").read_text().split())}
    tokenizer = library.Tokenizer(library.models.WordLevel(ids, unk_token="the"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="the $A", special_tokens=[("the", 0)]
    )
    tokenizer.save("tokenizer.json")
    options = ["--boundaries", "line", "--smoothing", "absolute", "--unseen", "uniform"]
    scores = []
    for name in ("words.txt", "tokenizer.json"):
        run("train", "a.txt", "--order", 2, "--tokenizer", name, *options, "-o", "a.lm")
        capsys.readouterr()
        run("evaluate", "a.lm", "--text", "b.txt", "--tokenizer", name, "--json")
        scores.append(json.loads(capsys.readouterr().out))
    assert scores[0] == scores[1]
    assert scores[0]["tokens"] == 4  # three words and </s>


def test_progress_without_a_terminal(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr("lattice_bpd.train.corpus._STEP", 20)
    monkeypatch.setattr(progress, "LINE_INTERVAL", 1e-4)
    run("train", "a.txt", "--words", "--order", 2, "--smoothing", "absolute", "-o", "a.lm")
    lines = capsys.readouterr().err.split("\n")
    assert "text (MiB) ..." in lines
    shown = re.compile(r"  1 of 1, [\d.]+/s, 0 s left, \d\.\d GB of memory  9 tokens").fullmatch
    assert any(map(shown, lines))
    assert any(line.startswith("text (MiB): 0.") for line in lines)


def test_a_long_step_shows_its_time(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_INTERVAL", 1e-4)
    shown = ""
    with progress.timed_step("wait"):
        while shown.count("\n") < 2:
            shown += capsys.readouterr().err
    shown += capsys.readouterr().err
    line = r"\d+\.\d s, \d\.\d GB of memory\n"
    assert re.fullmatch(rf"wait \.\.\. ({line}){{3,}}", shown)


def test_progress_on_a_terminal():
    rich = pytest.importorskip("rich.console")
    file = io.StringIO()
    watcher = progress.ConsoleWatcher(
        rich.Console(file=file, force_terminal=True, width=110), {"a": "the title"}
    )
    watcher.begin("a")
    watcher.advance()
    watcher.advance(4, "a note")
    watcher.end()
    shown = r"the title .* 2/4 .*[\d.]+/s, 0 s left, \d\.\d GB of memory  a note"
    assert re.search(shown, re.sub(r"\x1b\[[\d;?]*\w", "", file.getvalue()))


@pytest.mark.parametrize("command", ["train", "count"])
def test_outputs_that_cannot_be_written_are_refused_before_counting(command, tmp_path, monkeypatch):
    monkeypatch.setattr("lattice_bpd.cli.ngram_corpus.make_corpus", None)  # never called

    def check(output, error, message):
        with pytest.raises(error, match=message):
            run(command, "a.txt", "--tokenizer", "words.txt", "-o", output)

    check("missing/x/e.lm", FileNotFoundError, "into .*missing/x .No such file.*create that")
    check("a.txt/e.lm", NotADirectoryError, "into .*a.txt .Not a directory.*another output")
    check(tmp_path, IsADirectoryError, "is a folder; expected a file to write")
    os.mkfifo("pipe")
    check("pipe", OSError, "pipe is not a regular file")
    Path("link").symlink_to("missing/e.lm")
    check("link", FileNotFoundError, "cannot write into .*missing .No such file")

    def refuse(**_):  # root may write anywhere
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    check("e.lm", PermissionError, "Permission denied.*change its permissions")
    assert not (tmp_path / "e.lm").exists()


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
    run("prune", lm_files[0], "--prune-to", "0.5k", "--quantize", "8", "-o", out)
    small = NGramLM.load(out)
    total, counted = sum(small.num_ngrams), small.num_prunable
    assert counted <= 500
    assert counted < total  # <s>, which `ngram info` counts too
    assert f"{out}: {total:,} of " in capsys.readouterr().out
    NGramLM.load(lm_files[0]).prune(prune_to=500).quantize(8).save(tmp_path / "expected.lm")
    assert out.read_bytes() == (tmp_path / "expected.lm").read_bytes()
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
    run("evaluate", mixed, "--text", text)
    titles = capsys.readouterr().out.splitlines()[0].split()
    assert titles[-4:] == ["unknown", "3-grams", "2-grams", "1-grams"]
    run("info", mixed, "--json")
    info = json.loads(capsys.readouterr().out)
    assert info["num_ngrams"] == sum(NGramLM.load(mixed).num_ngrams)
    assert len(info["levels"]) == 3
    text.write_text("1 2\nword\n")
    with pytest.raises(ValueError, match="line 2 is 'word'; expected decimal token ids"):
        run("evaluate", mixed, "--text", text)
