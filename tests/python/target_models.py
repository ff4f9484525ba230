"""Tiny random targets of many architectures, and outputs of plain `generate`."""

from __future__ import annotations

import functools
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from planted_drafts import PlantedDrafts, plain_continuation, randomize

torch.set_num_threads(1)

VOCAB = 64
COUNT = 24  # new tokens
PROMPTS = [
    [11, 7, 33, 9, 50, 8, 21, 44, 13, 27, 60, 5, 19],
    [40, 6, 31, 12, 55, 9],
    [23, 14, 62, 7, 18, 35, 9, 48, 29, 10],
]
_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
_GPT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
}
_BERT = {**_GPT, "intermediate_size": 48, "num_hidden_layers": 2, "is_decoder": True, **_ENDS}
_LLAMA = {
    **_GPT, "intermediate_size": 48, "num_hidden_layers": 2, "num_key_value_heads": 2, **_ENDS,
}  # fmt: skip
_MLA = {
    **_LLAMA, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
_MOE = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_SHARED = {
    **_LLAMA, "num_hidden_layers": 4, "num_kv_shared_layers": 2, "head_dim": 8, "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB,
}  # fmt: skip
_NEMOTRON = {
    **_LLAMA, "num_hidden_layers": 4, "head_dim": 8, "ssm_state_size": 8, "mamba_num_heads": 8,
    "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 4, "n_routed_experts": 4,
    "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16,
}  # fmt: skip

# name: (model class, config class, options)
_KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _LLAMA),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_LLAMA}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_LLAMA, "sliding_window": 8}),
    # layers between base_model and the output embedding
    "bert": ("BertLMHeadModel", "BertConfig", _BERT),
    "roberta": ("RobertaForCausalLM", "RobertaConfig", _BERT),
    "rembert": (
        "RemBertForCausalLM", "RemBertConfig",
        {**_BERT, "input_embedding_size": 16, "output_embedding_size": 24},
    ),
    "roformer": ("RoFormerForCausalLM", "RoFormerConfig", {**_BERT, "embedding_size": 32}),
    # scaled states, scaled or capped logits
    "minicpm3": (
        "MiniCPM3ForCausalLM", "MiniCPM3Config", {**_MLA, "scale_emb": 2.0, "dim_model_base": 8},
    ),
    "cohere": ("CohereForCausalLM", "CohereConfig", {**_LLAMA, "logit_scale": 0.25}),
    "gemma2": (
        "Gemma2ForCausalLM", "Gemma2Config",
        {**_LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8,
         "final_logit_softcapping": 1.0},
    ),
    # windows that are not where the config says, or count cache positions
    "moshi": (
        "MoshiForCausalLM", "MoshiConfig",
        {**_LLAMA, "ffn_dim": 48, "sliding_window": 8, "num_codebooks": 2, "audio_vocab_size": 16},
    ),
    "gpt_neo": (
        "GPTNeoForCausalLM", "GPTNeoConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
         "max_position_embeddings": 96, "attention_types": [[["global", "local"], 1]],
         "window_size": 8, **_ENDS},
    ),
    "llama4": (
        "Llama4ForCausalLM", "Llama4TextConfig",
        {**_LLAMA, "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2,
         "attention_chunk_size": 8, "num_experts_per_tok": 1},
    ),
    # layers that read another layer's keys, or have none
    "gemma3n": (
        "Gemma3nForCausalLM", "Gemma3nTextConfig",
        {**_SHARED, "intermediate_size": 48, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
         "laurel_rank": 8, "altup_num_inputs": 2},
    ),
    "gemma4": (
        "Gemma4ForCausalLM", "Gemma4TextConfig",
        {**_SHARED, "layer_types": ["full_attention"] * 4, "global_head_dim": 8},
    ),
    "mlp_first": (
        "NemotronHForCausalLM", "NemotronHConfig",
        {**_NEMOTRON, "layers_block_type": ["mlp", "full_attention", "moe", "full_attention"]},
    ),
    # states
    "nemotron_h": (
        "NemotronHForCausalLM", "NemotronHConfig",
        {**_NEMOTRON, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM", "Qwen3NextConfig",
        {**_LLAMA, **_MOE, **_DELTA, "head_dim": 8, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", {**_LLAMA, **_DELTA, "head_dim": 8}),
    "lfm2": (
        "Lfm2ForCausalLM", "Lfm2Config",
        {**_LLAMA, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
         "block_auto_adjust_ff_dim": False},
    ),
    "mamba": (
        "MambaForCausalLM", "MambaConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
         "time_step_rank": 4, **_ENDS},
    ),
    "mamba2": (
        "Mamba2ForCausalLM", "Mamba2Config",
        {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2,
         "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4, **_ENDS},
    ),
    "jamba": (
        "JambaForCausalLM", "JambaConfig",
        {**_LLAMA, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
         "expert_layer_offset": 1, "num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    "bamba": (
        "BambaForCausalLM", "BambaConfig",
        {**_LLAMA, "attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16,
         "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 4},
    ),
}  # fmt: skip

RECURRENT = ["nemotron_h", "qwen3_next", "qwen3_5", "lfm2", "mamba", "mamba2", "jamba", "bamba"]
ATTENTION = [name for name in _KINDS if name not in RECURRENT]


@functools.cache
def build_target(kind: str) -> PreTrainedModel:
    """A target with random weights, large enough that its choices vary."""
    model_class, config_class, options = _KINDS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**options))
    randomize(model)
    settings = model.generation_config
    settings.eos_token_id, settings.bos_token_id, settings.pad_token_id = None, None, 0
    return model.eval()


@functools.cache
def generated(kind: str) -> list[list[int]]:
    """The output of the model's own `generate` for each of PROMPTS, alone."""
    return [plain_generate(build_target(kind), prompt) for prompt in PROMPTS]


def plain_generate(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    """COUNT tokens by the model's own `generate`."""
    mask = torch.ones(1, len(prompt), dtype=torch.long)
    return plain_continuation(model, prompt, min_new_tokens=COUNT, attention_mask=mask)


def planted(kind: str, **options: Any) -> list[PlantedDrafts]:
    """A drafter for each of PROMPTS."""
    return [PlantedDrafts(coming, VOCAB, **options) for coming in generated(kind)]
