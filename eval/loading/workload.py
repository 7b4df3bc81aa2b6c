"""Work of one prefill: rows, bytes, and the times of each layer's three pieces (attention, choice of rows, MLP)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eval.loading.timeline import Timeline
from keep_agent.errors import ConfigError, DataError, check_choice
from keep_agent.files import read_json
from memory.prompt.layout import Layout

if TYPE_CHECKING:
    import torch

METHODS = ("keep", "cacheblend", "epic", "full_reuse")  # methods whose active rows can be simulated
BEFORE, BESIDE, AFTER = CHOICE_POINTS = ("before_mlp", "beside_mlp", "after_mlp")
POINT_OF = {"before": BEFORE, "beside": BESIDE}  # by ``engine.importance``, for a choice that depends only on attention


@dataclass(frozen=True)
class PieceTimes:
    """Seconds of each layer's pieces. ``importance`` is the choice of the next layer's rows, 0 if there is none."""

    attention: tuple[float, ...]
    importance: tuple[float, ...]
    mlp: tuple[float, ...]

    def __post_init__(self) -> None:
        pieces = (self.attention, self.importance, self.mlp)
        if not self.attention or len({len(piece) for piece in pieces}) > 1:
            lengths = ", ".join(str(len(piece)) for piece in pieces)
            raise ConfigError(f"attention, importance and mlp have times of {lengths} layers; give equally many")
        if not all(np.isfinite(piece).all() and min(piece) >= 0 for piece in pieces):
            raise ConfigError("a time per layer is negative or not finite; give seconds")

    @property
    def layers(self) -> int:
        return len(self.attention)


@dataclass(frozen=True)
class LayerWork:
    """Work of a prefill: prompt, active rows (sorted numbers) per layer, and the costs of computing and moving them.

    ``choice_point`` is when the next layer's rows are chosen: ``before_mlp`` on the compute worker, between a layer's
    attention and its MLP, which skips dropped rows; ``beside_mlp`` on a separate worker, while the MLP computes all
    rows of the layer (KEEP, arXiv 2602.23592, section 5); ``after_mlp`` if the choice depends on the layer's output
    (CacheBlend).
    """

    layout: Layout
    active: tuple[torch.Tensor, ...]
    times: PieceTimes
    row_bytes: int  # keys and values of one row at one layer
    choice_point: str = BEFORE

    def __post_init__(self) -> None:
        check_choice("choice_point", self.choice_point, CHOICE_POINTS)
        if len(self.active) != self.layers:
            raise ConfigError(
                f"active rows of {len(self.active)} layers, but times of {self.layers}; give the same number of both"
            )

    @property
    def layers(self) -> int:
        return self.times.layers

    def seconds_to_choice(self, layer: int) -> float:
        """Return the seconds from the start of ``layer`` until the next layer's rows are known."""
        first = self.times.mlp[layer] if self.choice_point == AFTER else 0.0
        return self.times.attention[layer] + first + self.times.importance[layer]

    def seconds_to_end(self, layer: int) -> float:
        """Return the seconds from the start of ``layer`` until computing may start the next one."""
        importance, mlp = self.times.importance[layer], self.times.mlp[layer]
        rest = max(importance, mlp) if self.choice_point == BESIDE else importance + mlp
        return self.times.attention[layer] + rest

    @cached_property
    def resting(self) -> NDArray[np.bool_]:
        """Mask (layers, rows): rows with a block that are not active, whose slices must be transferred."""
        resting = np.tile(self.layout.block_of >= 0, (self.layers, 1))
        for layer, rows in enumerate(self.active):
            resting[layer, rows.cpu().numpy()] = False
        return resting


FILE_KEYS = ("attention", "importance", "mlp", "active", "row_bytes")


@dataclass(frozen=True)
class LayerTimes:
    """Content of a file of times: seconds of each layer's pieces; optionally active rows and bytes per row."""

    times: PieceTimes
    active: tuple[torch.Tensor, ...] | None = None
    row_bytes: int | None = None


def times_of(line: Timeline, layers: int) -> PieceTimes:
    """Return the measured time of each piece, to simulate other schedules."""
    seconds = {kind: [0.0] * layers for kind in FILE_KEYS[:3]}
    for event in line.events:
        if event.kind in seconds:
            seconds[event.kind][event.layer] += event.seconds
    return PieceTimes(*map(tuple, seconds.values()))


def read_times(file: Path) -> LayerTimes:
    """Read a file of `LayerTimes`, in the format of the command's help. Raises DataError."""
    content = read_json(file, "name a file of times per layer")
    try:
        import torch  # lazy: an unreadable file is reported before torch is loaded

        if unknown := sorted(set(content) - set(FILE_KEYS)):
            raise ValueError(f"unknown: {', '.join(unknown)}")
        times = PieceTimes(*(tuple(map(float, content[key])) for key in FILE_KEYS[:3]))
        active = content.get("active")
        rows = None if active is None else tuple(torch.tensor(rows, dtype=torch.long) for rows in active)
        return LayerTimes(times, rows, content.get("row_bytes"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} holds no times per layer ({error}); see --help for its format") from error
