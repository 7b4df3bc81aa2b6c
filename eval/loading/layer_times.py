"""Times per layer, read from a file or from a measured timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eval.loading.timeline import Timeline
from eval.loading.workload import Times
from keep_agent.errors import DataError
from keep_agent.files import read_json

KEYS = ("attention", "importance", "mlp", "active", "row_bytes")


@dataclass(frozen=True)
class LayerTimes:
    """Content of a file of times: seconds of each layer's pieces; optionally active rows and bytes per row."""

    times: Times
    active: tuple[torch.Tensor, ...] | None = None
    row_bytes: int | None = None


def times_of(line: Timeline, layers: int) -> Times:
    """Return the measured time of each piece, for the simulation of other schedules."""
    seconds = {kind: [0.0] * layers for kind in KEYS[:3]}
    for event in line.events:
        if event.kind in seconds:
            seconds[event.kind][event.layer] += event.seconds
    return Times(*(tuple(seconds[kind]) for kind in KEYS[:3]))


def read_times(file: Path) -> LayerTimes:
    """Read ``{"attention": [s, ...], "importance": [...], "mlp": [...]}``, optionally ``active`` and ``row_bytes``.

    :raises DataError: the file does not exist, or has another content
    """
    content = read_json(file, "name a file of times per layer")
    try:
        return _parse(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} holds no times per layer ({error}); see --help for its format") from error


def _parse(content: Mapping[str, Any]) -> LayerTimes:
    if unknown := sorted(set(content) - set(KEYS)):
        raise ValueError(f"unknown: {', '.join(unknown)}")
    attention, importance, mlp = (tuple(float(value) for value in content[key]) for key in KEYS[:3])
    active = content.get("active")
    rows = None if active is None else tuple(torch.tensor(rows, dtype=torch.long) for rows in active)
    return LayerTimes(Times(attention, importance, mlp), rows, content.get("row_bytes"))
