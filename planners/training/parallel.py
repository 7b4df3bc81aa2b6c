"""Several processes train one model: each draws batches of its own, gradients are averaged before every step.

On a CPU one process a core is quicker than one process with a thread a core: layers of a small model are many short
products, and threads wait for each other after every one.
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
class Team:
    """One of ``size`` processes. Alone, nothing is exchanged."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this one saves and reports."""
        return self.rank == 0

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give all processes the mean of their gradients, in place; what has none counts as zero."""
        if self.size == 1:
            return
        found = list(parameters)
        joined = torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in found])
        distributed.all_reduce(joined)
        for parameter, mean in zip(found, joined.div_(self.size).split([p.numel() for p in found]), strict=True):
            parameter.grad = mean.view_as(parameter)

    def told(self, *values: int) -> tuple[int, ...]:
        """What the leading process says."""
        if self.size == 1:
            return values
        said = torch.tensor(values)
        distributed.broadcast(said, 0)
        return tuple(said.tolist())


ALONE = Team()


def in_parallel(size: int, work: Callable[..., None], *args: object) -> int:
    """Call ``work(team, *args)`` in ``size`` processes, or here where one is enough. The first that fails ends all.

    Returns the exit code; raises what a process did not catch.
    """
    if size == 1:
        work(ALONE, *args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            multiprocessing.spawn(_join, (size, str(Path(folder) / "meet"), work, args), nprocs=size, daemon=True)
        except multiprocessing.ProcessExitedException as error:
            return error.exit_code
        except KeyboardInterrupt:
            return 130
    return 0


def _join(rank: int, size: int, meet: str, work: Callable[..., None], args: tuple[object, ...]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # comes when the caller dies; background jobs ignore it
    distributed.init_process_group(
        "gloo", init_method=f"file://{meet}", rank=rank, world_size=size, timeout=timedelta(minutes=30)
    )
    try:
        work(Team(rank, size), *args)
    finally:
        distributed.destroy_process_group()
