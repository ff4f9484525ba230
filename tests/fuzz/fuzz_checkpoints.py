"""Files of heads, their JSON and their tensors: BlockwiseHeads, Medusa's and ours, BlockwiseLM.

The first byte chooses the kind. Where the second is even, files that are right have a few values
replaced; else two bytes are the length of the JSON and the rest are the tensors' file. Whatever
they hold: heads, or a FormatError (a ValueError where the pieces do not fit).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

from draws import Draws
from python_driver import Target, run

DTYPES = ("F32", "F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "I32", "X")
ODD = (0, 1, 2, 3, 5, -1, 2**31, 10**12, 2**63, 10**30, True, None, "2", 2.0, 1e300, [], {}, [2, 2])
SHAPES = ([], [0], [2], [2, 2], [1, 2], [5, 2], [1, 5, 2], [10**6, 10**6], [2**62, 2**62], [-1])

Tensors = dict[str, list[int]]
BLOCKWISE: Tensors = {
    "inner.weight": [2, 2], "inner.bias": [2], "outer_weight": [2, 2], "outer_bias": [1, 2],
}  # fmt: skip
MEDUSA: Tensors = {
    "block_weight": [1, 1, 2, 2], "block_bias": [1, 1, 2], "output_weight": [1, 5, 2],
}  # fmt: skip
MEDUSA_LM: Tensors = {"0.0.linear.weight": [2, 2], "0.0.linear.bias": [2], "0.1.weight": [5, 2]}
BLOCKWISE_JSON: dict[str, Any] = {
    "format": "lattice_bpd.blockwise_heads", "version": 1, "num_heads": 2, "hidden_size": 2,
    "inner_size": 2, "vocab_size": 5,
}  # fmt: skip
MEDUSA_JSON: dict[str, Any] = {
    "format": "lattice_bpd.medusa_heads", "version": 1, "hidden_size": 2, "vocab_size": 5,
    "num_slots": 1, "num_layers": 1,
}  # fmt: skip
MEDUSA_LM_JSON: dict[str, Any] = {"medusa_num_heads": 1, "medusa_num_layers": 1, "hidden_size": 2}


def draw_config(draws: Draws, config: dict[str, Any]) -> bytes:
    """A JSON with a few values that are others, or none."""
    config = dict(config)
    for _ in range(draws.byte() % 3):
        key = draws.one_of(sorted(config)) if config else "format"
        if draws.byte() % 4 == 0:
            config.pop(key, None)
        else:
            config[key] = draws.one_of(ODD)
    return json.dumps(config).encode()


def draw_weights(draws: Draws, tensors: Tensors) -> bytes:
    """A safetensors file with a few names, types, shapes or offsets changed."""
    header: dict[str, Any] = {}
    at = 0
    for name, shape in tensors.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    for _ in range(draws.byte() % 4):
        name = draws.one_of(sorted(header))
        entry, part = header[name], draws.byte() % 5
        if part == 0:
            entry["dtype"] = draws.one_of(DTYPES)
        elif part == 1:
            entry["shape"] = draws.one_of(SHAPES)
        elif part == 2:
            entry["data_offsets"] = [draws.one_of(ODD), draws.one_of(ODD)]
        elif part == 3:
            header[draws.one_of(("", "x", "0.9.weight", "0.10000000000.weight", "9.1.weight"))] = (
                entry
            )
        elif len(header) > 1:
            del header[name]
    text = json.dumps(header).encode()
    length = len(text) if draws.byte() % 4 else draws.one_of((0, 2**63, len(text) - 1, 10**9))
    return length.to_bytes(8, "little") + text + bytes(at) + draws.rest()


def prepare() -> Target:
    """The target, with a folder in memory where there is one."""
    from lattice_bpd.models.blockwise import BlockwiseLM
    from lattice_bpd.models.heads import BlockwiseHeads
    from lattice_bpd_drafters.medusa import MedusaHeads, load_medusa_heads

    warnings.simplefilter("ignore")
    blockwise = ("blockwise_heads.json", "blockwise_heads.safetensors", BLOCKWISE_JSON, BLOCKWISE)
    medusa_lm = (MEDUSA_LM_JSON, MEDUSA_LM)
    kinds = (
        (*blockwise, BlockwiseHeads.from_pretrained),
        ("medusa_heads.json", "medusa_heads.safetensors", MEDUSA_JSON, MEDUSA,
         MedusaHeads.from_pretrained),
        ("config.json", "medusa_lm_head.safetensors", *medusa_lm, load_medusa_heads),
        ("config.json", "medusa_lm_head.pt", *medusa_lm, load_medusa_heads),
        ("model.safetensors.index.json", "model.safetensors", *medusa_lm, load_medusa_heads),
        (*blockwise, BlockwiseLM.from_pretrained),
    )  # fmt: skip
    memory = Path("/dev/shm")

    def fuzz_one(data: bytes) -> None:
        draws = Draws(data)
        description, weights, config, tensors, load = draws.one_of(kinds)
        if draws.byte() % 2 == 0:
            files = draw_config(draws, config), draw_weights(draws, tensors)
        else:
            size = draws.byte() + 256 * draws.byte()
            files = draws.rest()[:size], draws.rest()[size:]
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
            folder = Path(name)
            (folder / "config.json").write_text(json.dumps(MEDUSA_LM_JSON))
            (folder / description).write_bytes(files[0])
            (folder / weights).write_bytes(files[1])
            with contextlib.suppress(ValueError):  # FormatError is one
                load(folder)

    return fuzz_one


if __name__ == "__main__":
    run(prepare)
