"""Checkpoint of a head's training: optimiser state, weights, settings and progress in one file with a checksum."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from keep_agent.errors import ModelError
from keep_agent.files import loading
from memory.files.atomic import write_atomic
from memory.files.tensor_file import open_tensors
from memory.retention.residual_head import ResidualHead, checksum

REMEDY = "restore it, or train again with another --out"


@dataclass
class Progress:
    """Numbers of a run, besides weights, that a checkpoint keeps."""

    epoch: int = 0
    session: int = 0  # sessions done in this epoch
    steps: int = 0
    rows: int = 0
    dropped: int = 0  # turns without both positive and negative rows
    curve: list[dict] = field(default_factory=list)
    weighed: list[dict] = field(default_factory=list)  # candidates for alpha


def write_state(
    file: Path, head: ResidualHead, optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], progress: Progress
) -> None:
    state = optimizer.state_dict()["state"]
    tensors = {f"optimizer.{index}.{key}": value for index, values in state.items() for key, value in values.items()}
    tensors |= {f"head.{name}": value for name, value in head.state_dict().items()}
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    metadata = {"progress": json.dumps(asdict(progress), indent=1), "settings": json.dumps(settings)}
    metadata["sha256"] = checksum(tensors, metadata["progress"], metadata["settings"])
    write_atomic(file, save(tensors, metadata))


def read_state(file: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    """Read (progress and settings, tensors) of a checkpoint; one of 0.2.0 has no checksum.

    :raises ModelError: the file is damaged
    """
    with loading(file, REMEDY), open_tensors(file) as content:
        metadata = content.metadata() or {}
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        expected = checksum(tensors, metadata["progress"], metadata["settings"])
    if set(metadata) != {"progress", "settings"} and metadata.get("sha256") != expected:
        raise ModelError(f"{file} is damaged: its SHA-256 does not match; {REMEDY}")
    return metadata, tensors


def load_tensors(tensors: Mapping[str, torch.Tensor], head: ResidualHead, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state_dict()
    weights = {}
    for name, value in tensors.items():
        match name.split("."):
            case ["optimizer", index, *key]:
                state["state"].setdefault(int(index), {})[".".join(key)] = value
            case ["head", *key]:
                weights[".".join(key)] = value
    optimizer.load_state_dict(state)
    head.load_state_dict(weights)
