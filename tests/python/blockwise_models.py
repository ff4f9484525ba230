"""Tiny targets for tests: random and briefly trained, of several architectures.

gpt2     positions of its own          llama    grouped keys, rotary positions
mistral  a sliding window throughout   gemma2   windows in every other layer, capped logits
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from lattice_bpd import NGramLM
from lattice_bpd.decode import generate
from lattice_bpd.lm import KatzWarning
from lattice_bpd_kim2024.blockwise import BlockwiseLM
from lattice_bpd_kim2024.heads.joint import TrainOptions, train_blockwise

torch.set_num_threads(1)  # matrices this small only lose by being shared out

VOCAB = 48
POSITIONS = 64
HEADS = 5
WINDOW = 9
# of a call's arguments and output; transformers 5.24 renamed it
CACHE_NAME = "cache" if "cache" in CausalLMOutputWithPast.__annotations__ else "past_key_values"
ARCHITECTURES = ("gpt2", "llama", "mistral", "gemma2")
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": POSITIONS,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def _gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_positions=POSITIONS, n_embd=32, n_layer=2, n_head=2,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip


def build_base(architecture: str) -> PreTrainedModel:
    """An untrained target."""
    if architecture == "gpt2":
        return _gpt2()
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SIZES))
    if architecture == "mistral":
        return MistralForCausalLM(MistralConfig(sliding_window=WINDOW, head_dim=8, **_SIZES))
    return Gemma2ForCausalLM(
        Gemma2Config(
            sliding_window=WINDOW, head_dim=8, query_pre_attn_scalar=8,
            final_logit_softcapping=1.0, **_SIZES,
        )
    )  # fmt: skip


@functools.cache
def random_model(architecture: str, seed: int = 0) -> BlockwiseLM:
    """A target with random weights, large enough that its choices vary, and random heads."""
    torch.manual_seed(seed)
    model = BlockwiseLM(build_base(architecture), num_heads=HEADS)
    with torch.no_grad():
        for weight in model.base.parameters():
            if weight.ndim == 2:
                weight.normal_(0.0, 0.3)
        model.heads.outer_weight.normal_(0.0, 0.3)
    return model.eval()


def looping_text(length: int = 4000, seed: int = 0) -> np.ndarray:
    """(length,) ids of a noisy cycle: easy to learn, with some surprise left."""
    rng = np.random.default_rng(seed)
    text = np.arange(length) * 5 % VOCAB
    noise = rng.random(length) < 0.1
    text[noise] = rng.integers(0, VOCAB, noise.sum())
    return text.astype(np.int32)


def random_prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts of 1 to 15 token ids."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, rng.integers(1, 16)).tolist() for _ in range(count)]


def pad(prompts: list[list[int]]) -> dict[str, torch.Tensor]:
    """Inputs of `generate`, padded on the left."""
    longest = max(map(len, prompts))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(p)) + p for p in prompts]),
        "attention_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
    }


@functools.cache
def trained_model() -> BlockwiseLM:
    """A GPT-2 that learnt the noisy cycle, so that drafts are often accepted."""
    torch.manual_seed(0)
    base = _gpt2()
    torch.nn.init.normal_(base.transformer.wte.weight, std=0.1)
    model = BlockwiseLM(base, num_heads=HEADS)
    options = TrainOptions(
        steps=120, batch_size=16, sequence_length=32, warmup=5, precision="fp32",
        head_fraction=0.5, other_lr=0.02, head_ramp=0.2,
    )  # fmt: skip
    train_blockwise(model, looping_text(), options)
    return model


@functools.cache
def small_lm(seed: int = 1) -> NGramLM:
    """A trigram LM of the noisy cycle."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KatzWarning)
        return NGramLM.train([looping_text(2000, seed)], 3, vocab_size=VOCAB)


def model_of(kind: str) -> BlockwiseLM:
    """A random target of an architecture, or the trained one."""
    return trained_model() if kind == "trained" else random_model(kind)


def output_of(model: BlockwiseLM, *arguments: Any, **options: Any) -> Any:
    """`generate` of the target with its heads."""
    return generate(model.base, *arguments, heads=model.heads, **options)


def plain_greedy(model: BlockwiseLM, prompt: list[int], count: int) -> list[int]:
    """Greedy output without cache, drafts or loop of ours: the whole text is read each time."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            logits = model.base(input_ids=torch.tensor([tokens])).logits[0, -1]
            tokens.append(int(np.argmax(logits.numpy())))
    return tokens[len(prompt) :]
