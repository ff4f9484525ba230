"""`lattice-bpd ngram query` prints what KenLM's query prints."""

import io
import json
import math
from pathlib import Path

import pytest

from lattice_bpd.cli import main
from word_models import SMALL


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "small.arpa").write_text(SMALL)
    return str(tmp_path / "small.arpa")


def query(monkeypatch: pytest.MonkeyPatch, text: bytes, arguments: list[str]) -> int:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    return main(["ngram", "query", *arguments])


def test_lines(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert query(monkeypatch, b"the cat dog\n", [model]) == 0
    line, *totals = capsys.readouterr().out.splitlines()
    *words, total = line.split("\t")
    assert [word.rsplit(" ", 1)[0] for word in words] == [
        "the=0 2",
        "cat=1 3",
        "dog=5 1",
        "</s>=4 1",
    ]
    scores = [float(word.rsplit(" ", 1)[1]) for word in words]
    # dog: backoffs of "the cat" and "cat", <unk>; </s>: backoff of <unk>
    assert scores == pytest.approx([-0.2, -0.1, -0.15 - 0.3 - 1.5, -0.05 - 1.0], abs=1e-6)
    assert total == f"Total: {sum(scores):.8g} OOV: 1"
    values = dict(line.split("\t") for line in totals)
    assert float(values["Perplexity including OOVs:"]) == pytest.approx(
        10 ** (-sum(scores) / 4), rel=1e-4
    )
    known = scores[0] + scores[1] + scores[3]
    assert float(values["Perplexity excluding OOVs:"]) == pytest.approx(
        10 ** (-known / 3), rel=1e-4
    )
    assert (values["OOVs:"], values["Tokens:"]) == ("1", "4")


def test_options(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert query(monkeypatch, b"THE\n\nCAT the", [model, "--sentences", "--lowercase"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 + 4
    assert lines[1] == "Total: -1.1 OOV: 0"
    assert query(monkeypatch, b"the\n", [model, "--json", "--no-bos", "--no-eos"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["words"] == [["the", pytest.approx(-0.9, abs=1e-6), 1, False]]
    assert query(monkeypatch, b"", [model, "--summary"]) == 0
    assert math.isnan(float(capsys.readouterr().out.split("\t")[1].split()[0]))
    assert query(monkeypatch, b"the\n\xff\n", [model]) == 2
    assert "<standard input>, line 2" in capsys.readouterr().err
