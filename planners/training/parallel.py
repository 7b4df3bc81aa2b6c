"""Data-parallel training: each process has its own batches, and gradients are averaged before every step.

On a CPU this is faster than threads, which synchronise after each of a small model's many short matrix products.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, multiprocessing, nn


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Process number ``rank``, from 0, of ``size`` processes; a single process does not communicate."""

    rank: int = 0
    size: int = 1

    @property
    def is_leader(self) -> bool:
        """Whether this process is the leading one, which saves and reports."""
        return self.rank == 0

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace the gradients by their mean over all processes; a missing gradient counts as zero."""
        if self.size == 1:
            return
        parameters = list(parameters)
        joined = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters])
        distributed.all_reduce(joined)
        means = joined.div_(self.size).split([p.numel() for p in parameters])
        for parameter, mean in zip(parameters, means, strict=True):
            parameter.grad = mean.view_as(parameter)

    def broadcast(self, *values: int) -> tuple[int, ...]:
        """Return the arguments of the leading process's call."""
        if self.size == 1:
            return values
        tensor = torch.tensor(values)
        distributed.broadcast(tensor, 0)
        return tuple(tensor.tolist())


SINGLE_PROCESS = ProcessGroup()


def run_parallel(size: int, work: Callable[..., None], *args: object) -> int:
    """Call ``work(group, *args)`` in ``size`` new processes (1: in this one). The failure of one process ends all.

    Returns the exit code. If a process ended with an exception, the exception is raised.
    """
    if size == 1:
        work(SINGLE_PROCESS, *args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            multiprocessing.spawn(_join, (size, str(Path(folder) / "meet"), work, args), nprocs=size, daemon=True)
        except multiprocessing.ProcessExitedException as error:
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


def _join(rank: int, size: int, rendezvous: str, work: Callable[..., None], args: tuple[object, ...]) -> None:
    # torch sends SIGINT to this process when its parent dies; without a handler, a background job ignores SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)
    distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(minutes=30)
    )
    try:
        work(ProcessGroup(rank, size), *args)
    finally:
        distributed.destroy_process_group()
