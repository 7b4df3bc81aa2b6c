"""Times per layer from a file: measured on a machine, or made up to see what would happen."""

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
    """Seconds of each layer's pieces; the rows active there and the bytes of one, where the file names them."""

    times: Times
    active: tuple[torch.Tensor, ...] | None = None
    row_bytes: int | None = None


def times_of(line: Timeline, layers: int) -> Times:
    """What each piece took in a run that was measured, so that other schedules can be played with it."""
    seconds = {kind: [0.0] * layers for kind in KEYS[:3]}
    for event in line.events:
        if event.kind in seconds:
            seconds[event.kind][event.layer] += event.seconds
    return Times(*(tuple(seconds[kind]) for kind in KEYS[:3]))


def read_times(file: Path) -> LayerTimes:
    """``{"attention": [s, ...], "importance": [...], "mlp": [...]}``, perhaps ``active`` and ``row_bytes`` beside them.

    :raises DataError: the file is not there, or says something else
    """
    content = read_json(file, "name a file of times per layer")
    try:
        return _parse(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} holds no times per layer ({error}); see --help for what it must say") from error


def _parse(found: Mapping[str, Any]) -> LayerTimes:
    if unknown := sorted(set(found) - set(KEYS)):
        raise ValueError(f"unknown: {', '.join(unknown)}")
    attention, importance, mlp = (tuple(float(value) for value in found[key]) for key in KEYS[:3])
    active = found.get("active")
    rows = None if active is None else tuple(torch.tensor(rows, dtype=torch.long) for rows in active)
    return LayerTimes(Times(attention, importance, mlp), rows, found.get("row_bytes"))
