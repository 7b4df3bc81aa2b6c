"""Tiny random models, one per supported family, for ``tests/laws`` and the fidelity table."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig

from keep_agent.errors import ConfigError
from memory.engine.models.load import LoadedModel, from_config
from memory.engine.models.model_shapes import FAMILIES, TINY, TINY_FAMILIES


def tiny_model(
    family: str, layers: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0, **overrides: Any
) -> LoadedModel:
    """Make a random model of ``family`` (one of `FAMILIES`) with an even number of layers, hidden size 64.

    :raises ConfigError: for an unknown family.
    """
    if family not in TINY_FAMILIES:
        raise ConfigError(f"family={family!r} is unknown; use one of {', '.join(FAMILIES)}.")
    values = {"model_type": family, **TINY, **TINY_FAMILIES[family], "num_hidden_layers": layers, **overrides}
    if "layer_types" in values:
        values["layer_types"] = list(values["layer_types"]) * (layers // 2)
    model = from_config(AutoConfig.for_model(**values), dtype, seed=seed, name=f"tiny-{family}")
    generator = torch.Generator().manual_seed(seed)
    for layer in model.decoder.layers:
        if model.spec.sinks:
            layer.self_attn.sinks.data.normal_(generator=generator)
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):  # zero in transformers; a random one shows whether it is used
                parameter.data.normal_(std=0.3, generator=generator)
    return model
