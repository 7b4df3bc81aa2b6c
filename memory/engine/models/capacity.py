"""Memory check of a model before it is loaded: bytes needed and bytes free."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from keep_agent.errors import CapacityError

HEADROOM, HEADROOM_BYTES = 0.1, 256 << 20  # for activations and caches: share of the weights' bytes, and a constant
_GIB = 1 << 30
_CGROUP = (  # folder, limit, usage, and the part of the usage that is reclaimable file cache
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """Size of a model's loaded parameters."""

    parameters: int  # number of parameters
    bytes: int  # of all parameters; packed ones with their scales
    format: str  # name of their format, for error texts


def available_bytes(device: torch.device) -> int | None:
    """Return the free memory of ``device``, within this process's control group; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = (_system_free(), *(_cgroup_free(*files) for files in _CGROUP))
    return min((value for value in known if value is not None), default=None)


def check_capacity(name: str, weights: WeightSizes, device: torch.device) -> None:
    """Raise CapacityError for a model that does not fit into the free memory of ``device``."""
    needed = int(weights.bytes * (1 + HEADROOM)) + HEADROOM_BYTES
    free = available_bytes(device)
    if free is not None and needed > free:
        remedy = "a smaller model" if weights.bytes <= 2 * weights.parameters else "dtype=bfloat16 or a smaller model"
        raise CapacityError(
            f"model {name!r} needs {needed / _GIB:.1f} GiB ({weights.parameters / 1e9:.2f} billion parameters in "
            f"{weights.format} and headroom), but {device} has {free / _GIB:.1f} GiB free; "
            f"use {remedy}, or a machine with more memory."
        )


def _system_free() -> int | None:
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_free(folder: str, limit: str, usage: str, cache: str) -> int | None:
    root = Path(folder)
    try:
        most, usage_bytes = (root / limit).read_text().strip(), int((root / usage).read_text())
        parts = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return int(most) - usage_bytes + int(parts.get(cache, 0)) if most.isdigit() else None
