"""Model spec: shape and attention properties of a model, and checks that it is supported."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from keep_agent.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

FAMILIES = ("qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "gemma3_text", "gpt_oss")
ATTENTION_KINDS = {"full_attention", "sliding_attention"}
ROPE_KINDS = {"default", "linear", "llama3", "yarn", "longrope"}
# Settings of saving or running a model that do not change its output.
_IGNORED_SETTINGS = {"transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "_name_or_path"}
_IGNORED_PACKED = {"bnb_4bit_compute_dtype"}  # a setting of quantised weights that repeats the dtype


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape and attention properties of a decoder-only model."""

    family: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    mlp_width: int  # intermediate size; with experts: an expert's size times the number of active experts
    experts: int  # number of routed experts; 0: dense model
    vocab: int
    max_positions: int
    windows: tuple[int | None, ...]  # per layer: tokens of its sliding window; None: full attention
    rope_keys: tuple[str, ...]  # per layer: name of its RoPE table ("" if all layers share one)
    position_limit: int | None  # longrope changes its frequencies beyond so many positions; None: no limit
    sinks: bool  # whether each head has an attention sink: a learned logit without a value
    dtype: torch.dtype
    parameter_bytes: int  # as loaded: quantised weights with their scales
    model_key: str  # hash of dtype, configuration (with RoPE and quantisation) and all files; part of block identities
    weights_key: str  # hash of weights and configuration, without the dtype; identifies what was trained for them

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


def rope_parameters(config: PretrainedConfig) -> dict[str, dict]:
    """Return RoPE settings by layer type; the key is "" if all layers share one."""
    rope = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    nested = {key: value for key, value in rope.items() if isinstance(value, dict)}
    return nested or {"": rope}


def check_supported(config: PretrainedConfig) -> None:
    """Raise ModelError for an unknown family, MLA, linear attention, or a RoPE that depends on the prompt's length."""
    family, layer_types = config.model_type, set(getattr(config, "layer_types", None) or ())
    if getattr(config, "kv_lora_rank", None):
        raise ModelError(
            f"model family {family!r} uses multi-head latent attention (MLA), whose cache has no per-head "
            f"keys to reuse; choose one of {', '.join(FAMILIES)}."
        )
    if unsupported := sorted(layer_types - ATTENTION_KINDS):
        raise ModelError(
            f"model family {family!r} has {', '.join(unsupported)} layers, whose state cannot be reused row by row; "
            f"choose one of {', '.join(FAMILIES)}."
        )
    if family not in FAMILIES:
        raise ModelError(f"model family {family!r} is not supported; choose one of {', '.join(FAMILIES)}.")
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(f"model family {family!r} is set to bidirectional attention; use a causal model.")
    for rope in rope_parameters(config).values():
        kind = rope.get("rope_type", "default")
        if kind == "dynamic":
            raise ModelError(
                "RoPE type 'dynamic' (NTK) depends on the prompt's length, so stored keys cannot be moved; "
                "set rope_type to default, linear, llama3 or yarn."
            )
        if kind not in ROPE_KINDS:
            raise ModelError(f"RoPE type {kind!r} is not supported; use one of {', '.join(sorted(ROPE_KINDS))}.")


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def make_spec(model: PreTrainedModel, fingerprint: str, files: str = "") -> ModelSpec:
    """Make the spec of a model; ``fingerprint`` names its weights, ``files`` all files that it was loaded from."""
    config, attentions = model.config, [layer.self_attn for layer in model.model.layers]
    shared = getattr(config, "sliding_window", None)  # Mistral's modules hold no window of their own
    windows = tuple(getattr(attention, "sliding_window", shared) or None for attention in attentions)
    types = getattr(config, "layer_types", None) or [""] * len(windows)
    ropes = rope_parameters(config)
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 0
    width = config.intermediate_size
    if experts:
        width = (getattr(config, "moe_intermediate_size", None) or width) * config.num_experts_per_tok
    limits = [
        rope.get("original_max_position_embeddings") or config.max_position_embeddings
        for rope in ropes.values()
        if rope.get("rope_type") == "longrope"
    ]
    tensors = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    dtype = model.get_input_embeddings().weight.dtype  # dtype of activations; linear layers may be packed
    settings = {k: v for k, v in config.to_dict().items() if k not in _IGNORED_SETTINGS}
    packed = settings.get("quantization_config") or {}
    settings |= {"quantization_config": {k: v for k, v in packed.items() if k not in _IGNORED_PACKED}} if packed else {}
    return ModelSpec(
        family=config.model_type,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attentions[0].head_dim,
        hidden=config.hidden_size,
        mlp_width=width,
        experts=experts,
        vocab=config.vocab_size,
        max_positions=config.max_position_embeddings,
        windows=windows,
        rope_keys=tuple(kind if kind in ropes else "" for kind in types),
        position_limit=min(limits, default=None),
        sinks=hasattr(attentions[0], "sinks"),
        dtype=dtype,
        parameter_bytes=sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values()),  # tied tensors once
        model_key=_hash(fingerprint, files, str(dtype), settings),
        weights_key=_hash(fingerprint, settings),
    )
