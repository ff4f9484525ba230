"""`lattice-bpd ngram count | merge-counts | train`: options, output and progress."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from lattice_bpd import NGramLM
from lattice_bpd.cli import build_parser, progress
from lattice_bpd.train import CountingProgress, read_counts_info

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


def test_count_resumes_and_takes_token_ids(capsys):
    np.save("0.npy", np.array([1, 2, 0, 3]))
    np.save("1.npy", np.array([4, 0]))
    ids = ["--vocab-size", 5, "--eos-id", 0, "--resume", "--checkpoint", 0, "-o", "ids.counts"]
    run("count", "0.npy", *ids)
    run("count", "0.npy", "1.npy", *ids)
    info = read_counts_info("ids.counts")
    assert (info.num_sequences, info.num_tokens) == (3, 4)
    assert info.sources == ("0.npy", "1.npy")
    assert "of 4 tokens in 3 sequences" in capsys.readouterr().out


def test_warnings_of_the_estimate_are_notes(capsys):
    run("train", "a.txt", "--tokenizer", "words.txt", "--sequence", "file", "-o", "a.lm")
    assert "lattice-bpd: note: Katz: order 2" in capsys.readouterr().err
    assert NGramLM.load("a.lm").order == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "a.txt", "a.counts"], r"a\.txt: not a counts file, while a\.counts is one"),
        (["count", "a.txt"], "text needs a tokenizer"),
    ],
)
def test_bad_options(arguments, message):
    run("count", "a.txt", "--tokenizer", "words.txt", "-o", "a.counts")
    with pytest.raises(ValueError, match=message):
        run(*arguments, "-o", "out")


def test_progress_has_rate_time_left_and_memory(capsys, monkeypatch):
    counted = CountingProgress(2_000_000, 10, 25, 100, 3, 40_000_000)
    line = progress.describe(counted, 2.0)
    assert line.startswith("2,000,000 tokens, 1,000,000/s, 6 s left, ")
    assert line.endswith(" GB of memory, 3 runs of 0.04 GB on disk")
    now = time.monotonic()
    with progress.CountingWatcher() as watcher:
        watcher(counted)
        assert capsys.readouterr().err == ""  # too early
        monkeypatch.setattr(time, "monotonic", lambda: now + 20)
        watcher(counted)
    assert "2,000,000 tokens, " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train", "count"])
def test_outputs_that_cannot_be_written_are_refused_before_counting(command, tmp_path, monkeypatch):
    monkeypatch.setattr("lattice_bpd.cli.ngram_corpus.make_corpus", None)  # never called

    def check(output, error, message):
        with pytest.raises(error, match=message):
            run(command, "a.txt", "--tokenizer", "words.txt", "-o", output)

    check("missing/x/e.lm", FileNotFoundError, "there is no folder .*missing/x to write it in")
    check("a.txt/e.lm", NotADirectoryError, "a.txt is a file, .*expected a folder")
    check(tmp_path, IsADirectoryError, "is a folder; expected a file to write")
    os.mkfifo("pipe")
    check("pipe", OSError, "pipe is not a regular file")
    Path("link").symlink_to("missing/e.lm")
    check("link", FileNotFoundError, "there is no folder .*missing to write it in")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    check("e.lm", PermissionError, "is not writable; change its permissions")
    assert not (tmp_path / "e.lm").exists()


def test_an_lm_is_written_to_where_a_symbolic_link_leads(tmp_path):
    (tmp_path / "lms").mkdir()
    for name in ("e.lm", "e.arpa.gz", "e.fst"):
        Path(name).symlink_to(f"lms/{name}")
        run("train", "a.txt", "--tokenizer", "words.txt", "--order", 2, "--smoothing",
            "witten_bell", "-o", name)  # fmt: skip
        assert (tmp_path / name).is_symlink()
    assert NGramLM.load("e.lm").order == 2
    names = sorted(path.name for path in (tmp_path / "lms").iterdir())
    assert names == ["e.arpa.gz", "e.fst", "e.lm"]
