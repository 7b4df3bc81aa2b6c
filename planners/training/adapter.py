"""LoRA adapter of a pretrained model (PEFT's format): injection into the model, and the folder of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from peft import LoraConfig, inject_adapter_in_model
from safetensors.torch import save
from torch import nn

from memory.engine.models.adapter import WEIGHTS
from memory.engine.models.model_path import ADAPTER
from memory.files.checksums import CHECKSUMS
from planners.bundled import ABILITIES
from planners.tiny.checkpoint import json_bytes, write_files, write_state

NAME = "default"  # PEFT's name of the adapter in the model; not part of a file's tensor names
PREFIX = "base_model.model."  # of a file's tensor names
SCALE = 2  # alpha / rank


def lora_config(base: str, rank: int) -> LoraConfig:
    """Return the configuration of an adapter on all linear layers of the decoder."""
    return LoraConfig(
        r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM",
        base_model_name_or_path=base, inference_mode=False,
    )  # fmt: skip


def inject(model: nn.Module, config: LoraConfig) -> nn.Module:
    """Add a new adapter to ``model``, whose own weights are frozen. The adapted model computes the same function."""
    model.requires_grad_(False)
    return inject_adapter_in_model(config, model, NAME)


def file_name(parameter: str) -> str:
    """Return the name of an adapter's parameter in PEFT's files."""
    return PREFIX + parameter.replace(f".{NAME}.", ".")


def write_adapter(
    folder: Path, config: LoraConfig, tensors: Mapping[str, torch.Tensor], abilities: Mapping[str, object],
    history: Mapping[str, object], more: Mapping[str, Mapping[str, torch.Tensor]] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Write an adapter (bfloat16) by parameter name, its training record, and tensor files (``more``, by file name)."""
    state = {file_name(name): value.to("cpu", torch.bfloat16).contiguous() for name, value in tensors.items()}
    values = config.to_dict() | {"inference_mode": True, "target_modules": sorted(config.target_modules)}
    contents = (
        (ADAPTER, json_bytes(json.loads(json.dumps(values, default=_plain)))),
        (WEIGHTS, save(state, {"format": "pt"})),
        (ABILITIES, json_bytes(dict(abilities))),
    )
    write_files(folder, CHECKSUMS, contents)
    write_state(folder, history, more)


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, Iterable) else str(value)
