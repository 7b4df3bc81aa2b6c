"""What one prefill has to do, whatever the order: rows, bytes, and the times of each layer's three pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from keep_agent.errors import ConfigError, check_choice

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from memory.prompt.layout import Layout

METHODS = ("keep", "cacheblend", "epic", "full_reuse")  # whose active rows a prompt can draw
BEFORE, BESIDE, AFTER = NARROWS = ("before_mlp", "beside_mlp", "after_mlp")
NARROW_OF = {"before": BEFORE, "beside": BESIDE}  # by the engine's setting, for choices that read the attention alone


@dataclass(frozen=True)
class Times:
    """Seconds per layer. ``importance`` is 0 where nothing is chosen; what ``mlp`` covers depends on the mode."""

    attention: tuple[float, ...]
    importance: tuple[float, ...]
    mlp: tuple[float, ...]

    def __post_init__(self) -> None:
        pieces = (self.attention, self.importance, self.mlp)
        if not self.attention or len({len(piece) for piece in pieces}) > 1:
            raise ConfigError(f"times of {', '.join(str(len(piece)) for piece in pieces)} layers; all need as many")
        if not all(np.isfinite(piece).all() and min(piece) >= 0 for piece in pieces):
            raise ConfigError("a time per layer is negative or no number; give seconds")

    @property
    def layers(self) -> int:
        return len(self.attention)


@dataclass(frozen=True)
class Work:
    """A prompt, its active rows (sorted row numbers) at every layer, and what computing and moving them costs.

    ``narrow`` says when the next layer's rows are chosen: ``before_mlp`` on the compute worker, between a layer's
    attention and its MLP, which leaves the dropped rows out; ``beside_mlp`` by a worker of its own (KEEP, arXiv
    2602.23592, section 5), while the MLP runs for all rows of the layer; ``after_mlp`` where the choice reads what the
    layer returns (CacheBlend).
    """

    layout: Layout
    active: tuple[torch.Tensor, ...]
    times: Times
    row_bytes: int  # keys and values of one row at one layer
    narrow: str = BEFORE

    def __post_init__(self) -> None:
        check_choice("narrow", self.narrow, NARROWS)
        if len(self.active) != self.layers:
            raise ConfigError(
                f"active rows of {len(self.active)} layers, but times of {self.layers}; both need as many"
            )

    @property
    def layers(self) -> int:
        return self.times.layers

    def to_choice(self, layer: int) -> float:
        """Seconds from the start of ``layer`` until the next one's rows are known."""
        first = self.times.mlp[layer] if self.narrow == AFTER else 0.0
        return self.times.attention[layer] + first + self.times.importance[layer]

    def to_end(self, layer: int) -> float:
        """Seconds from the start of ``layer`` until the next one may start, as far as computing goes."""
        importance, mlp = self.times.importance[layer], self.times.mlp[layer]
        rest = max(importance, mlp) if self.narrow == BESIDE else importance + mlp
        return self.times.attention[layer] + rest

    @cached_property
    def resting(self) -> NDArray[np.bool_]:
        """(layers, rows) bool: rows that have a block and are not active, whose slices must move."""
        found = np.tile(self.layout.block_of >= 0, (self.layers, 1))
        for layer, rows in enumerate(self.active):
            found[layer, rows.cpu().numpy()] = False
        return found
