"""DFlash2, DSpark and LiLiCorr: scores as of the formulas, and files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from block_drafters import CONFIG, edit
from blockwise_models import VOCAB
from lattice_bpd import FormatError
from lattice_bpd.lattice.lattice_input import LatticeInput
from lattice_bpd_drafters.block_drafter import BlockDrafter
from lattice_bpd_drafters.config import (
    MarkovConfig,
)
from lattice_bpd_drafters.format_checkpoint import tensor_shapes
from lattice_bpd_drafters.formats import find_format
from transition_drafters import DRAFTERS, build, reference_lattice

ENDS = [11, 7, 0]


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(VOCAB - 1, (len(ENDS), 16), generator=generator)
    return ids, torch.randn(len(ENDS), 16, CONFIG.feature_size, generator=generator)


def lattice_of(drafter: BlockDrafter, top_k: int | None = None) -> LatticeInput:
    """Of three sequences of different lengths, whose context arrives in two pieces."""
    ids, features = texts()
    cache = drafter.new_cache(len(ENDS))
    first = [min(end, 8) for end in ENDS]
    drafter.append(cache, features[:, :8], first)
    rest = torch.stack([torch.roll(row, -count, 0) for row, count in zip(features, first)])  # noqa: B905
    drafter.append(cache, rest, [end - count for end, count in zip(ENDS, first, strict=True)])
    anchors = ids[torch.arange(len(ENDS)), torch.tensor(ENDS)]
    return drafter.lattice(cache, anchors, top_k=top_k)


def check_against_reference(drafter: BlockDrafter) -> None:
    ids, features = texts()
    found = lattice_of(drafter)
    for row, end in enumerate(ENDS):
        expected = reference_lattice(drafter, features[row, :end].numpy(), int(ids[row, end]))
        assert found.token_ids[row].tolist() == expected.token_ids
        for name in ("scores", "start", "transitions"):
            tensor = torch.tensor(np.array(getattr(expected, name))).float()
            torch.testing.assert_close(getattr(found, name)[row], tensor, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", DRAFTERS)
def test_scores_are_those_of_the_formulas(name):
    drafter = build(name)
    check_against_reference(drafter)
    found = lattice_of(drafter)
    assert found.unary == ("replaced" if "lilicorr" in name else "included")
    assert found.normalization == "local"
    assert found.start.dtype == found.transitions.dtype == found.scores.dtype == torch.float32


FORMATS = {
    **{name: ["z-lab"] for name in DRAFTERS},
    "dspark": ["z-lab", "deepspec", "speculators"],
    "dspark_gated": ["z-lab", "deepspec"],
    "dspark_fill_in": ["z-lab", "deepspec", "speculators"],
}


def same_top_k(drafter: BlockDrafter) -> BlockDrafter:
    """With the number of candidates that a file of DSpark, which has none, is loaded with."""
    if isinstance(drafter.config.scorer, MarkovConfig):
        drafter.config = replace(drafter.config, scorer=replace(drafter.config.scorer, top_k=16))
    return drafter


def check_equal(found: LatticeInput, expected: LatticeInput) -> None:
    for field in ("token_ids", "scores", "start", "transitions"):
        one, other = getattr(found, field), getattr(expected, field)
        assert (one is None and other is None) or torch.equal(one, other), field


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "kind"), [(n, kind) for n in FORMATS for kind in FORMATS[n]])
def test_round_trip_gives_equal_scores(name, kind, dtype, tmp_path):
    saved = same_top_k(build(name)).to(dtype)
    saved.save_pretrained(tmp_path, format=kind)
    assert find_format(tmp_path) == kind
    loaded = BlockDrafter.from_pretrained(tmp_path)
    assert loaded.config == saved.config
    loaded._shared = saved._shared
    check_equal(lattice_of(loaded), lattice_of(saved))
    shapes = {key: tuple(value.shape) for key, value in saved.state_dict().items()}
    assert shapes == tensor_shapes(saved.config)


def numbered_parts(stored: dict[str, Any]) -> dict[str, Any]:
    """The spelling of LiLiCorr's training module."""
    spelling = {
        "feature_norm.": "feature_mlp.0.", "feature_mlp.up_proj.": "feature_mlp.1.",
        "feature_mlp.down_proj.": "feature_mlp.3.", ".mlp.up_proj.": ".mlp.0.",
        ".mlp.down_proj.": ".mlp.2.",
    }  # fmt: skip
    renamed = {}
    for name, value in stored.items():
        if name.startswith("lilicorr."):
            for old, new in spelling.items():
                name = name.replace(old, new)
        renamed[name] = value
    assert "lilicorr.layers.0.mlp.2.bias" in renamed
    return renamed


def test_both_spellings_of_lilicorr_are_read(tmp_path):
    saved = build("lilicorr")
    saved.save_pretrained(tmp_path)
    edit(tmp_path, {}, numbered_parts)
    loaded = BlockDrafter.from_pretrained(tmp_path)
    loaded._shared = saved._shared
    check_equal(lattice_of(loaded), lattice_of(saved))
    edit(tmp_path, {}, lambda ts: ts | {"lilicorr.feature_norm.weight": torch.ones(5)})
    with pytest.raises(FormatError, match=r"two tensors that are lilicorr\.feature_norm\.weight"):
        BlockDrafter.from_pretrained(tmp_path)


def test_a_dflash2_config_as_published(tmp_path):
    build("dflash2", logit_scale=1.0, logit_softcap=None, embedding_scale=1.0).save_pretrained(
        tmp_path
    )
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["architectures"] == ["DFlash2DraftModel"]
    assert content["dflash_config"] == {
        "mask_token_id": VOCAB - 1, "target_layer_ids": [0, 1], "conv_kernel_size": 2,
        "conv_group_size": 8, "selector_rank": 6, "selector_top_k": 5,
    }  # fmt: skip
    for outer in ("", "dflash_config."):
        edit(tmp_path, {f"{outer}input_embedding_scale": 2.0, f"{outer}output_multiplier": 0.5,
                        f"{outer}final_logit_softcapping": 30.0})  # fmt: skip
        config = BlockDrafter.from_pretrained(tmp_path).config
        transforms = (config.embedding_scale, config.logit_scale, config.logit_softcap)
        assert transforms == (2.0, 0.5, 30.0)
    edit(tmp_path, {"output_multiplier": 0.25})
    with pytest.raises(
        FormatError, match=r"output_multiplier is \[0.25, 0.5\]; expected one value"
    ):
        BlockDrafter.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", FORMATS["dspark"])
def test_confidence_heads_are_left_out(kind, tmp_path):
    drafter = same_top_k(build("dspark"))
    drafter.save_pretrained(tmp_path, format=kind)
    (path,) = tmp_path.glob("*.safetensors")
    head = {
        "confidence_head.proj.weight": torch.zeros(1, 32),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    save_file(load_file(path) | head, path)
    prefix = "dflash_config." if kind == "z-lab" else ""
    edit(tmp_path, {f"{prefix}enable_confidence_head": True})
    loaded = BlockDrafter.from_pretrained(tmp_path)
    assert loaded.config == drafter.config
    assert loaded.state_dict().keys() == drafter.state_dict().keys()


BAD_FILES = [
    ("dspark", "deepspec", {"markov_head_type": "rnn"}, "'rnn'; its logits depend on whole prefix"),
    ("dspark_gated", "deepspec", {"markov_head_type": "vanilla"}, "has markov_head.gate_proj"),
    ("dspark", "deepspec", {"markov_rank": 8}, r"markov_w1.weight has shape \(48, 7\)"),
    ("dspark", "deepspec", {"target_layer_ids": [-2, 1]}, "integers of -1 or more"),
    ("dflash2", "z-lab", {"dflash_config.selector_top_k": 99}, "top_k is 99; expected 1..48"),
    ("dflash2", "z-lab", {"dflash_config.conv_kernel_size": 3}, "base_kernel has shape"),
    ("lilicorr", "z-lab", {"dflash_config.lilicorr_enabled": False}, "enabled is False"),
    ("lilicorr", "z-lab", {"dflash_config.lilicorr_num_layers": 10**9}, "of 1000000000 layers"),
    ("lilicorr", "z-lab", {"dflash_config.lilicorr_dropout": 0.1}, "unknown options dflash"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind", "changes", "message"), BAD_FILES)
def test_files_that_do_not_fit(name, kind, changes, message, tmp_path):
    build(name).save_pretrained(tmp_path, format=kind)
    edit(tmp_path, changes)
    with pytest.raises(FormatError, match=message):
        BlockDrafter.from_pretrained(tmp_path)


CANNOT_SAVE = [
    ("dflash2", "muse-glimmer", "transition scores"),
    ("dflash2", "speculators", "a selector"),
    ("dflash2", "deepspec", "has no Markov head"),
    ("lilicorr", "speculators", "a selector"),
    ("dspark_gated", "speculators", "a logit scale"),
]


@pytest.mark.parametrize(("name", "kind", "message"), CANNOT_SAVE)
def test_what_a_format_cannot_hold_is_not_saved(name, kind, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        build(name).save_pretrained(tmp_path / "x", format=kind)
    assert not (tmp_path / "x").exists()
