"""Loading of llama2.c checkpoints (version 0) as `transformers` models.

One little-endian file: seven int32 (dim, hidden_dim, layers, heads, key/value heads, vocabulary,
positions), then float32 tensors in a fixed order, each for all layers at once:

    embedding [V,D]; attention norm [L,D]; wq [L,D,D]; wk, wv [L,K,D]; wo [L,D,D]; FFN norm [L,D];
    w1 [L,F,D]; w2 [L,D,F]; w3 [L,F,D]; final norm [D]; rotary cosines and sines [S,d/2] each
    (unused: they follow from the sizes); output embedding [V,D] if the vocabulary size is negative,
    else it is tied to the embedding.

Rotary positions rotate adjacent pairs (0 1), (2 3) .. there, and (0 d/2), (1 d/2+1) .. in
`transformers`: the rows of wq and wk are permuted accordingly, which does not change q.k.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lattice_bpd._core import FormatError

_HEADER = struct.Struct("<7i")
_MAX_SIZE = 1 << 24  # of any size in the header: larger ones are damage


class Llama2cSizes(NamedTuple):
    """The header."""

    dim: int
    hidden_dim: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_positions: int
    tied: bool

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The tensors in the order of the file."""
        layers, dim, inner = self.num_layers, self.dim, self.hidden_dim
        head = dim // self.num_attention_heads
        keys = head * self.num_key_value_heads
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocab_size, dim),
            "attention_norm": (layers, dim),
            "wq": (layers, dim, dim),
            "wk": (layers, keys, dim),
            "wv": (layers, keys, dim),
            "wo": (layers, dim, dim),
            "ffn_norm": (layers, dim),
            "w1": (layers, inner, dim),
            "w2": (layers, dim, inner),
            "w3": (layers, inner, dim),
            "final_norm": (dim,),
            "cosines": (self.max_positions, head // 2),
            "sines": (self.max_positions, head // 2),
        }
        if not self.tied:
            shapes["output"] = (self.vocab_size, dim)
        return shapes


def load_llama2c(path: str | Path, *, attn_implementation: str = "eager") -> LlamaForCausalLM:
    """Read a checkpoint.

    Args:
        path: the .bin file.
        attn_implementation: of `transformers`; eager attention is the fastest for small models.

    Returns:
        The model in evaluation mode, float32, on the CPU. Token 1 starts a text and 2 ends one,
        as in every Llama vocabulary of that project.

    Raises:
        OSError: the file cannot be read.
        FormatError: the file is another format, or truncated.
    """
    sizes, tensors = read_llama2c(path)
    config = LlamaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.dim,
        intermediate_size=sizes.hidden_dim,
        num_hidden_layers=sizes.num_layers,
        num_attention_heads=sizes.num_attention_heads,
        num_key_value_heads=sizes.num_key_value_heads,
        max_position_embeddings=sizes.max_positions,
        rms_norm_eps=1e-5,
        tie_word_embeddings=sizes.tied,
        bos_token_id=1,
        eos_token_id=2,
    )
    config._attn_implementation = attn_implementation
    model: LlamaForCausalLM = LlamaForCausalLM(config)
    weights = _rename(sizes, tensors)
    if sizes.tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def read_llama2c(path: str | Path) -> tuple[Llama2cSizes, dict[str, Tensor]]:
    """The header and the tensors as stored in the file; see the module docstring for shapes.

    Raises:
        OSError: the file cannot be read.
        FormatError: the file is another format, or truncated.
    """
    data = Path(path).read_bytes()
    sizes = _read_header(path, data)
    shapes = sizes.shapes
    expected = _HEADER.size + 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    if len(data) != expected:
        raise FormatError(
            f"{path}: has {len(data):,} bytes; its header (dim {sizes.dim}, layers "
            f"{sizes.num_layers}, vocabulary {sizes.vocab_size}) needs {expected:,}; copy the "
            "file again, or export it in llama2.c's version 0"
        )
    numbers = torch.from_numpy(np.frombuffer(data, "<f4", offset=_HEADER.size).copy())
    parts = torch.split(numbers, [int(np.prod(shape)) for shape in shapes.values()])
    tensors = {
        name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise FormatError(f"{path}: {name} holds NaN or infinities; copy the file again")
    return sizes, tensors


def _read_header(path: str | Path, data: bytes) -> Llama2cSizes:
    if len(data) < _HEADER.size:
        raise FormatError(
            f"{path}: has {len(data)} bytes; expected a header of {_HEADER.size} and weights"
        )
    dim, hidden_dim, layers, heads, kv_heads, vocab, positions = _HEADER.unpack_from(data)
    sizes = Llama2cSizes(
        dim, hidden_dim, layers, heads, kv_heads, abs(vocab), positions, tied=vocab > 0
    )
    fits = all(0 < size <= _MAX_SIZE for size in sizes[:-1])
    if not fits or dim % (2 * heads) or heads % kv_heads:
        raise FormatError(
            f"{path}: the header reads {sizes[:-1]}; expected seven sizes above 0 with dim a "
            "multiple of 2 x heads and heads one of key/value heads; give a version 0 file of "
            "llama2.c"
        )
    return sizes


def _rename(sizes: Llama2cSizes, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names that `transformers` uses."""
    weights = {
        "model.embed_tokens.weight": tensors["embedding"],
        "model.norm.weight": tensors["final_norm"],
        "lm_head.weight": tensors.get("output", tensors["embedding"]),
    }
    for layer in range(sizes.num_layers):
        names = {
            "input_layernorm": tensors["attention_norm"][layer],
            "self_attn.q_proj": _pairs_to_halves(tensors["wq"][layer], sizes.num_attention_heads),
            "self_attn.k_proj": _pairs_to_halves(tensors["wk"][layer], sizes.num_key_value_heads),
            "self_attn.v_proj": tensors["wv"][layer],
            "self_attn.o_proj": tensors["wo"][layer],
            "post_attention_layernorm": tensors["ffn_norm"][layer],
            "mlp.gate_proj": tensors["w1"][layer],
            "mlp.down_proj": tensors["w2"][layer],
            "mlp.up_proj": tensors["w3"][layer],
        }
        for name, tensor in names.items():
            weights[f"model.layers.{layer}.{name}.weight"] = tensor
    return weights


def _pairs_to_halves(weight: Tensor, heads: int) -> Tensor:
    """Permute the rows of each head, 0 1 2 3 .. to 0 2 .. 1 3 ..; (heads * d, D)."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)
