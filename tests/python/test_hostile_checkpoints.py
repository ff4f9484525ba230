"""Files of heads whose sizes exceed their content: refused before memory is allocated."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")


from lattice_bpd import FormatError
from lattice_bpd.models.heads import BlockwiseHeads
from lattice_bpd_drafters.medusa import load_medusa_heads
from lattice_bpd_drafters.medusa_heads import MedusaHeads

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
