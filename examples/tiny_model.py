"""A tiny causal LM, heads and an n-gram LM for the other examples.

With your own model these are AutoModelForCausalLM.from_pretrained(..), load_heads(..) of heads that
were trained on it, and NGramLM.load(..). Here the LM is trained on the random model's output,
and the heads are untrained: they repeat the model's own prediction of the next token.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lattice_bpd import NGramLM
from lattice_bpd.models import BlockwiseHeads

VOCAB = 64


def load() -> tuple[LlamaForCausalLM, BlockwiseHeads, NGramLM]:
    """Target, heads and LM."""
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            bos_token_id=None, eos_token_id=None, pad_token_id=0,
        )
    ).eval()  # fmt: skip
    for weight in base.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.3)
    starts = torch.arange(1, VOCAB)[:, None]
    text = base.generate(starts, do_sample=False, max_new_tokens=80).numpy()  # on its own output
    lm = NGramLM.train(list(text), 3, vocab_size=VOCAB, smoothing="witten_bell")
    return base, BlockwiseHeads(32, num_heads=5).eval(), lm
