"""How much memory a model needs and how much there is, asked before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import torch

from keep_agent.errors import CapacityError

HEADROOM = 0.1  # of the parameters, for activations and caches
HEADROOM_BYTES = 256 << 20
_GIB = 1 << 30
_CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_bytes(device: torch.device) -> int | None:
    """Free memory of ``device``, within this process's control group; None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = [value for value in (_meminfo(), *(_group(*files) for files in _CGROUP)) if value is not None]
    return min(known) if known else None


def check_capacity(name: str, parameters: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a model that does not fit.

    :param parameters: number of parameters
    :raises CapacityError: with the numbers and what to do.
    """
    needed = int(parameters * dtype.itemsize * (1 + HEADROOM)) + HEADROOM_BYTES
    free = available_bytes(device)
    if free is not None and needed > free:
        remedy = "a smaller model" if dtype.itemsize <= 2 else "dtype=bfloat16 or a smaller model"
        raise CapacityError(
            f"model {name!r} needs {needed / _GIB:.1f} GiB ({parameters / 1e9:.2f} billion parameters in "
            f"{str(dtype).removeprefix('torch.')} and headroom), but {device} has {free / _GIB:.1f} GiB free; "
            f"use {remedy}, or a machine with more memory."
        )


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return values[0] if values else None


def _group(limit: str, usage: str) -> int | None:
    try:
        most, used = Path(limit).read_text().strip(), int(Path(usage).read_text())
    except (OSError, ValueError):
        return None
    return int(most) - used if most.isdigit() else None
