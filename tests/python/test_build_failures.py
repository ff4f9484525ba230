"""What ends `lattice-bpd build` early: one clear line, nothing generated is lost, it continues."""

from __future__ import annotations

import json
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import transformers

from build_runs import HEADS, build, make_folder, stored, write_prompts
from lattice_bpd.build import build as build_module
from lattice_bpd.cli import main
from lattice_bpd.cli.progress import ConsoleWatcher


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path)


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("responses", signal.SIGTERM), ("heads", signal.SIGTERM), ("costs", signal.SIGINT),
        ("choice", signal.SIGINT), ("live", signal.SIGINT),
    ],
)  # fmt: skip
def test_an_interrupt_at_any_stage(
    stage: str, number: int, folder: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    begin, advance, stages = ConsoleWatcher.begin, ConsoleWatcher.advance, [""]

    def note(self: ConsoleWatcher, name: str, total: int | None = None) -> None:
        stages.append(name)
        begin(self, name, total)

    def interrupt(self: ConsoleWatcher, *args: Any, **options: Any) -> None:
        advance(self, *args, **options)
        if stages[-1] == stage and self._done == min(3, self._total):
            signal.raise_signal(number)

    with monkeypatch.context() as patched:
        patched.setattr(ConsoleWatcher, "begin", note)
        patched.setattr(ConsoleWatcher, "advance", interrupt)
        assert build(folder, *HEADS) == 130
    captured = capsys.readouterr()
    assert captured.err == "lattice-bpd: interrupted\n"
    before = stored(folder)
    kept = f"out keeps {len(before)} responses; the same command continues\n"
    assert captured.out.endswith(kept)
    assert len(before) == (3 if stage == "responses" else 30)
    kept = folder / "out" / "build_files" / "heads.checkpoint"
    assert kept.exists() == (stage in ("heads", "costs", "choice", "live"))
    assert build(folder, *HEADS) == 0
    assert stored(folder)[: len(before)] == before
    assert len(stored(folder)) == 30
    assert (folder / "out" / "heads.safetensors").exists()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can be longer than `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("size", "file", "options"),
    [
        (2000, "responses.jsonl", ()),
        (6000, "states.bin", HEADS),
        (30_000, "heads", HEADS),
    ],
)
def test_a_full_disk(
    size: int, file: str, options: tuple[str, ...], folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with full_disk(size):
        assert build(folder, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert file in line
    before = stored(folder)
    assert 0 < len(before) <= 30
    assert (len(before) == 30) == (file == "heads")
    assert not (folder / "out" / "drafter.json").exists()
    assert build(folder, *options) == 0
    assert stored(folder)[: len(before)] == before


def test_a_model_that_refuses_drafting(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise TypeError("generate: this model is not supported")

    with monkeypatch.context() as patched:
        patched.setattr(build_module, "generate", refuse)
        assert build(folder) == 2
    assert capsys.readouterr().err == "lattice-bpd: error: generate: this model is not supported\n"
    assert not (folder / "out" / "build_files" / "responses.jsonl").exists()  # before any work
    config = transformers.T5Config(vocab_size=64, d_model=16, d_ff=16, num_layers=1, num_heads=2,
                                   d_kv=8, decoder_start_token_id=0)  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder / "model")
    assert build(folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is an encoder-decoder; expected a causal LM" in line


@pytest.mark.parametrize("kind", ["mamba", "lfm2", "mistral"])
def test_models_whose_cache_is_of_another_kind(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(make_folder(tmp_path, kind)) == 0
    assert "5 of 5 texts equal to its greedy ones" in capsys.readouterr().out


def test_three_prompts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_prompts(folder, ["Hi w10", "Hi w11", "Hi w12"])
    assert build(folder) == 0
    out = capsys.readouterr().out
    assert "too few to measure gains" in out
    assert re.search(r"\| n-gram LM of own responses \| [+-]\d+ % \| left out \|", out)
    assert not re.search(r"% \(", out)  # no interval
    assert "| left out |" in out
    assert json.loads((folder / "out" / "drafter.json").read_text())["sources"] == [
        "text", "target"
    ]  # fmt: skip
    write_prompts(folder, ["Hi", "Who?"])
    assert build(folder) == 2
    assert "found 2 prompts; expected 3 or more" in capsys.readouterr().err


def test_prompts_longer_than_the_positions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = " ".join(["w20"] * 300)  # of 96 positions
    write_prompts(folder, [f"Hi w{n}" for n in range(10, 40)] + [longer] * 3)
    assert build(folder) == 0
    assert "3 prompts are left out: 3 longer than the model's positions" in capsys.readouterr().out
    write_prompts(folder, [longer] * 4)
    assert build(folder) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "all 4 prompts fill the 96 positions of the target; expected shorter ones" in line


def test_costs_of_another_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = folder / "costs.json"
    gains = []
    for times in ({"0": 20.0, "64": 20.0}, {"0": 1.0, "1": 90.0}):
        costs.write_text(json.dumps(times))
        assert build(folder, "--costs", str(costs)) == 0
        out = capsys.readouterr().out
        assert "time of calls" not in out  # not measured
        assert "gains are those of single paths, with the times of" in out
        arguments = ["--drafter", str(folder / "out"), "--prompt", "Hi w33"]
        assert main(["generate", str(folder / "model"), *arguments]) == 0
        gains.append(re.findall(r"all used \| ([+-]\d+) % \(([+-]\d+) to ([+-]\d+)\)", out)[0])
    assert int(gains[0][0]) > 0  # drafts cost nothing
    assert gains[1] == ("+0", "+0", "+0")  # nothing is drafted
    costs.write_text("{}")
    responses = folder / "out" / "build_files" / "responses.jsonl"
    responses.unlink()
    assert build(folder, "--costs", str(costs)) == 2
    assert "costs.json: not a cost curve" in capsys.readouterr().err
    assert not responses.exists()  # before any work


def test_a_folder_of_another_model_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(folder) == 0
    card = folder / "out" / "README.md"
    card.write_text(re.sub(r"fingerprint \w+", "fingerprint 0123", card.read_text()))
    before = {path.name: path.read_bytes() for path in (folder / "out").glob("*.*")}
    assert build(folder) == 2
    assert "a drafter of another model (fingerprint 0123)" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in (folder / "out").glob("*.*")}
    (folder / "out" / "config.json").write_text("{}")
    assert build(folder) == 2
    assert "is the folder of a model" in capsys.readouterr().err


def test_a_second_build_in_a_folder_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would add to the same responses."""
    advance, codes = ConsoleWatcher.advance, list[int]()

    def build_again(self: ConsoleWatcher, *args: Any, **options: Any) -> None:
        monkeypatch.setattr(ConsoleWatcher, "advance", advance)
        codes.append(build(folder))
        advance(self, *args, **options)

    monkeypatch.setattr(ConsoleWatcher, "advance", build_again)
    assert build(folder) == 0
    assert codes == [2]
    assert re.search(r"error: \S*out: another process works here", capsys.readouterr().err)
