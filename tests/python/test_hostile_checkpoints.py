"""Files of heads whose sizes exceed their content: refused before memory is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from lattice_bpd import FormatError
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd_drafters.medusa import MedusaHeads, load_medusa_heads

KINDS: list[tuple[Callable[[], Any], str]] = [
    (lambda: BlockwiseHeads(2, 3, 2, vocab_size=5), "blockwise_heads"),
    (lambda: MedusaHeads(2, 5, 2, 1), "medusa_heads"),
]


@pytest.mark.parametrize("value", [10**6, 10**12, 2**63, 10**30])
@pytest.mark.parametrize(("build", "stem"), KINDS)
def test_sizes_out_of_all_reason(build, stem, value, tmp_path):
    heads = build()
    heads.save_pretrained(tmp_path)
    path = tmp_path / f"{stem}.json"
    good = json.loads(path.read_text())
    for key in set(good) - {"format", "version", "vocab_size"}:
        path.write_text(json.dumps({**good, key: value}))
        with pytest.raises(FormatError, match=f"{stem}.safetensors: the heads' weights cannot be"):
            type(heads).from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["blockwise_heads.json", "medusa_heads.json", "config.json"])
def test_json_that_is_nested_without_end(name, tmp_path):
    (tmp_path / name).write_text("[" * 100_000)
    loaders = [BlockwiseHeads.from_pretrained, MedusaHeads.from_pretrained, load_medusa_heads]
    load = loaders[["blockwise_heads.json", "medusa_heads.json", "config.json"].index(name)]
    with pytest.raises(FormatError, match="cannot be read"):
        load(tmp_path)


def write_medusa(folder: Path, tensors: dict[str, torch.Tensor], layers: int) -> None:
    config = {"medusa_num_heads": 1, "medusa_num_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "medusa_lm_head.safetensors")


def test_a_medusa_file_of_ten_thousand_million_blocks(tmp_path):
    layers = 10**10
    write_medusa(tmp_path, {f"0.{layers}.weight": torch.zeros(5, 2)}, layers)
    with pytest.raises(FormatError, match="has 1 tensors; expected 20000000001"):
        load_medusa_heads(tmp_path)


def test_a_medusa_file_of_integers(tmp_path):
    write_medusa(tmp_path, {"0.0.weight": torch.zeros(5, 2, dtype=torch.long)}, 0)
    with pytest.raises(FormatError, match=r"expected \(V, D\) of floats"):
        load_medusa_heads(tmp_path)


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x02c", b"PK\x03\x04", b"\x80\x04\x95\xff", b"(lp0\n."]
)
def test_a_pickle_that_is_none(data, tmp_path):
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 1, "medusa_num_layers": 1}')
    (tmp_path / "medusa_lm_head.pt").write_bytes(data)
    with pytest.raises(FormatError, match=r"medusa_lm_head\.pt: "):
        load_medusa_heads(tmp_path)
