"""Machine on which times are measured."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and library versions, named beside every result."""

    cpu: str
    cores: int  # available to this process
    threads: int  # of torch
    gpu: str | None
    system: str
    python: str
    torch: str
    transformers: str

    @property
    def text(self) -> str:
        gpu = f", {self.gpu}" if self.gpu else ""
        return f"{self.cpu}, {self.cores} cores, {self.threads} torch threads{gpu}, torch {self.torch}"


def this_machine() -> Machine:
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return Machine(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        gpu=gpu,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )


def _cpu() -> str:
    with_name = (line.partition(":")[2].strip() for line in _lines() if line.startswith("model name"))
    return next(with_name, platform.processor() or platform.machine())


def _lines() -> Iterable[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ()
