"""A folder of `lattice-bpd build` as others read it, and what drafter.json and the card say."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build_runs import HEADS, build, make_folder, write_prompts
from lattice_bpd import FormatError
from lattice_bpd.build import build as build_module
from lattice_bpd.cli import main
from lattice_bpd.decode import load_drafter
from lattice_bpd.decode.drafter_file import read_drafter_file
from lattice_bpd.draft.gates import Gates
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.options import DrafterOptions
from target_models import VOCAB


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a drafter needs, moved to another place, with an LM and heads."""
    source = make_folder(tmp_path_factory.mktemp("build"))
    write_prompts(source, [f"Hi w{n}" for n in range(20, 60)])
    with pytest.MonkeyPatch.context() as patched:  # calls of any size take the same time
        flat = dict.fromkeys(range(65), 20.0)
        patched.setattr(build_module, "measure_costs", lambda *_, **__: flat)
        assert build(source, "--max-new-tokens", "30", "--keep-heads", "--epochs", "2") == 0
    folder = tmp_path_factory.mktemp("elsewhere")
    for path in (source / "out").iterdir():
        if path.name in ("drafter.json", "README.md", "ngram.lm") or path.stem == "heads":
            shutil.copy(path, folder)
    shutil.rmtree(source / "out")
    return folder


def test_its_files_have_the_mode_of_new_files(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new").touch()
    modes = {path.name: path.stat().st_mode for path in folder.iterdir()}
    assert modes == dict.fromkeys(modes, (tmp_path / "new").stat().st_mode)
    assert "heads.safetensors" in modes


def test_commands_put_models_on_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(tmp_path)

    def move(_model: torch.nn.Module, device: str) -> None:
        raise OSError(f"moved to {device}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.nn.Module, "to", move)
    generating = main(["generate", str(tmp_path / "model"), "--prompt", "Hi"])
    assert 0 not in (build(tmp_path), generating)
    assert capsys.readouterr().err.count("moved to cuda") == 2


def test_the_vllm_plug_in_reads_it(folder: Path) -> None:
    parts = load_parts(DrafterOptions(directory=str(folder)))
    file = read_drafter_file(folder / "drafter.json")
    assert parts.draft == "mixture"
    assert parts.vocab_size == VOCAB
    assert parts.config.sources == ("heads", "lm", "text", "target")
    assert parts.heads.num_slots == file.num_slots == 5
    assert [lm.order for lm in parts.lms] == [5]
    assert [one.to_dict() for one in parts.gates] == file.gates
    assert [one.sources for one in parts.gates] == [
        ("heads", "lm", "text"), ("heads", "lm", "text", "target"),
    ]  # fmt: skip


def test_a_drafter_takes_the_weights_of_its_sources(folder: Path, tmp_path: Path) -> None:
    without, with_target = Gates.read(read_drafter_file(folder / "drafter.json").gates)
    built: Any = load_drafter(folder)
    assert built.num_predictions == 8
    np.testing.assert_array_equal(built.gates.weights, with_target.weights)
    content = json.loads((folder / "drafter.json").read_text())
    content["sources"].remove("target")
    shutil.copytree(folder, tmp_path / "without")
    (tmp_path / "without" / "drafter.json").write_text(json.dumps(content))
    chosen: Any = load_drafter(tmp_path / "without")
    assert chosen.num_predictions == 0
    np.testing.assert_array_equal(chosen.gates.weights, without.weights)
    for old in (content["gates"][0], [content["gates"][0] | {"weights": [[0.0]]}]):
        text = json.dumps({**content, "gates": old})
        (tmp_path / "without" / "drafter.json").write_text(text)
        with pytest.raises(FormatError, match=r"built again|fit them.*lattice-bpd build"):
            load_drafter(tmp_path / "without")


@pytest.mark.parametrize("change", [{"speed": 3}, {"version": 2}, {"max_nodes": -1}])
def test_other_files_are_refused(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "drafter.json").read_text())
    assert (content["format"], content["version"]) == ("lattice-bpd drafter", 1)
    (tmp_path / "drafter.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(FormatError, match=next(iter(change))):
        load_drafter(tmp_path)
    with pytest.raises(
        FileNotFoundError, match="nope: no such folder or file; expected what build"
    ):
        load_drafter(tmp_path / "nope")


def test_it_can_be_published_as_it_is(tmp_path: Path) -> None:
    """What may be private is ignored, by git too, and no file has a path of this machine."""
    make_folder(tmp_path)
    write_prompts(tmp_path, [f"Hi w{n}" for n in range(20, 50)])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.gitignore").write_text("*.tmp\n")
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"0": 20.0, "64": 20.0}))
    given = tmp_path / "log.jsonl"
    given.write_text(json.dumps({"prompt": "Hi w9", "response": "w8 w7"}) + "\n")
    options = (*HEADS, "--costs", str(costs), "--responses", str(given))
    assert build(tmp_path, *options) == 0
    out = tmp_path / "out"
    private = {path.name for path in (out / "build_files").iterdir()}
    assert private == {"responses.jsonl", "states.bin", "states.bin.jsonl", "heads.checkpoint"}
    subprocess.run(["git", "init", "-q"], cwd=out, check=True)
    subprocess.run(["git", "add", "."], cwd=out, check=True)
    names = subprocess.run(
        ["git", "ls-files"], cwd=out, check=True, capture_output=True, text=True
    ).stdout.split()
    public = {".gitignore", "README.md", "drafter.json", "heads.json", "heads.safetensors"}
    assert public <= set(names) <= {*public, "ngram.lm"}  # where that one pays
    for name in names:
        assert str(tmp_path).encode() not in (out / name).read_bytes()
    card = (out / "README.md").read_text()
    assert card.startswith("# Drafter for model\n")
    assert "times of costs.json" in card
    assert "Responses of log.jsonl" in card


def test_a_folder_of_an_earlier_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files lay beside the drafter, where they would be published."""
    make_folder(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    for name in ("states.bin", "responses.jsonl"):
        (out / name).touch()
    assert build(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "has responses.jsonl, states.bin of an earlier version" in line
    assert line.endswith("remove them")
    assert not (out / ".gitignore").exists()
