"""Small models to train from scratch: the demo's target and neural rescorers."""

from __future__ import annotations

from typing import cast

from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
)

from lattice_bpd.models.blockwise import BlockwiseLM

RESCORER_SIZES = {"32M": (2, 384, 1536), "61M": (12, 384, 1536), "94M": (6, 768, 3072)}
"""Layers, hidden size and inner size of the neural rescorers of Kim et al. 2024, table 6."""


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
    base: PreTrainedModel = GPTNeoXForCausalLM(config)  # type: ignore[no-untyped-call]
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
) -> GPT2LMHeadModel:
    """A neural rescorer of the paper, randomly initialized, for `NeuralScorer`.

    A decoder-only transformer with learned absolute positions and 12 attention heads per layer.
    The sizes include the embedding table of the paper's vocabulary.

    Args:
        size: "32M", "61M" or "94M"; see RESCORER_SIZES.
        vocab_size: V, the target's.
        max_positions: of the target, or of the longest text.
        num_layers: instead of the size's.
        hidden_size: instead of the size's, a multiple of 12; the inner size is four times as much.

    Returns:
        The untrained model in evaluation mode; its weights depend on torch's global seed.

    Raises:
        ValueError: an unknown size, or a hidden size that is not a multiple of 12.

    Source: Kim et al. 2024, appendix C.2.
    """
    if size not in RESCORER_SIZES:
        raise ValueError(
            f"build_rescorer: size is {size!r}; expected one of {', '.join(RESCORER_SIZES)}"
        )
    layers, hidden, _ = RESCORER_SIZES[size]
    hidden = hidden if hidden_size is None else hidden_size
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=max_positions,
        n_embd=hidden,
        n_layer=layers if num_layers is None else num_layers,
        n_head=12,
        n_inner=4 * hidden,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: GPT2LMHeadModel = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    model.eval()  # type: ignore[no-untyped-call]
    return model
