"""Settings of the tiny models, one per supported family, as transformers' configs take them."""

from __future__ import annotations

from typing import Any

WINDOW = 24  # tokens; shorter than the prompts of the laws, so that sliding layers do slide
BASE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,  # wide, so that logits are large and a wrong row shows
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1.5e5,
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 256,
}
_MIXED = ("sliding_attention", "full_attention")
SETTINGS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen2_sliding": {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": _MIXED},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "llama": {},
    "llama_llama3": {"rope_parameters": _LLAMA3},
    "mistral": {"head_dim": 16, "sliding_window": WINDOW},
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": _MIXED,
        "query_pre_attn_scalar": 16,
        "final_logit_softcapping": 30.0,
    },
    "gpt_oss": {
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": _MIXED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": _YARN,
    },
}
VARIANTS = {"qwen2_sliding": "qwen2", "llama_llama3": "llama"}
FAMILIES = tuple(SETTINGS)
