"""Layer output: hidden states behind a layer, for a probe that asks for them; they cost most of the layer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import torch

from keep_agent.errors import ConfigError
from memory.engine.transfer.link import SideWorker


class LayerOutput(Protocol):
    """Hidden states (1, active rows, hidden) behind a layer."""

    def get(self) -> torch.Tensor: ...


@dataclass
class DeferredOutput:
    """Output that is computed when it is asked for."""

    compute: Callable[[], torch.Tensor]
    hidden: torch.Tensor | None = None

    def get(self) -> torch.Tensor:
        if self.hidden is None:
            self.hidden = self.compute()
        return self.hidden


@dataclass
class AwaitedOutput:
    """Output that another thread computes."""

    side: SideWorker
    future: Future[torch.Tensor] = field(default_factory=Future)

    def get(self) -> torch.Tensor:
        hidden = self.future.result()
        self.side.catch_up()  # the MLP is queued by then, not computed
        return hidden


@dataclass
class MissingOutput:
    """Output of a layer whose rows are chosen before it attends."""

    stage: str  # for the message

    def get(self) -> torch.Tensor:
        raise ConfigError(f"{self.stage} says that it chooses by attention mass, but asks for what comes behind it.")
