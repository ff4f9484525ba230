"""A small Llama with heads to time decoding with: trained here in seconds, or one of yours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lattice_bpd import NGramLM

VOCAB_SIZE = 512


class Subject(NamedTuple):
    """What decodes.

    Attributes:
        name: Of the model.
        model: The target.
        heads: Its draft heads.
        lm: n-gram LM over its tokens.
        prompts: Token ids.
    """

    name: str
    model: Any
    heads: Any
    lm: NGramLM
    prompts: list[list[int]]


def load_subject(directory: Path, count: int) -> Subject:
    """A model of `make demo`: blockwise model, tokenizer.json and ngram.lm in one folder."""
    from tokenizers import Tokenizer

    from lattice_bpd_kim2024.blockwise import BlockwiseLM
    from lattice_bpd_kim2024.demo.library_text import draw_prompts, read_library_sources

    tokenizer: Any = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = read_library_sources().test
    documents = [np.array(e.ids, np.int32) for e in tokenizer.encode_batch(texts)]
    prompts = [list(map(int, p)) for p in draw_prompts(documents, count, 48, 0, seed=0)]
    model = BlockwiseLM.from_pretrained(directory, attn_implementation="eager")
    lm = NGramLM.load(directory / "ngram.lm")
    return Subject(directory.name, model.base, model.heads, lm, prompts)


def train_subject(count: int, steps: int) -> Subject:
    """A Llama of 0.4 M parameters that learns noisy cycles: easy but not deterministic text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from lattice_bpd_kim2024.blockwise import BlockwiseLM
    from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise

    rng = np.random.default_rng(0)
    text = _sample_cycles(rng, 60_000)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=192, num_hidden_layers=5,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    base: Any = LlamaForCausalLM(config)
    torch.nn.init.normal_(base.get_input_embeddings().weight, std=0.05)
    model = BlockwiseLM(base, num_heads=9)
    options = TrainOptions(
        steps=steps, batch_size=16, sequence_length=64, precision="fp32", head_fraction=0.5
    )
    train_blockwise(model, text, options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Katz smoothing finds this text odd
        lm = NGramLM.train([_sample_cycles(rng, 60_000)], 3, vocab_size=VOCAB_SIZE)
    prompts = [_sample_cycles(rng, 32).tolist() for _ in range(count)]
    return Subject("small Llama", base.eval(), model.heads.eval(), lm, prompts)


def _sample_cycles(rng: np.random.Generator, length: int) -> Any:
    """Runs of 3 to 30 tokens with one of a few steps, a tenth of the tokens at random."""
    parts, total = [], 0
    while total < length:
        size = int(rng.integers(3, 31))
        start, step = int(rng.integers(VOCAB_SIZE)), int(rng.choice([1, 5, 77]))
        parts.append((start + step * np.arange(size)) % VOCAB_SIZE)
        total += size
    text = np.concatenate(parts)[:length].astype(np.int32)
    noise = rng.random(length) < 0.1
    text[noise] = rng.integers(0, VOCAB_SIZE, int(noise.sum()))
    return text
