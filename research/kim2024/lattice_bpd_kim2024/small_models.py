"""Small models to train from scratch, and their tokenizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

from lattice_bpd.extensions import require
from lattice_bpd_kim2024.blockwise import BlockwiseLM

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_TEXT = "<|endoftext|>"
"""Special token 0: ends every document in training, and stops decoding."""

RESCORER_SIZES = {"32M": (2, 384, 1536), "61M": (12, 384, 1536), "94M": (6, 768, 3072)}
"""Layers, hidden size and inner size of the neural rescorers of Kim et al. 2024, table 6."""

SMALL_SIZES = {"tiny": (2, 128), "small": (4, 256)}
"""Layers and hidden size of small rescorers, for small targets."""


def build_small_gpt(
    vocab_size: int,
    *,
    hidden_size: int = 128,
    num_layers: int = 4,
    num_attention_heads: int = 2,
    num_heads: int = 9,
    max_positions: int = 256,
) -> BlockwiseLM:
    """A GPT of about 1.2 M parameters with `num_heads` prediction heads, randomly initialized.

    GPT-NeoX instead of GPT-2: on little text, rotary positions save a third of the training
    (held-out loss of head 1 after 600 K tokens of Python: 4.31 against 4.68). ReLU instead of
    GELU, and few wide attention heads, for speed on a CPU.

    Args:
        vocab_size: V.
        hidden_size: D; a multiple of num_attention_heads.
        num_layers: transformer blocks.
        num_attention_heads: attention heads of a block.
        num_heads: h, prediction heads, the target's own included.
        max_positions: longest prompt plus output, in tokens.

    Returns:
        The untrained model in evaluation mode; its weights depend on torch's global seed.
    """
    config = GPTNeoXConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_attention_heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=max_positions,
        hidden_act="relu",
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 1.0,  # the default turns a quarter of each head only
        },
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    # Faster here than the fused kernel, whose backward pass is slow on CPUs.
    config._attn_implementation = "eager"
    base: PreTrainedModel = GPTNeoXForCausalLM(config)
    # The usual 0.02 suits D = 768. With D = 128 and tied embeddings the loss would stay at the
    # unigram entropy for long.
    nn.init.normal_(cast(nn.Embedding, base.get_input_embeddings()).weight, std=0.05)
    return BlockwiseLM(base, num_heads=num_heads).eval()


def build_rescorer(
    size: str,
    vocab_size: int,
    *,
    max_positions: int = 1024,
    num_layers: int | None = None,
    hidden_size: int | None = None,
) -> PreTrainedModel:
    """A neural rescorer, randomly initialized, for `NeuralScorer`.

    The paper's are decoder-only transformers with learned absolute positions and 12 attention heads
    per layer. Their names count the embedding table of the paper's 50,257 tokens; with other
    vocabularies the numbers of parameters differ. Small ones are of `build_small_gpt`, which learns
    more from little text.

    Args:
        size: "32M", "61M" or "94M", see RESCORER_SIZES; "tiny" or "small", see SMALL_SIZES.
        vocab_size: V, the target's.
        max_positions: of the target, or of the longest text.
        num_layers: instead of the size's.
        hidden_size: instead of the size's, a multiple of the attention heads: 12, or 2 of a small
            one; the inner size is four times as much.

    Returns:
        The untrained model in evaluation mode; its weights depend on torch's global seed.

    Raises:
        ValueError: an unknown size, or a hidden size that is not such a multiple.

    Source: Kim et al. 2024, appendix C.2.
    """
    if size not in (names := {**SMALL_SIZES, **RESCORER_SIZES}):
        raise ValueError(f"build_rescorer: size is {size!r}; expected one of {', '.join(names)}")
    layers, hidden, *_ = names[size]
    hidden = hidden if hidden_size is None else hidden_size
    attention_heads = 2 if size in SMALL_SIZES else 12
    if hidden % attention_heads:
        raise ValueError(
            f"build_rescorer: hidden_size is {hidden}; expected a multiple of {attention_heads}, "
            f"the attention heads of size {size!r}"
        )
    if size in SMALL_SIZES:
        return build_small_gpt(
            vocab_size, hidden_size=hidden, num_layers=num_layers or layers,
            num_attention_heads=attention_heads, num_heads=2, max_positions=max_positions,
        ).base  # fmt: skip
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=max_positions,
        n_embd=hidden,
        n_layer=layers if num_layers is None else num_layers,
        n_head=attention_heads,
        n_inner=4 * hidden,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: GPT2LMHeadModel = GPT2LMHeadModel(config)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def train_byte_bpe(texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """Trains a byte-level BPE, which encodes every text without loss.

    Args:
        texts: documents.
        vocab_size: V, including the 256 bytes and END_OF_TEXT (id 0).

    Returns:
        The tokenizer; its vocabulary is smaller than V if the texts have too few pairs.

    Raises:
        ImportError: `tokenizers` is not installed (extra `train`).
        ValueError: vocab_size below 257.
    """
    if vocab_size < 257:
        raise ValueError(
            f"train_byte_bpe: vocab_size is {vocab_size}; expected 257 or more (256 bytes and "
            f"{END_OF_TEXT})"
        )
    tokenizers = require("tokenizers", "train")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer: Tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
