"""A folder of `lattice-bpd build` as others read it, and what drafter.json and the card say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from build_runs import build, make_folder, write_prompts
from lattice_bpd import FormatError
from lattice_bpd.build import build as build_module
from lattice_bpd.cli import main
from lattice_bpd.decode import load_drafter
from lattice_bpd.decode.strategies import read_drafter_file
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
    assert parts.config.sources == ("heads", "lm", "text")
    assert parts.heads.num_slots == file.num_slots == 5
    assert [lm.order for lm in parts.lms] == [5]
    assert parts.gates is not None
    assert parts.gates.to_dict() == file.gates


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
