"""Model shapes: sizes of named models for random weights, and of a tiny model of every supported family.

Names and values are those of transformers' configurations.
"""

from __future__ import annotations

from typing import Any

_LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _shape(
    hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int = 151936, positions: int = 32768,
    tied: bool = False, theta: float = 1e6, **values: Any,
) -> dict[str, Any]:  # fmt: skip
    return {
        "model_type": "qwen2", "vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner,
        "max_position_embeddings": positions, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta}, **values,
    }  # fmt: skip


SHAPES: dict[str, dict[str, Any]] = {
    "planner-tiny": _shape(192, 12, 6, 6, 512, 4096, 4096, tied=True, theta=1e4),
    "qwen2.5-0.5b": _shape(896, 24, 14, 2, 4864, tied=True),
    "qwen2.5-1.5b": _shape(1536, 28, 12, 2, 8960, tied=True),
    "qwen2.5-3b": _shape(2048, 36, 16, 2, 11008, tied=True),
    "qwen2.5-7b": _shape(3584, 28, 28, 4, 18944, 152064),
    "qwen2.5-14b": _shape(5120, 48, 40, 8, 13824, 152064),
    "qwen2.5-32b": _shape(5120, 64, 40, 8, 27648, 152064),
    "llama-3.1-8b": _shape(
        4096, 32, 32, 8, 14336, 128256, 131072, model_type="llama",
        rope_parameters={**_LLAMA3, "original_max_position_embeddings": 8192},
    ),
}  # fmt: skip

WINDOW = 24  # tokens; shorter than the prompts of ``tests/laws``, so that windows exclude rows
TINY: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,  # wide, so that logits are large and a wrong row changes them
}  # fmt: skip
_SLIDING = {"sliding_window": WINDOW, "layer_types": ("sliding_attention", "full_attention")}
_YARN = {
    "rope_type": "yarn", "rope_theta": 1.5e5, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 256,
}  # fmt: skip
TINY_FAMILIES: dict[str, dict[str, Any]] = {  # values in addition to `TINY`; `tiny_model` repeats the layer types
    "qwen2": {},
    "qwen2_sliding": {"model_type": "qwen2", "use_sliding_window": True, **_SLIDING},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
    "llama": {},
    "llama_llama3": {
        "model_type": "llama", "rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 64},
    },
    "mistral": {"head_dim": 16, "sliding_window": WINDOW},
    "gemma3_text": {"head_dim": 16, **_SLIDING, "query_pre_attn_scalar": 16, "final_logit_softcapping": 30.0},
    "gpt_oss": {
        "head_dim": 16, **_SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _YARN,
    },
}  # fmt: skip
FAMILIES = tuple(TINY_FAMILIES)
