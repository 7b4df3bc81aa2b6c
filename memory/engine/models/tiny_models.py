"""One tiny random model per supported family: what the laws and the fidelity table are checked on."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig

from keep_agent.errors import ConfigError
from memory.engine.models.load import LoadedModel, from_config
from memory.engine.models.tiny_model_configs import BASE, FAMILIES, SETTINGS, VARIANTS


def tiny_model(
    family: str, layers: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any
) -> LoadedModel:
    """A random model of ``family`` (one of ``FAMILIES``) with an even number of layers, hidden size 64.

    :raises ConfigError: for an unknown family.
    """
    if family not in SETTINGS:
        raise ConfigError(f"family={family!r} is unknown; use one of {', '.join(FAMILIES)}.")
    values = {**BASE, **SETTINGS[family], "num_hidden_layers": layers, **overrides}
    if "layer_types" in values:
        values["layer_types"] = list(values["layer_types"]) * (layers // 2)
    config = AutoConfig.for_model(VARIANTS.get(family, family), **values)
    model = from_config(config, dtype, seed=seed, name=f"tiny-{family}")
    generator = torch.Generator().manual_seed(seed)
    for layer in model.decoder.layers:
        if model.spec.sinks:
            layer.self_attn.sinks.data.normal_(generator=generator)
        _randomise_biases(layer, generator)
    return model


def _randomise_biases(layer: torch.nn.Module, generator: torch.Generator) -> None:
    """Biases start at zero in transformers; only random ones show whether they are used."""
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(std=0.3, generator=generator)
