"""Simulator of a loading stage with given times, which follows the order of the engine's loader.

Three workers: one computes, one (with ``narrow=beside_mlp``) chooses the next layer's rows, one moves slices. They wait
for each other by KEEP's two rules (arXiv 2602.23592, section 5): importance of layer l and the slices of l + 1 come
before computing l + 1; attention of l comes before importance of l.
"""

from __future__ import annotations

import math

import numpy as np

from eval.loading.simulated_link import Link, SimulatedTransfers
from eval.loading.timeline import COMPUTE, IMPORTANCE, Event, Timeline
from eval.loading.workload import BEFORE, BESIDE, Work
from keep_agent.errors import ConfigError
from memory.prompt.layout import Transfer
from memory.stages import Loading


def simulate(loading: Loading, work: Work, link: Link, chunk: float = math.inf) -> Timeline:
    """Simulate one prefill with ``loading``; jobs that load ahead end after ``chunk`` bytes.

    :raises ConfigError: the stage leaves a row without keys at some layer
    """
    transfers = SimulatedTransfers(link, work.layers, work.row_bytes, chunk)
    stage = _CheckedLoading(loading, work)
    events: list[Event] = []
    transfers.submit(0, 0.0, stage.transfers(0))
    due = 0.0
    for layer in range(work.layers):
        start = max(due, transfers.arrival(layer))
        events += _pieces(work, layer, start)
        known, due = start + work.to_choice(layer), start + work.to_end(layer)
        if layer + 1 < work.layers:
            transfers.submit(layer + 1, known if loading.overlaps else due, stage.transfers(layer + 1))
    return Timeline.sorted([*events, *transfers.jobs])


def _pieces(work: Work, layer: int, start: float) -> list[Event]:
    """Return the events of a layer's attention, choice and MLP; a choice without duration is left out."""
    attended, known = start + work.times.attention[layer], start + work.to_choice(layer)
    importance, mlp = work.times.importance[layer], work.times.mlp[layer]
    mlp_start = known if work.narrow == BEFORE else attended
    lane = IMPORTANCE if work.narrow == BESIDE else COMPUTE
    pieces = [
        Event(COMPUTE, "attention", layer, start, attended),
        Event(lane, "importance", layer, known - importance, known),
        Event(COMPUTE, "mlp", layer, mlp_start, mlp_start + mlp),
    ]
    return [piece for piece in pieces if importance or piece.kind != "importance"]


class _CheckedLoading:
    """Loading stage that is asked layer by layer and checked for missing rows."""

    def __init__(self, loading: Loading, work: Work) -> None:
        self._loading, self._work = loading, work
        self._covered = np.zeros(work.resting.shape, bool)

    def transfers(self, layer: int) -> list[Transfer]:
        work = self._work
        transfers = self._loading.schedule(work.layout, layer, work.active[layer], work.layers)
        for transfer in transfers:
            start = work.layout.placements[transfer.placement].start
            self._covered[transfer.first : transfer.last, start + transfer.rows[0] : start + transfer.rows[1]] = True
        missing = np.flatnonzero(work.resting[layer] & ~self._covered[layer])
        if missing.size:
            raise ConfigError(
                f"{type(self._loading).__name__} left {missing.size} rows without keys at layer {layer}, first row "
                f"{missing[0]}; every row that is not active must be transferred"
            )
        return transfers
