"""Named model shapes for random weights: latency work needs the dimensions, not the knowledge."""

from __future__ import annotations

from typing import Any

_QWEN25 = {
    "model_type": "qwen2",
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


def _qwen25(hidden: int, layers: int, heads: int, kv_heads: int, ff: int, tied: bool) -> dict[str, Any]:
    return {
        **_QWEN25,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": ff,
        "tie_word_embeddings": tied,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "planner-tiny": {
        **_qwen25(192, 12, 6, 6, 512, True),
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
    "qwen2.5-0.5b": _qwen25(896, 24, 14, 2, 4864, True),
    "qwen2.5-1.5b": _qwen25(1536, 28, 12, 2, 8960, True),
    "qwen2.5-3b": _qwen25(2048, 36, 16, 2, 11008, True),
    "qwen2.5-7b": {**_qwen25(3584, 28, 28, 4, 18944, False), "vocab_size": 152064},
    "qwen2.5-14b": {**_qwen25(5120, 48, 40, 8, 13824, False), "vocab_size": 152064},
    "qwen2.5-32b": {**_qwen25(5120, 64, 40, 8, 27648, False), "vocab_size": 152064},
    "llama-3.1-8b": {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}
