"""Config attributes that the shrinker's rules cannot derive, by model type."""

from __future__ import annotations

from typing import Any

_SHARED_KV: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
# Frequencies that change within test texts; checkpoints with long contexts have them.
_LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0],
        "short_mscale": 1.0, "long_mscale": 1.3, "partial_rotary_factor": 1.0,
    },
}  # fmt: skip
_ZAMBA: dict[str, Any] = {
    "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2,
    "attention_hidden_size": 128, "attention_head_dim": 32,
}  # fmt: skip

# of a model type, or of the class of a sub-config that has none
OVERRIDES: dict[str, dict[str, Any]] = {
    # defaults without the layers, parameters or sizes that checkpoints have
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": {"<image>": 126}},
    "emu3": {"vocabulary_map": {"<image>": 126}},
    "cohere_compass_text": {
        "rope_parameters": {"sliding_attention": _MROPE, "full_attention": _MROPE},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "DbrxAttentionConfig": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1,
    },
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2": {
        "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "full_attn_idxs": None,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "phi3": _LONGROPE,
    "phi4_multimodal": _LONGROPE,
    "phimoe": _LONGROPE,
    "qwen2_5_omni_thinker": {"vision_start_token_id": 130, "vision_end_token_id": 131},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 130, "vision_end_token_id": 131},
    "qwen4_exp_text": {  # its default leaves the indexer out, and has tables of 20 million rows
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
        "indexer_compress_ratio": 2, "ngram_vocab_size_base": 64, "split_ngram_parts": 1,
        "ple_layer_ids": [1], "heads_per_ngram": 2, "make_ngram_vocab_size_divisible_by": 8,
        "eos_token_id": 127, "number_of_conv_states": 3,
    },
    "step3p5": {"sliding_window": 8},
    "xmod": {"default_language": "en_XX"},
    # sections of rotary positions
    "ernie4_5_vl_moe_text": {"rope_parameters": {**_MROPE, "mrope_section": [2, 2, 4]}},
    "glm4v_moe_text": {"rope_parameters": {**_MROPE, "partial_rotary_factor": 1.0}},
    "glm4v_text": {"rope_parameters": _MROPE},
    "glm_ocr_text": {"rope_parameters": _MROPE},
    "hunyuan_vl_text": {"rope_parameters": _MROPE},
    "paddleocr_vl_text": {"rope_parameters": _MROPE},
    "qwen2_5_omni_text": {"rope_parameters": _MROPE},
    "qwen2_5_vl_text": {"rope_parameters": _MROPE},
    "qwen2_vl_text": {"rope_parameters": _MROPE},
    # layers by number or period, layers that share, and sizes that divide or add up to others
    "dots3_note_text": {
        "num_hidden_layers": 2, "layer_types": ["indexed_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse"],
    },
    "dory": {
        "num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gemma3n_text": {
        **_SHARED_KV, "intermediate_size": 96, "activation_sparsity_pattern": [0.5, 0.0] * 2,
    },
    "gemma4_text": {**_SHARED_KV, "global_head_dim": 32},
    "gemma4_unified_text": {**_SHARED_KV, "global_head_dim": 32},
    "glm5_next_text": {"index_kpool": 4},
    "hrm_text": {"num_hidden_layers": 2, "num_layers_per_stack": None},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "is_decoder": True, "axial_pos_shape": [16, 16], "axial_pos_embds_dim": [16, 48],
    },
    "zamba": _ZAMBA,
    "zamba2": {**_ZAMBA, "hybrid_layer_ids": [1, 3], "mamba_headdim": 16, "n_mamba_heads": 8},
}  # fmt: skip


# name of an architecture -> the reason why it is not checked
_CODES = "reads several audio codes at each position, not token ids"
_ASSISTANT = "drafts for another model, whose keys and values it reads"
_IMAGE = "its own `generate` reads an image, not token ids alone"
_TOWER = "its default config has no tower that rules can make small"
NOT_BUILT: dict[str, str] = {
    "apertus1p5 (image-text)": "its numbers of visual and audio tokens depend on each other; its "
    "text model is checked",
    "blip (image-text)": _IMAGE,
    "blip-2 (image-text)": _IMAGE,
    "blt": "its own `generate` fails: the config has no `num_hidden_layers`",
    "diffusion_gemma (image-text)": "writes by diffusion, not token by token",
    "dots3_note": "its towers name the text's width; the text model is checked",
    "dots3_note (image-text)": "its towers name the text's width; the text model is checked",
    "fast_vlm (image-text)": "its vision tower needs the packages timm and pillow",
    "florence2 (image-text)": _TOWER,
    "gemma3n": "its vision tower needs the packages timm and pillow; the text model is checked",
    "gemma4_assistant": _ASSISTANT,
    "gemma4_unified_assistant": _ASSISTANT,
    "granite4_vision (image-text)": _TOWER,
    "idefics (image-text)": _IMAGE,
    "inkling_mm_model (image-text)": "needs the package scipy; its text model is checked",
    "instructblip (image-text)": _IMAGE,
    "instructblipvideo (image-text)": _IMAGE,
    "kosmos-2 (image-text)": _IMAGE,
    "llama4 (image-text)": "its own `generate` fails: outputs without `image_outputs`",
    "muse_spark (image-text)": _TOWER,
    "musicgen": _CODES,
    "musicgen_melody": _CODES,
    "nemo_speechlm (encoder-decoder)": "its audio tower cannot be made small",
    "perception_lm (image-text)": "its vision tower needs the packages timm and pillow",
    "pi0 (image-text)": "a policy of robots, without `generate`",
    "pix2struct (image-text)": _IMAGE,
    "pp_formulanet (image-text)": _IMAGE,
    "udop (image-text)": "its own `generate` needs the places of words on a page",
    "vibevoice_asr (encoder-decoder)": "its audio towers cannot be made small; Qwen2 is checked",
    "vision-encoder-decoder (image-text)": _IMAGE,
    "voxtral_realtime (encoder-decoder)": "reads sound at each position; it has no text input",
    "xlstm": "its PyTorch implementation fails on the sizes of a tiny model",
}
