"""Lower bounds of a prefill's makespan for any loading stage: a simple one, and a tight one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.loading.simulated_link import Link
from eval.loading.workload import Work


@dataclass(frozen=True)
class Bounds:
    """Bounds in seconds. ``compute``: makespan without loading; ``transfer``: the link's work in the fewest jobs.

    ``simple`` = max(compute, first dependency + transfer): no slice can move before the first resting row is known.
    A row rests at a layer if it has a block and is not active. ``tight`` counts all dependencies, and the computing
    after the last transfer.
    """

    compute: float
    transfer: float
    dependency: float
    tight: float

    @property
    def simple(self) -> float:
        return max(self.compute, self.dependency + self.transfer)


def bounds(work: Work, link: Link) -> Bounds:
    """Compute the bounds over all schedules in which a job moves slices of one layer after they are known to be needed.

    Let K_i be the earliest time at which the rows that rest from layer i on are known, A_m the earliest start of layer
    m, and T(i, m) the link's time for the slices of layers up to m of the rows that rest from layer i or a later one
    on. These slices move after K_i, one job after another, and before layer m starts. So A_m >= K_i + T(i, m) for all
    i <= m, and A_m >= A_(m-1) + computing of m - 1; K_i = A_(i-1) + time of the choice. A link that could interrupt a
    job for a more urgent one at no cost would meet the bound: it moves every slice as soon as it is known, earliest
    deadline first.
    """
    moving = _moving(work, link)
    starts, choice_known, ends = np.zeros(work.layers), np.zeros(work.layers), 0.0
    for layer in range(work.layers):
        starts[layer] = max(ends, (choice_known[: layer + 1] + moving[: layer + 1, layer]).max())
        ends = starts[layer] + work.to_end(layer)
        if layer + 1 < work.layers:
            choice_known[layer + 1] = starts[layer] + work.to_choice(layer)
    compute = sum(map(work.to_end, range(work.layers)))
    return Bounds(compute, float(moving[0, -1]), _first_dependency(work), float(ends))


def _first_dependency(work: Work) -> float:
    """Return the time at which the first rows to move are known."""
    needing = np.flatnonzero(work.resting.any(1))
    first = int(needing[0]) if needing.size else 0
    return sum(map(work.to_end, range(first - 1))) + work.to_choice(first - 1) if first else 0.0


def _moving(work: Work, link: Link) -> NDArray[np.float64]:
    """Return T(i, m), shape (layers, layers): one job per layer, one copy per run of rows.

    A row counts from the first layer at which it may move: it rests there, or lies in a gap that moves with its run. A
    run counts if any of its rows does.
    """
    layers = work.layers
    moves = np.array([work.layout.covered(work.layout.runs(resting)) for resting in work.resting])
    since = np.where(moves.any(0), moves.argmax(0), layers)  # (rows,)
    seconds = np.zeros((layers, layers))
    for layer in range(layers):
        rows = np.bincount(since[work.resting[layer]], minlength=layers)
        runs = np.bincount(_latest(work, layer, since), minlength=layers)
        later_rows, later_runs = (np.cumsum(counts[::-1])[::-1] for counts in (rows, runs))
        for i in range(layer + 1):
            seconds[i, layer] = link.seconds(int(later_rows[i]) * work.row_bytes, int(later_runs[i]))
    return seconds.cumsum(1)


def _latest(work: Work, layer: int, since: NDArray[np.int64]) -> list[int]:
    """Return, for each run that rests at ``layer``, the layer from which on all of it may move."""
    starts = [placement.start for placement in work.layout.placements]
    runs = work.layout.runs(work.resting[layer])
    return [int(since[starts[place] + first : starts[place] + last].max()) for place, (first, last) in runs]
