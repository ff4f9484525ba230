"""Config attributes that the shrinker's rules cannot derive, by model type."""

from __future__ import annotations

from typing import Any

_SHARED_KV = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_GEMMA4 = {**_SHARED_KV, "global_head_dim": 32}

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
_NO_LONGROPE = "its default has the frequencies of short contexts"

_NO_MROPE = "its default has no sections of rotary positions"
_OMNI = {"vision_start_token_id": 130, "vision_end_token_id": 131}

# model type, or class of a sub-config that has none -> (attributes, reason)
_OVERRIDES: dict[str, tuple[dict[str, Any], str]] = {
    "bamba": ({"attn_layer_indices": [1]}, "its default has no attention layer"),
    "blt": ({"encoder_hash_byte_group_vocab": 32}, "a hash table of 500,002 rows"),
    "chameleon": ({"vocabulary_map": {"<image>": 126}}, "its default has no vocabulary of images"),
    "emu3": ({"vocabulary_map": {"<image>": 126}}, "its default has no vocabulary of images"),
    "cohere_compass_text": (
        {"rope_parameters": {"sliding_attention": _MROPE, "full_attention": _MROPE},
         "layer_types": ["sliding_attention", "full_attention"]},
        "its default has no rotary parameters",
    ),
    "DbrxAttentionConfig": (
        {"rope_theta": 10000.0, "clip_qkv": 8.0},
        "read by the model, missing in the default",
    ),
    "deepseek_ocr2_text": (
        {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2},
        "its default names no kinds of layers",
    ),
    "deepseek_v2": ({"num_experts_per_tok": 2}, "its default chooses no experts"),
    "dots1": (
        {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
         "topk_group": 1},
        "its default names no experts",
    ),
    "dots3_note_text": (
        {"num_hidden_layers": 2, "layer_types": ["indexed_attention"] * 2,
         "mlp_layer_types": ["dense", "sparse"]},
        "its sliding layers have sizes of their own",
    ),
    "dory": (
        {"num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        "layers before, in and after its loop add up to all layers",
    ),
    "gemma3n_text": (
        {**_SHARED_KV, "intermediate_size": 96, "activation_sparsity_pattern": [0.5, 0.0] * 2},
        "the last layers share keys and values with earlier ones of their kind",
    ),
    "gemma4_text": (_GEMMA4, "as gemma3n_text, and its layers differ in head size"),
    "gemma4_unified_text": (_GEMMA4, "as gemma4_text"),
    "ernie4_5_vl_moe_text": (
        {"rope_parameters": {**_MROPE, "mrope_section": [2, 2, 4]}},
        _NO_MROPE,
    ),
    "glm4v_moe_text": ({"rope_parameters": {**_MROPE, "partial_rotary_factor": 1.0}}, _NO_MROPE),
    "glm4v_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "glm5_next_text": ({"index_kpool": 4}, "sizes of its indexer divide each other"),
    "glm_ocr_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "granite4_vision": ({"deepstack_layer_map": [[0, 0]]}, "its default names no layers"),
    "granitemoehybrid": (
        {"layer_types": ["linear_attention", "full_attention"]},
        "its default has no attention layer",
    ),
    "hrm_text": (
        {"num_hidden_layers": 2, "num_layers_per_stack": None},
        "the number of layers is computed from the layers of a stack",
    ),
    "hunyuan_vl_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "jamba": (
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_hidden_layers": 4},
        "the position of attention layers is a period",
    ),
    "lfm2": (
        {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "full_attn_idxs": None},
        "its default has attention layers only",
    ),
    "lfm2_moe": (
        {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
        "its default names no kinds of layers",
    ),
    "mllama_text_model": (
        {"num_hidden_layers": 3, "cross_attention_layers": [1]},
        "the layers that attend to images are listed by number",
    ),
    "molmo2_adapter": ({"vision_feature_layer": [1, 0]}, "layers of its vision tower by number"),
    "paddleocr_vl_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "phi3": (_LONGROPE, _NO_LONGROPE),
    "phi4_multimodal": (_LONGROPE, _NO_LONGROPE),
    "phimoe": (_LONGROPE, _NO_LONGROPE),
    "qwen2_5_omni_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "qwen2_5_vl_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "qwen2_vl_text": ({"rope_parameters": _MROPE}, _NO_MROPE),
    "qwen2_5_omni_thinker": (_OMNI, "attributes that its default lacks"),
    "qwen3_omni_moe_thinker": (_OMNI, "attributes that its default lacks"),
    "qwen4_exp_text": (
        {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 8,
         "indexer_compress_ratio": 2, "ngram_vocab_size_base": 64, "split_ngram_parts": 1,
         "ple_layer_ids": [1], "heads_per_ngram": 2, "make_ngram_vocab_size_divisible_by": 8,
         "eos_token_id": 127, "number_of_conv_states": 3},
        "its default leaves the indexer out, and names tables of 20 million rows",
    ),
    "recurrent_gemma": ({"num_hidden_layers": 3}, "its kinds of layers are a period of three"),
    "reformer": (
        {"is_decoder": True, "axial_pos_shape": [16, 16], "axial_pos_embds_dim": [16, 48]},
        "its default is an encoder; axial positions multiply",
    ),
    "step3p5": ({"sliding_window": 8}, "its default has no window for its sliding layers"),
    "xmod": ({"default_language": "en_XX"}, "adapters are chosen by language"),
    "zamba": (
        {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2,
         "attention_hidden_size": 128, "attention_head_dim": 32},
        "a shared block needs two layers that use it",
    ),
    "zamba2": (
        {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2,
         "hybrid_layer_ids": [1, 3], "mamba_headdim": 16, "n_mamba_heads": 8,
         "attention_hidden_size": 128, "attention_head_dim": 32},
        "a shared block needs two layers that use it",
    ),
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


def overrides_of(model_type: str, class_name: str) -> dict[str, Any]:
    """Attributes that replace those of the rules."""
    return _OVERRIDES.get(model_type or class_name, ({}, ""))[0]
