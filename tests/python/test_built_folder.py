"""A folder of `lattice-bpd build` as others read it, and what drafter.json and the card say."""

from __future__ import annotations

import dataclasses
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build_runs import build, make_folder, write_prompts
from lattice_bpd import DraftConfig, FormatError, NGramLM
from lattice_bpd.build import build as build_module
from lattice_bpd.build.build import _fingerprint
from lattice_bpd.cli import main
from lattice_bpd.decode import CustomGenerate, load_drafter
from lattice_bpd.decode.strategies import DrafterFile, read_drafter_file
from lattice_bpd.draft.config import STRATEGIES
from lattice_bpd.models import load_heads
from lattice_bpd_llama_cpp import NGramDraftModel
from lattice_bpd_vllm.files import load_parts
from lattice_bpd_vllm.options import DrafterOptions
from target_models import PROMPTS, VOCAB, build_target, plain_generate


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


@pytest.mark.parametrize("command", ["build", "generate"])
def test_commands_put_models_on_the_gpu(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_folder(tmp_path)
    options = {
        "build": ["--prompts", str(tmp_path / "prompts.json"), "-o", str(tmp_path / "out")],
        "generate": ["--prompt", "Hi"],
    }

    def move(_model: torch.nn.Module, device: str) -> None:
        raise OSError(f"moved to {device}")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.nn.Module, "to", move)
    assert main([command, str(tmp_path / "model"), *options[command]]) != 0
    assert "moved to cuda" in capsys.readouterr().err


def test_custom_generate_reads_it(folder: Path) -> None:
    method = CustomGenerate(load_heads(folder), load_drafter(folder))
    model: Any = build_target("llama")
    accepted = 0
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24,
            custom_generate=method,
        )  # fmt: skip
        assert output[0, len(prompt) :].tolist() == plain_generate(model, prompt)
        accepted += sum(method.results[0].stats.accept_lengths)
    assert accepted > 0


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


def test_the_llama_cpp_adapter_reads_its_lm(folder: Path) -> None:
    lm, model = NGramLM.load(folder / "ngram.lm"), build_target("llama")
    right = drafted = 0
    for prompt in ([2, 4, 30, 3], [2, 4, 31, 3], [2, 4, 32, 3]):
        text = [*prompt, *plain_generate(model, prompt)]
        for end in range(6, len(text) - 3):
            draft = NGramDraftModel(lm, min_prob=0.5)(np.array(text[:end], np.intc)).tolist()
            right += draft[:1] == text[end : end + 1]
            drafted += bool(draft)
    assert right > drafted / 2 > 3


def test_every_option_of_the_drafter_is_in_the_file(tmp_path: Path) -> None:
    values: dict[str, Any] = {"sources": ("lm", "text"), "max_nodes": 7, "top_k": 5}
    assert set(values) == set(STRATEGIES["mixture"].options)
    defaults = {one.name: one.default for one in dataclasses.fields(DraftConfig)}
    assert all(values[name] != defaults[name] for name in values)
    config = DraftConfig("mixture", **values)
    DrafterFile(config, VOCAB, 0).save(tmp_path / "drafter.json")
    assert read_drafter_file(tmp_path / "drafter.json").config == config


@pytest.mark.parametrize("change", [{"speed": 3}, {"version": 2}, {"max_nodes": -1}])
def test_other_files_are_refused(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    content = json.loads((folder / "drafter.json").read_text())
    assert (content["format"], content["version"]) == ("lattice-bpd drafter", 1)
    (tmp_path / "drafter.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(FormatError, match=next(iter(change))):
        load_drafter(tmp_path)


def test_the_card_has_data_figures_versions_and_target(folder: Path) -> None:
    card, model = (folder / "README.md").read_text(), build_target("llama")
    for text in (
        "model's own responses: 30 with", "of 40 conversations", "On 5 held-out prompts:",
        "5 of 5 texts equal", "| n-gram LM of own responses | +", "| used |",
        "Accuracy of the heads by slot", f"`lattice-bpd build` {version('lattice-bpd')}",
        f"torch {version('torch')}, transformers {version('transformers')}",
        f"64 token ids, fingerprint {_fingerprint(model)}.",
    ):  # fmt: skip
        assert text in card
    assert _fingerprint(model) != _fingerprint(build_target("gpt_neox"))
